"""A tiny HTTP server with a table of answers, for what is asked before the load (not for timing)."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """One answer: status, body (JSON unless bytes), headers."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Seen:
    """One request as it arrived; body is the JSON, None where there was none."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Answer = Reply | Callable[[Seen], Reply]

STREAM = Reply(
    body=b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n',
    headers={"Content-Type": "text/event-stream"},
)
ONE_MODEL = Reply(body={"object": "list", "data": [{"id": "m", "max_model_len": 4096}]})


@contextmanager
def stub_server(routes: Mapping[str, Answer]) -> Iterator[tuple[str, list[Seen]]]:
    """
    Serve on loopback until the block ends.

    Args:
        routes: "METHOD /path" -> answer; anything else is a 404 with FastAPI's body.

    Yields:
        The base URL, and the list of what was asked so far.
    """
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            asked = Seen(method, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            seen.append(asked)
            answer = routes.get(f"{method} {self.path}", Reply(404, {"detail": "Not Found"}))
            reply = answer(asked) if callable(answer) else answer
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
