"""
The simulated server: routes, authorization, admission, and the life of each request (floor F3).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from types import TracebackType
from typing import Self

import orjson

from distbench.sim import api as api_module
from distbench.sim.answers import build_request
from distbench.sim.api import ApiError, Endpoint, GenerationRequest
from distbench.sim.engine import EngineCore, EngineLoop
from distbench.sim.exposition import Exposition, ServerCounters
from distbench.sim.faults import Fault, choose_fault
from distbench.sim.http import HttpConnection, HttpLimits, HttpRequest
from distbench.sim.render import BUSY_MESSAGE, ENGINE_DEAD_MESSAGE, models_body
from distbench.sim.replies import Reply, WholeReply
from distbench.sim.scheduler import SimRequest, least_loaded
from distbench.sim.settings import SimSettings
from distbench.sim.streaming import StreamReply
from distbench.sim.tokenizer import Tokenizer
from distbench.sim.truth import TruthLog, TruthRecord

VLLM_VERSION = "0.32.0+sim"
_BUSY_TYPE = "Service Unavailable"
_ROUTES = {
    "/health": "GET",
    "/ping": "GET",
    "/version": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/tokenize": "POST",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
}
_GENERATION: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
# Connection attempts that the kernel keeps while the loop is busy: a level opens all its connections at once.
_BACKLOG = 4096


class SimServer:
    """
    One server on one event loop.

    ``await SimServer(settings).start()`` listens; ``await server.close()`` ends every stream with an error event, as a vLLM that gets
    a SIGTERM does, and closes. It is an asynchronous context manager too.

    Args:
        settings: Its parameters.
    """

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.loop: asyncio.AbstractEventLoop  # set by start()
        self.engines = tuple(EngineCore(settings, index) for index in range(settings.data_parallel_size))
        self.counters = ServerCounters()
        self.host = ""
        self.port = 0
        self.url = ""
        self._loops: tuple[EngineLoop, ...] = ()
        self._tokenizer = Tokenizer(settings.vocab_size)
        self._faults = settings.parsed_faults()
        self._limits = HttpLimits(
            max_header_bytes=settings.max_header_bytes,
            max_body_bytes=settings.max_body_bytes,
            keep_alive_timeout_s=settings.keep_alive_timeout_s,
        )
        self._exposition = Exposition(settings, [engine.metrics for engine in self.engines], self.counters)
        self._connections: set[HttpConnection] = set()
        self._no_connections = asyncio.Event()
        self._replies: dict[HttpConnection, Reply] = {}
        # Records of aborted requests wait for the end of the step under way, whose token still counts.
        self._aborting: list[Reply] = []
        self._num_requests = 0
        self._created = int(time.time())
        self._truth: TruthLog | None = None
        self._server: asyncio.Server | None = None

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, ssl_context: ssl.SSLContext | None = None
    ) -> Self:
        """
        Listen.

        Args:
            host: Address of an interface.
            port: 0: any free one; ``self.port`` tells which.
            ssl_context: Serve TLS with it.

        Raises:
            OSError: The address is taken or the truth log cannot be written.
        """
        self.loop = asyncio.get_running_loop()
        self._loops = tuple(
            EngineLoop(core, self.loop, time.monotonic_ns, self._on_tokens) for core in self.engines
        )
        if self.settings.truth_log is not None:
            self._truth = TruthLog(self.settings.truth_log, self.loop)
        try:
            self._server = await self.loop.create_server(
                lambda: HttpConnection(self, self.loop, self._limits),
                host,
                port,
                ssl=ssl_context,
                backlog=_BACKLOG,
            )
        except OSError:
            if self._truth is not None:
                self._truth.close()
            raise
        self.host = host
        self.port = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if ssl_context is None else 'https'}://{shown}:{self.port}"
        return self

    async def close(self) -> None:
        """End all streams with an error event, close all connections and the truth log."""
        for engine_loop in self._loops:
            engine_loop.close()
        if self._server is not None:
            self._server.close()
        for reply in list(self._replies.values()):
            reply.fail(ENGINE_DEAD_MESSAGE, "InternalServerError", 500)
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._no_connections.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._no_connections.wait()
        for reply in self._aborting:
            self._write_truth(reply)
        self._aborting.clear()
        if self._truth is not None:
            self._truth.close()
            self._truth = None

    async def __aenter__(self) -> Self:
        """Listen on any free port of the loopback interface, unless started already."""
        return self if self._server is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @property
    def max_lag_s(self) -> float:
        """Latest that a step ended behind its deadline; tells whether the server itself kept its pace."""
        return max((engine_loop.max_lag_ns for engine_loop in self._loops), default=0) / 1e9

    # Handler of the connections.

    def connection_opened(self, connection: HttpConnection) -> None:
        """Take note."""
        self._connections.add(connection)

    def connection_closed(self, connection: HttpConnection) -> None:
        """Abort what it was waiting for."""
        self._connections.discard(connection)
        if not self._connections:
            self._no_connections.set()
        reply = self._replies.get(connection)
        if reply is not None:
            reply.disconnect()

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a request."""
        method = _ROUTES.get(request.path)
        if method is None:
            self._plain(connection, request, 404, b'{"detail":"Not Found"}', handler="none")
        elif request.method != method and not (method == "GET" and request.method == "HEAD"):
            self._plain(connection, request, 405, b'{"detail":"Method Not Allowed"}')
        elif request.path.startswith("/v1/") and not self._authorized(request):
            self._plain(connection, request, 401, b'{"error":"Unauthorized"}')
        elif request.path in _GENERATION:
            self._generate(connection, request, _GENERATION[request.path])
        elif request.path == "/tokenize":
            self._tokenize(connection, request)
        else:
            self._get(connection, request)

    # Host of the replies.

    def reply_ended(self, reply: Reply) -> None:
        """Forget a reply and write its record."""
        self._replies.pop(reply.connection, None)
        if reply.truth.status is not None:
            self.counters.count(_handler_of(reply.api), "POST", reply.truth.status)
        if reply.request is not None and reply.request.status != "finished":
            self._aborting.append(reply)
        else:
            self._write_truth(reply)

    def abort_request(self, request: SimRequest) -> None:
        """Take a request out of its engine."""
        reply: Reply = request.owner
        engine = reply.truth.engine
        if engine is not None:
            self._loops[engine].abort(request)

    # Below: private.

    def _on_tokens(self, produced: list[SimRequest]) -> None:
        for request in produced:
            reply: Reply = request.owner
            reply.on_token(request)
        if self._aborting:
            self._write_aborted()

    def _authorized(self, request: HttpRequest) -> bool:
        key = self.settings.api_key
        if key is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(given.encode(), key.encode())

    def _plain(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        handler: str | None = None,
    ) -> None:
        self.counters.count(handler or request.path, request.method, status)
        connection.respond(status, body, content_type, self._extra_headers(request))

    def _extra_headers(self, request: HttpRequest) -> str:
        if not self.settings.enable_request_id_headers:
            return ""
        given = request.headers.get("x-request-id") or secrets.token_hex(16)
        return f"x-request-id: {given}\r\n"

    def _get(self, connection: HttpConnection, request: HttpRequest) -> None:
        if request.path == "/metrics":
            kind = "text/plain; version=1.0.0; charset=utf-8"
            self._plain(connection, request, 200, self._exposition.render(), content_type=kind)
        elif request.path == "/v1/models":
            body = models_body(self.settings.model, self.settings.max_model_len, self._created)
            self._plain(connection, request, 200, body)
        elif request.path == "/version":
            self._plain(connection, request, 200, orjson.dumps({"version": VLLM_VERSION}))
        else:
            self._plain(connection, request, 200, b"")

    def _tokenize(self, connection: HttpConnection, request: HttpRequest) -> None:
        try:
            body = api_module.load_json(request.body)
            api_module.check_model(body, self.settings)
            if "messages" in body:
                add = body.get("add_generation_prompt") is not False
                ids = self._tokenizer.encode_chat(api_module.chat_messages(body), generation_prompt=add)
            elif isinstance(body.get("prompt"), str):
                ids = list(self._tokenizer.encode(body["prompt"]))
            else:
                raise ApiError(400, "Give prompt (a string) or messages.", param="prompt")
        except ApiError as error:
            self._plain(connection, request, error.status, orjson.dumps({"error": error.body}))
            return
        strings = self._tokenizer.token_strings(ids) if body.get("return_token_strs") else None
        answer = {
            "count": len(ids),
            "max_model_len": self.settings.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        self._plain(connection, request, 200, orjson.dumps(answer))

    def _generate(self, connection: HttpConnection, request: HttpRequest, endpoint: Endpoint) -> None:
        self._num_requests += 1
        number = self._num_requests
        fault = choose_fault(self._faults, number, self.settings.seed) if self._faults else None
        truth = TruthRecord(
            number=number,
            request_id=request.headers.get("x-request-id"),
            peer=connection.peer,
            endpoint=endpoint,
            arrival_ns=time.monotonic_ns(),
            fault=None if fault is None else fault.kind,
        )
        try:
            if fault is not None and fault.kind == "http_error":
                raise ApiError(fault.code, "Injected by the simulator.", kind="InternalServerError")
            parsed = api_module.parse_generation(
                endpoint, api_module.load_json(request.body), self.settings, self._tokenizer
            )
            truth.stream = parsed.stream
            truth.prompt_tokens = len(parsed.prompt)
            overflow = self._queue_is_full()
            if overflow and not (parsed.stream and self.settings.queue_overflow == "in_stream"):
                raise ApiError(503, BUSY_MESSAGE, kind=_BUSY_TYPE)
        except ApiError as error:
            truth.status = error.status
            truth.error = str(error)
            truth.headers_sent_ns = truth.end_sent_ns = time.monotonic_ns()
            self._plain(connection, request, error.status, orjson.dumps({"error": error.body}))
            if self._truth is not None:
                self._truth.write(truth)
            return
        self._admit(connection, request, parsed, fault, truth, overflow=overflow)

    def _queue_is_full(self) -> bool:
        limit = self.settings.max_num_queued_reqs
        if limit is None or sum(engine.scheduler.num_unfinished for engine in self.engines) < limit:
            return False
        self.counters.rejected_reqs += 1
        return True

    def _admit(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        parsed: GenerationRequest,
        fault: Fault | None,
        truth: TruthRecord,
        *,
        overflow: bool,
    ) -> None:
        """Start the reply and hand the request to an engine; or, when the queue overflows, end it in the stream."""
        name = truth.request_id or secrets.token_hex(8)
        truth.answer_id = f"{'chatcmpl' if parsed.endpoint == 'chat' else 'cmpl'}-{name}"
        sim_request, answer = build_request(parsed, name, self.settings)
        reply = (StreamReply if parsed.stream else WholeReply)(
            self,
            connection,
            parsed,
            answer=answer,
            answer_id=truth.answer_id,
            extra_headers=self._extra_headers(request),
            fault=fault,
            truth=truth,
        )
        self._replies[connection] = reply
        reply.start()
        if overflow:
            reply.fail(BUSY_MESSAGE, _BUSY_TYPE, 503)
            return
        engine = least_loaded([core.scheduler for core in self.engines])
        truth.engine = engine
        sim_request.owner = reply
        reply.request = sim_request
        self._loops[engine].submit(sim_request)

    def _write_aborted(self) -> None:
        aborting, self._aborting = self._aborting, []
        for reply in aborting:
            if reply.request is not None and reply.request.status != "finished":
                self._aborting.append(reply)
            else:
                self._write_truth(reply)

    def _write_truth(self, reply: Reply) -> None:
        if self._truth is None:
            return
        request, truth = reply.request, reply.truth
        if request is not None:
            truth.admitted_ns = request.scheduled_ns
            truth.finish_reason = "abort" if truth.aborted else request.finish_reason
            truth.completion_tokens = request.num_output_tokens
            truth.cached_tokens = request.num_cached_tokens
            truth.num_preemptions = request.num_preemptions
        self._truth.write(truth)


def _handler_of(parsed: GenerationRequest) -> str:
    return "/v1/chat/completions" if parsed.endpoint == "chat" else "/v1/completions"
