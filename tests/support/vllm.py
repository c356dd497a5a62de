"""
Real vLLM servers for the tests marked `vllm`, through scripts/real-vllm: the same that a person starts by hand.

A start takes from 20 seconds to a minute, so a server lives until the tests end and is shared by all tests that ask for the
same flags. Its counters therefore never start at zero: compare readings from before and after.
"""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import REAL_VLLM, missing, skip_or_fail
from tests.support.ports import free_port

MODEL = "tiny"
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    process: subprocess.Popen[bytes]
    url: str


class VllmServers:
    """
    The servers of one test run, one for each set of flags.

    Args:
        folder: An existing folder for the servers' logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[tuple[str, ...], _Server] = {}

    def url(self, *flags: str) -> str:
        """
        Return the base URL, without the /v1, of a server with these flags; starts it when there is none.

        Args:
            flags: vLLM's own, added to those of scripts/real-vllm and stronger than they, such as "--max-num-seqs", "4".
        """
        reason = missing("vllm")
        if reason is not None:
            skip_or_fail(f"needs vllm: {reason}")
        server = self._servers.get(flags)
        if server is None or server.process.poll() is not None:
            server = self._start(flags)
            self._servers[flags] = server
        return server.url

    def stop(self) -> None:
        """End all servers with all their processes."""
        for server in self._servers.values():
            _end_group(server.process)
        self._servers.clear()

    def _start(self, flags: tuple[str, ...]) -> _Server:
        port = free_port()
        log = self._folder / f"vllm-{port}.log"
        with log.open("wb") as output:
            # A session of its own makes it the leader of a group, so that its children end with it.
            process = subprocess.Popen(
                [REAL_VLLM, "serve", "--port", str(port), "--", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                _end_group(process)
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"vLLM with {flags} did not come up:\n{tail}")
            time.sleep(0.25)
        return _Server(process=process, url=url)


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(f"{url}/health", timeout=2):
            return True
    except (OSError, urllib.error.URLError):
        return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for end in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, end)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
