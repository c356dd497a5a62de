"""
A wake-up at an absolute time, finer than the loop's own timers (floor F3).

Event loops round timers to whole milliseconds: a schedule of 2,000 requests per second would leave in clumps of two, or the loop
would spin. Linux has timers that epoll waits for with the rest, exact to some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from time import monotonic_ns

from distbench.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _ItimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """
    Calls back on the running loop at a time of CLOCK_MONOTONIC; one deadline at a time, the last one set holds.

    Without timerfd (other systems) it falls back to the loop's timers and their grain.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        """Prepare on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._spec = _ItimerSpec(0, 0, 0, 0)
        self._libc, self._fd = _timer_file()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._on_fd)

    def set(self, deadline_ns: int) -> None:
        """Ring at the deadline, or at once where it has passed."""
        if self._fd is None:
            self._set_on_loop(deadline_ns)
            return
        # A value of zero would disarm the timer.
        self._spec.value_s, self._spec.value_ns = divmod(max(1, deadline_ns), NS_PER_S)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Ring no more; a second call does nothing."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set_on_loop(self, deadline_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay_s = max(0.0, (deadline_ns - monotonic_ns()) / NS_PER_S)
        self._handle = self._loop.call_later(delay_s, self._callback)

    def _on_fd(self) -> None:
        try:
            os.read(self._fd or 0, 8)
        except BlockingIOError:  # set anew since it became readable
            return
        self._callback()


def _timer_file() -> tuple[ctypes.CDLL, int | None]:
    libc = ctypes.CDLL(None)
    try:
        fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC))
    except AttributeError:
        return libc, None
    return libc, fd if fd >= 0 else None


async def sleep_until_ns(deadline_ns: int) -> None:
    """Return at the deadline on CLOCK_MONOTONIC, by an Alarm; at once where it has passed."""
    if deadline_ns <= monotonic_ns():
        return
    rung = asyncio.get_running_loop().create_future()
    alarm = Alarm(lambda: None if rung.done() else rung.set_result(None))
    try:
        alarm.set(deadline_ns)
        await rung
    finally:
        alarm.close()
