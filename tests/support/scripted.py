"""
Servers that send exactly the bytes of a script, segment by segment, and remember exactly what they were sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

_TURNS_BETWEEN_SEGMENTS = 3


class Act(enum.Enum):
    """What a server does other than sending."""

    CLOSE = "close in order"
    RESET = "close with a reset"
    HANG = "say nothing more until the client leaves"


Step = bytes | float | Act
"""Bytes are one segment, a number is a pause in seconds."""

Response = Sequence[Step]


def sse(*events: str, end: str = "data: [DONE]\n\n") -> bytes:
    """Return a stream's body of these data texts."""
    return "".join(f"data: {event}\n\n" for event in events).encode() + end.encode()


def chunk(piece: bytes) -> bytes:
    """Return a piece as one chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def chunked(*pieces: bytes, last: bytes = b"0\r\n\r\n") -> list[bytes]:
    """Return each piece as one chunk, a segment each, and the final chunk."""
    return [*map(chunk, pieces), last]


def head(
    *headers: str, status: str = "200 OK", version: str = "1.1", content_type: str = "text/event-stream"
) -> bytes:
    """Return a response head."""
    lines = [
        f"HTTP/{version} {status}",
        *([f"Content-Type: {content_type}"] if content_type else []),
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(
    body: bytes, *headers: str, status: str = "200 OK", content_type: str = "application/json"
) -> bytes:
    """Return a response with Content-Length in one segment."""
    return head(*headers, f"Content-Length: {len(body)}", status=status, content_type=content_type) + body


def stream(*pieces: bytes, headers: Iterable[str] = ()) -> list[Step]:
    """Return a chunked stream, head first, a segment per piece."""
    return [head(*headers, "Transfer-Encoding: chunked"), *chunked(*pieces)]


def byte_by_byte(*steps: bytes) -> list[Step]:
    """Return the same bytes, one per segment."""
    return [bytes([byte]) for byte in b"".join(steps)]


@dataclasses.dataclass(slots=True)
class Seen:
    """
    What one server saw.

    Attributes:
        port: Where it listens on 127.0.0.1.
        requests: Whole requests, head and body, in the order of their ends.
        accepts: Connections so far.
        sent_ns: Monotonic time just before each segment was written, with the segment.
    """

    port: int = 0
    requests: list[bytes] = dataclasses.field(default_factory=list)
    accepts: int = 0
    sent_ns: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> str:
        """Return the URL of its chat endpoint."""
        return f"{scheme}://{host}:{self.port}/v1/chat/completions"


@asynccontextmanager
async def scripted_server(
    *connections: Sequence[Response], tls: ssl.SSLContext | None = None, read_requests: bool = True
) -> AsyncIterator[Seen]:
    """
    Serve scripts on a free port of 127.0.0.1.

    Args:
        connections: For each accepted connection the responses to its requests, one a request; the last entry serves all further
            connections. After its last response a connection is kept open.
        tls: Serve https.
        read_requests: False acts out the first response at once, without waiting for a request.
    """
    seen = Seen()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
        seen.accepts += 1
        script = connections[min(seen.accepts, len(connections)) - 1]
        try:
            await _act(seen, script, reader, writer, read_requests)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass  # the client has left, or the test is over
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)
            if task is not None:
                tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _act(
    seen: Seen,
    script: Sequence[Response],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    read_requests: bool,
) -> None:
    for response in script:
        if read_requests:
            seen.requests.append(await _read_request(reader))
        for step in response:
            if isinstance(step, bytes):
                seen.sent_ns.append((time.monotonic_ns(), step))
                writer.write(step)
                await writer.drain()
                # The client shares this loop: some turns of it let one segment be read before the next is sent.
                for _ in range(_TURNS_BETWEEN_SEGMENTS):
                    await asyncio.sleep(0)
            elif isinstance(step, Act):
                await _end(step, reader, writer)
                return
            else:
                await asyncio.sleep(step)
    await reader.read()


async def _end(act: Act, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if act is Act.HANG:
        while await reader.read(65_536):
            pass
    elif act is Act.RESET:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    request = await reader.readuntil(b"\r\n\r\n")
    for line in request.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            request += await reader.readexactly(int(value))
    return request


def refused_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port
