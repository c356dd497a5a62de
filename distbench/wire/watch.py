"""
Who waits for the sockets' bytes: one epoll of this client's own for all of them, behind the event loop (floor F2).

An event loop's own add_reader costs about a tenth of a token: it looks at each socket again after every read, to learn that nothing is
left, and enters each callback through its own machinery. Here the loop waits for one descriptor, an epoll of all sockets, which
reports an arrival once ("edge-triggered") and is asked for many at a time. Where there is no epoll the loop's add_reader stands in.

What edge-triggering asks of a callback: it returns True where more may be left to read, so that it is called again. A socket that
is a Stream is read with others by the hot path (hot_path.py) as long as its peer has not closed.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Protocol

from distbench.wire import hot_path
from distbench.wire.stamps import process_clocks
from distbench.wire.sweep import Stream

OnReadable = Callable[[], bool]
"""Takes one read; returns whether it took bytes, after which the end of the connection may be next."""


class Watch(Protocol):
    """Calls a socket's callback when there is something to read."""

    def add(self, fd: int, on_readable: OnReadable, stream: Stream | None = None) -> None:
        """Watch a socket from now on; what is there already counts. The stream is the same socket, where it is one."""
        ...

    def remove(self, fd: int) -> None:
        """Stop, before the socket is closed."""
        ...

    def again(self, fd: int) -> None:
        """Call a socket's callback once more at the loop's next turn: its last read may have left bytes behind."""
        ...


class LoopWatch:
    """The loop's own way, which looks at a socket again by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, fd: int, on_readable: OnReadable, stream: Stream | None = None) -> None:
        """Watch a socket."""
        self._loop.add_reader(fd, on_readable)

    def remove(self, fd: int) -> None:
        """Stop watching it."""
        self._loop.remove_reader(fd)

    def again(self, fd: int) -> None:
        """Do nothing: the loop reports the socket as long as bytes are left."""


class EpollWatch:
    """One edge-triggered epoll for all sockets of a loop; it exists while there is a socket to watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, OnReadable] = {}
        self._streams: dict[int, Stream] = {}
        self._read_ready = hot_path.in_use.read_ready
        self._clocks = process_clocks()
        self._epoll: select.epoll | None = None
        self._left_over: set[int] = set()

    def add(self, fd: int, on_readable: OnReadable, stream: Stream | None = None) -> None:
        """Watch a socket."""
        if self._epoll is None:
            self._epoll = select.epoll()
            _watches[self._loop] = self
            self._loop.add_reader(self._epoll.fileno(), self._on_events)
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._callbacks[fd] = on_readable
        if stream is not None:
            self._streams[fd] = stream

    def remove(self, fd: int) -> None:
        """Stop watching it; the epoll goes with the last one."""
        epoll = self._epoll
        if epoll is None or self._callbacks.pop(fd, None) is None:
            return
        self._streams.pop(fd, None)
        self._left_over.discard(fd)
        epoll.unregister(fd)
        if not self._callbacks:
            self._loop.remove_reader(epoll.fileno())
            epoll.close()
            self._epoll = None
            _watches.pop(self._loop, None)

    def again(self, fd: int) -> None:
        """Call it once more at the next turn, so that one long answer does not keep all others waiting."""
        if not self._left_over:
            self._loop.call_soon(self._on_left_over)
        self._left_over.add(fd)

    def _on_events(self) -> None:
        epoll = self._epoll
        if epoll is None:
            return
        for fd, events, read, ancillary in self._read_ready(epoll, self._streams, self._clocks.check()):
            if read is None:
                self._call(fd, is_closed=events != select.EPOLLIN)
            else:
                self._hand_out(fd, read, ancillary)

    def _hand_out(self, fd: int, read: bytes | OSError, ancillary: list[Any]) -> None:
        """Give a stream what its read gave."""
        stream = self._streams.get(fd)
        if stream is None:  # removed by a callback before it
            return
        try:
            if isinstance(read, bytes):
                stream.take_read(read, ancillary)
            else:
                stream.take_error(read)
        except Exception as error:
            self._tell(error)

    def _call(self, fd: int, *, is_closed: bool) -> None:
        """Call a socket's callback; where the peer has closed, which is not reported again, until that is seen."""
        callback_of = self._callbacks.get
        callback = callback_of(fd)
        try:
            # It may have been removed by a callback before it.
            while callback is not None and callback() and is_closed and callback_of(fd) is callback:
                pass
        except Exception as error:
            # The events behind this one will not be reported again, so they must not be lost with it.
            self._tell(error)

    def _on_left_over(self) -> None:
        left_over, self._left_over = self._left_over, set()
        for fd in left_over:
            self._call(fd, is_closed=False)

    def _tell(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a connection's reader failed", "exception": error})


_watches: dict[asyncio.AbstractEventLoop, EpollWatch] = {}


def watch_of(loop: asyncio.AbstractEventLoop) -> Watch:
    """Return the watch for a new socket of a loop: the one that its other sockets have, if there are any."""
    if not hasattr(select, "epoll"):
        return LoopWatch(loop)
    return _watches.get(loop) or EpollWatch(loop)
