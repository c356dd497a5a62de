"""
Does the answer come as it is made (floor F4): one streamed request, and what its arrival times tell.

A proxy that buffers, a compressor, or a gateway that asks for the whole answer first make the times of tokens those of its own
flushes. This shows in arrival times alone: tokens that a model makes one after the other come in lumps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from distbench.client.codec import Codec
from distbench.client.messages import RequestSettings
from distbench.core.content import messages_id
from distbench.core.prompts import Prompt
from distbench.experiment.doctor.check import Check, ok, warn
from distbench.units import ns_to_s, s_to_ms
from distbench.wire.base import WireTarget
from distbench.wire.factory import open_connection

TOKENS = 32
_MESSAGES = (("user", "Count from one to one hundred in words."),)
# No server makes tokens of one sequence faster than this; what comes closer together was held back and let go at once.
_SAME_LUMP_NS = 300_000
# An answer that is over sooner may well come in one piece.
_TELLING_S = 0.1
_FEW_CHUNKS = 4
_LUMPY_RATIO = 4.0
# Servers that guess ahead put up to a handful of tokens into one event.
_BUNDLED_RATIO = 8.0
_ADVICE = (
    "turn buffering off on the way (nginx: proxy_buffering off; gzip off for text/event-stream), or measure the server's own "
    "address; until then TTFT and TPOT are those of the buffer"
)
# Headers that something between client and server has added, and what it is called.
_PROXY_HEADERS = ("via", "x-cache", "x-served-by", "cf-ray", "x-envoy-upstream-service-time", "x-amz-cf-id")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamReading:
    """
    One streamed answer.

    Attributes:
        headers: Of the response, names in lower case.
        arrivals_ns: Of each token-bearing chunk, from the sending on, ascending.
        tokens: Completion tokens by the server's count; None: not told.
        e2e_s: From sending to the last token; None where none came.
        error: Why the request failed, one sentence; None.
    """

    headers: Mapping[str, str]
    arrivals_ns: tuple[int, ...]
    tokens: int | None
    e2e_s: float | None
    error: str | None = None


def ask_for_stream(target: WireTarget, request: RequestSettings) -> StreamReading:
    """Ask one target for a short answer and note when its parts arrive, on a connection of its own."""
    return asyncio.run(_ask(target, request))


async def _ask(target: WireTarget, request: RequestSettings) -> StreamReading:
    codec = Codec(request)
    connection = open_connection("fast", target, codec.token_seen)
    prompt = Prompt(messages=_MESSAGES, max_tokens=TOKENS, prompt_id=messages_id(_MESSAGES))
    try:
        exchange = await connection.exchange(0, codec.encode(prompt))
    finally:
        await connection.close()
    answer = codec.read(exchange)
    sent_ns = exchange.sent_ns
    arrivals = () if sent_ns is None else tuple(stamp_ns - sent_ns for stamp_ns in answer.chunk_ns)
    return StreamReading(
        headers=dict(exchange.headers),
        arrivals_ns=arrivals,
        tokens=answer.completion_tokens,
        e2e_s=ns_to_s(arrivals[-1]) if arrivals else None,
        error=None if answer.error_kind is None else f"{answer.error_kind}: {answer.error_text}",
    )


def lumps(arrivals_ns: Sequence[int]) -> int:
    """Return in how many lumps the chunks came: those that no server could have made apart count as one."""
    if not arrivals_ns:
        return 0
    return 1 + sum(after - before >= _SAME_LUMP_NS for before, after in itertools.pairwise(arrivals_ns))


def check_stream(reading: StreamReading) -> Check:
    """Tell whether something between the model and here holds tokens back."""
    if reading.error is not None or reading.e2e_s is None:
        return warn(
            "stream",
            f"a request for {TOKENS} tokens failed: {reading.error or 'no token came'}",
            "the server's log may say why; a run would count such requests as failed",
        )
    chunks, parts = len(reading.arrivals_ns), lumps(reading.arrivals_ns)
    tokens = chunks if reading.tokens is None else reading.tokens
    time_text = f"{s_to_ms(reading.e2e_s):,.0f} ms"
    values = {"tokens": tokens, "chunks": chunks, "lumps": parts, "e2e_s": reading.e2e_s}
    encoding = reading.headers.get("content-encoding", "identity")
    if encoding != "identity":
        text = f"the answer is compressed ({encoding}) though that was declined: tokens come when the compressor lets go"
        return warn("stream", text, _ADVICE, **values)
    if chunks == 1 and tokens >= _FEW_CHUNKS:
        text = f"all {tokens} tokens came in a single event after {time_text}: the answer is made first and sent then"
        return warn("stream", text, _ADVICE, **values)
    if chunks >= _FEW_CHUNKS and reading.e2e_s >= _TELLING_S and chunks / parts >= _LUMPY_RATIO:
        how = "one lump" if parts == 1 else f"{parts} lumps"
        text = f"{chunks} chunks came in {how}, the last after {time_text}: something buffers the stream"
        return warn("stream", text, _ADVICE, **values)
    if tokens / chunks >= _BUNDLED_RATIO:
        text = f"{tokens} tokens came in {chunks} events, about {tokens / chunks:.0f} at a time: inter-token times cannot be seen"
        return warn("stream", text, f"is it the server (vLLM: --stream-interval)? Else {_ADVICE}", **values)
    if chunks < _FEW_CHUNKS or (reading.e2e_s < _TELLING_S and parts < chunks):
        return ok("stream", f"{tokens} tokens in {time_text}: too few or too fast to tell a buffer", **values)
    return ok(
        "stream", f"{tokens} tokens came in {parts} parts over {time_text}, as they were made", **values
    )


def check_proxy(headers: Mapping[str, str]) -> Check:
    """Tell whether something stands between this machine and the server."""
    found = {name: headers[name][:80] for name in _PROXY_HEADERS if name in headers}
    server = headers.get("server", "")
    if any(
        word in server.lower() for word in ("nginx", "envoy", "cloudflare", "cloudfront", "awselb", "varnish")
    ):
        found["server"] = server[:80]
    if headers.get("x-accel-buffering", "no").lower() != "no":
        found["x-accel-buffering"] = headers["x-accel-buffering"][:80]
    if not found:
        return ok("proxy", "no sign of one in the answer's headers", headers={})
    text = ", ".join(f"{name}: {value}" for name, value in found.items())
    return warn(
        "proxy",
        f"something stands in between ({text})",
        "its limits of connections and its time-outs are measured as the server's; where the server alone is meant, give its own "
        "address",
        headers=found,
    )
