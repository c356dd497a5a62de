"""
The C reference server of scripts/bench: build it, run it, read its truth log.

    with MockServer(build("mockserver"), folder, itl_ms=20) as server:
        ...  # requests to server.url
    truth = server.truth()  # request id -> when it was read and every token sent

All times are CLOCK_MONOTONIC of this host, in ns, so they compare with `time.monotonic_ns()` of any process on it. Tests
take the fixture `mock_server`, which skips where there is no C compiler; mark them `bench`.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

_SOURCES = Path(__file__).resolve().parents[2] / "scripts" / "bench"
_MAGIC = 0x5452555448303031
_NUM_FIELDS = 8
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 30.0


def build(name: str) -> Path:
    """
    Compile one of the programs of scripts/bench, once for each state of its source.

    Args:
        name: "mockserver" or "climit".

    Returns:
        The program, in a folder of this user under the system's temporary one.

    Raises:
        subprocess.CalledProcessError: The compiler refused it.
    """
    source = _SOURCES / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"distbench-bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = folder / f"{name}-{digest}"
    if not program.exists():
        # Built aside and renamed, so that another test process never starts half of it.
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O2", "-o", unfinished, source], check=True)
        unfinished.rename(program)
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueRequest:
    """
    What the server saw of one request.

    Attributes:
        request_id: X-Request-Id as a number; 0 when there was none or it was no decimal.
        read_ns: The last byte of the request was read.
        admit_ns: The request got a place in the batch; None when it never did.
        end_ns: The last byte was handed to the kernel, or the client was seen to be gone.
        aborted: The client went away before the end.
        chat: A chat completion, not a text completion.
        stream: The answer was streamed.
        body_bytes: Length of the request's body.
        token_ns: Shape (tokens,), ascending: the moment before each token's send(). Without streaming: when it was made.
    """

    request_id: int
    read_ns: int
    admit_ns: int | None
    end_ns: int
    aborted: bool
    chat: bool
    stream: bool
    body_bytes: int
    token_ns: npt.NDArray[np.int64]


def read_truth_log(path: Path) -> list[TrueRequest]:
    """
    Read a whole truth log, in the order in which the requests ended.

    Raises:
        ValueError: The file is not a truth log, or its end is missing.
    """
    words = np.fromfile(path, dtype=np.int64)
    requests = []
    at = 0
    while at < len(words):
        fields = words[at : at + _NUM_FIELDS].tolist()
        if len(fields) < _NUM_FIELDS or fields[0] != _MAGIC or at + _NUM_FIELDS + fields[5] > len(words):
            raise ValueError(f"{path}: no whole record at word {at}; did the server end by itself?")
        _, request_id, read_ns, admit_ns, end_ns, num_tokens, flags, body_bytes = fields
        at += _NUM_FIELDS
        requests.append(
            TrueRequest(
                request_id=request_id,
                read_ns=read_ns,
                admit_ns=admit_ns or None,  # a clock since boot never reads 0: the server's mark for "never"
                end_ns=end_ns,
                aborted=bool(flags & 1),
                chat=bool(flags & 2),
                stream=bool(flags & 4),
                body_bytes=body_bytes,
                token_ns=words[at : at + num_tokens],
            )
        )
        at += num_tokens
    return requests


class MockServer:
    """
    One running reference server on 127.0.0.1, on a port that it picks.

    Args:
        program: What `build("mockserver")` returned.
        folder: An existing folder for the truth log.
        ttft_ms: Time from admission to the first token.
        itl_ms: The decode clock's period; 0 sends as fast as the clients read.
        max_running: Requests in the batch at once; None = no limit.
        finish_separate: The finish reason comes in an event of its own, without text.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        *,
        ttft_ms: float = 0.0,
        itl_ms: float = 0.0,
        max_running: int | None = None,
        finish_separate: bool = False,
    ) -> None:
        self._log = folder / f"truth-{os.urandom(4).hex()}.bin"
        self._command = [str(program), "--port", "0", "--log", str(self._log)]
        self._command += ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
        if max_running is not None:
            self._command += ["--max-running", str(max_running)]
        if finish_separate:
            self._command.append("--finish-separate")
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.counters: dict[str, float] = {}

    @property
    def url(self) -> str:
        """Base URL without the /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, to measure or pin it."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if not first:
            raise RuntimeError(
                f"the mock server ended at the start with {self._process.wait(_START_TIMEOUT_S)}"
            )
        self.port = json.loads(first)["port"]

    def stop(self) -> None:
        """End the server; its counters and truth log are complete after that. Does nothing the second time."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            output, _ = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        finally:
            self._process = None
        self.counters = json.loads(output)

    def requests(self) -> list[TrueRequest]:
        """Return what the server saw, in the order in which the requests ended; those without an id too."""
        assert self._process is None, "the truth log is complete only after stop()"
        return read_truth_log(self._log)

    def truth(self) -> dict[int, TrueRequest]:
        """
        Return what the server saw, by request id; requests without an id are left out.

        Raises:
            ValueError: Two requests carried the same id.
        """
        named = [request for request in self.requests() if request.request_id]
        by_id = {request.request_id: request for request in named}
        if len(by_id) < len(named):
            raise ValueError(f"{len(named) - len(by_id)} requests carried an id that another one had")
        return by_id

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
