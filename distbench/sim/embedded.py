"""
The simulated server in a child process (floor F3): an interpreter lock of its own, so it does not slow the client that measures it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from distbench.errors import DistbenchError
from distbench.sim.settings import SimSettings

_STOP_TIMEOUT_S = 5.0


class EmbeddedServerError(DistbenchError):
    """The simulated server's process did not come up; the message carries what it said."""


class EmbeddedServer:
    """
    A server in a child process; a context manager.

    The child ends when the context ends, and also when this process dies in any way: it watches its standard input.

    Args:
        settings: The server's parameters.
        host: Address of an interface.
        port: 0: any free one.
        start_timeout_s: Limit for the child to listen.
    """

    def __init__(
        self, settings: SimSettings, *, host: str = "127.0.0.1", port: int = 0, start_timeout_s: float = 30.0
    ) -> None:
        self.settings = settings
        self.url = ""
        self.port = 0
        self._host = host
        self._asked_port = port
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the child."""
        if self._process is None:
            raise RuntimeError("the embedded server is not running")
        return self._process.pid

    def start(self) -> Self:
        """
        Start the child and wait until it listens.

        Raises:
            EmbeddedServerError: It did not in time, or it ended.
        """
        command = [
            sys.executable,
            "-m",
            "distbench.sim",
            "--settings",
            "-",
            "--host",
            self._host,
            "--port",
            str(self._asked_port),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._hand_over_settings()
            ready = json.loads(self._read_ready_line())
        except (OSError, ValueError) as error:
            message = self._end_and_read_errors()
            raise EmbeddedServerError(f"the simulated server did not start: {message or error}") from error
        self.url, self.port = ready["url"], ready["port"]
        return self

    def stop(self) -> None:
        """End the child: first by closing its input, then by force; a second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def __enter__(self) -> Self:
        """Start, unless started already."""
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _hand_over_settings(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("the embedded server is not running")
        process.stdin.write(json.dumps(self.settings.to_dict()).encode() + b"\n")
        process.stdin.flush()

    def _read_ready_line(self) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the embedded server is not running")
        deadline = time.monotonic() + self._start_timeout_s
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise OSError(f"no answer within {self._start_timeout_s:g} s")
        return process.stdout.readline()

    def _end_and_read_errors(self) -> str:
        process = self._process
        if process is None:
            return ""
        process.kill()
        errors = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
        self.stop()
        return errors
