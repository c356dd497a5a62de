"""
Stamps against the truth: the C mock server's log, joined by request id on this machine's one monotonic clock.

What makes them hold beside busy processes are the kernel's stamps: a client that gets its core late still learns when the bytes had
come. Only tokens that share a read share a stamp; those are marked as bundled and left out, here as in every report. A machine that
is loaded beyond that can spoil a single attempt, so each claim has three.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from distbench.analysis.arrays import integers
from scripts.bench.contenders import Load, connection
from scripts.bench.processes import Cores, pin, run
from scripts.bench.throttle import DutyCycle, Throttle, throttle
from scripts.bench.truth import ServerView, StampErrors, server_view, stamp_errors, stamps_of_rows
from tests.support import cmock

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(300)]

_ATTEMPTS = 3
_BUSY = "while True: pass"
_Seen = TypeVar("_Seen")


def send(
    folder: Path, load: Load, *, realtime: bool = False
) -> tuple[StampErrors, ServerView, dict[str, Any]]:
    """Send a load with one client at a token each 20 ms; return its stamps' errors, the server's view, and its own words."""
    folder.mkdir()
    contender, cores = connection(), Cores.of_this_machine()
    with cmock.MockServer(cmock.build("mockserver"), folder, ttft_ms=50, itl_ms=20) as server:
        pin(server.pid, cores.server, realtime=realtime)
        usage = run(contender.command(load, server.port, folder), core=cores.client, realtime=realtime)
    assert contender.stamps is not None
    view = server_view(server.requests(), load.connections)
    errors = stamp_errors(server.truth(), contender.stamps(folder, usage.output))
    assert view is not None
    assert errors is not None
    return errors, view, json.loads(usage.output)


def best_of(attempt: Callable[[int], tuple[bool, _Seen]]) -> _Seen:
    """Try up to three times until an attempt is good; return what the last one saw."""
    number = 0
    is_good, seen = attempt(number)
    while not is_good and (number := number + 1) < _ATTEMPTS:
        is_good, seen = attempt(number)
    return seen


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Let so many processes burn what processor time they get, beside the block."""
    burners = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize("burners", [0, 2], ids=["idle", "two_busy_processes_beside"])
def test_stamps_lie_within_a_millisecond_of_the_sending(tmp_path: Path, burners: int) -> None:
    """256 connections, a token each 20 ms: arrival minus the server's sending is at most 1 ms at p99 for unbundled tokens."""
    load = Load(connections=256, requests=768, tokens=32)

    def attempt(number: int) -> tuple[bool, StampErrors]:
        errors, _, told = send(tmp_path / str(number), load)
        assert (told["ok"], told["user_stamps"], errors.num_tokens) == (768, 0, 768 * 32)
        return errors.p99_ms <= 1.0, errors

    with busy_processes(burners):
        errors = best_of(attempt)

    assert errors.p99_ms <= 1.0
    assert errors.p50_ms >= 0


def test_server_holds_what_was_asked(tmp_path: Path) -> None:
    """Over the window at least 98 % of the 256 connections have a request at the server."""
    load = Load(connections=256, requests=1_024, tokens=64)

    def attempt(number: int) -> tuple[bool, ServerView]:
        # Ahead of other work where that is allowed: whether this client can hold the load is asked, not how busy the machine is.
        _, view, _ = send(tmp_path / str(number), load, realtime=os.geteuid() == 0)
        return view.in_flight >= 0.98 * 256, view

    view = best_of(attempt)

    assert view.in_flight >= 0.98 * 256


def slowed_run(folder: Path, slow: Throttle, load: Load, *, itl_ms: float) -> cmock.MockServer:
    """Run `distbench run` without Ray, slowed on purpose once it sends; its run directory is folder/run."""
    folder.mkdir()
    server = cmock.MockServer(cmock.build("mockserver"), folder, ttft_ms=itl_ms, itl_ms=itl_ms)
    program = str(Path(sys.executable).with_name("distbench"))
    options = ["--connections", load.connections, "--requests", load.requests, "--output-tokens", load.tokens]
    command = [program, "run", "--quiet", "--json", "--ray-address", "none", "--output", folder / "run"]
    with server:
        url = f"http://127.0.0.1:{server.port}"
        process = subprocess.Popen(
            [str(word) for word in (*command, url, *options)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for_the_load(folder / "run", process)
            slow.hold(process.pid)
            process.wait(120)
        finally:
            slow.release()
            process.kill()
            _, errors = process.communicate()
    assert process.returncode == 0, errors
    return server


def _wait_for_the_load(run_dir: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the run has its plan, which it writes just before the first level."""
    deadline = time.monotonic() + 60
    while not (run_dir / "plan.toml").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


def judged(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the one level's row and the findings of a run."""
    (row,) = pq.read_table(run_dir / "levels.parquet").to_pylist()
    return row, json.loads((run_dir / "findings.json").read_text())


def is_flagged(run_dir: Path) -> bool:
    """Whether a run says that its client spoiled the figures: bundled, or limited by the client."""
    row, findings = judged(run_dir)
    kinds = {finding["kind"] for finding in findings["findings"]}
    return "bundled" in kinds or row["verdict"] == "client_limited" or findings["client"]["limited"]


def test_stalls_shorter_than_the_token_gap_do_not_enter_latencies(tmp_path: Path) -> None:
    """A client that stands still 20 ms of every 60, a token each 100 ms: stamps within 1 ms of the truth, and the lag is told."""
    load = Load(connections=16, requests=96, tokens=16)

    def attempt(number: int) -> tuple[bool, tuple[float, int]]:
        folder = tmp_path / str(number)
        server = slowed_run(folder, DutyCycle(2 / 3, period_s=0.06), load, itl_ms=100)
        info = json.loads((folder / "run" / "run.json").read_text())
        stamps = stamps_of_rows(folder / "run" / "requests", info["epoch_monotonic_ns"])
        errors = stamp_errors(server.truth(), stamps)
        assert errors is not None
        lags = ds.dataset(str(folder / "run" / "requests")).to_table(columns=["client_lag_us"])
        worst_us = int(integers(lags, "client_lag_us").max())
        return errors.p99_ms <= 1.0 and worst_us >= 10_000, (errors.p99_ms, worst_us)

    p99_ms, worst_us = best_of(attempt)

    assert p99_ms <= 1.0
    assert worst_us >= 10_000


def test_stalls_longer_than_the_token_gap_are_flagged(tmp_path: Path) -> None:
    """A client that stands still 200 ms of every 250, a token each 20 ms: bundled or client-limited, never a clean figure."""
    load = Load(connections=32, requests=160, tokens=64)

    slowed_run(tmp_path / "slow", DutyCycle(0.2, period_s=0.25), load, itl_ms=20)

    assert is_flagged(tmp_path / "slow" / "run")


def test_client_without_processor_time_is_flagged(tmp_path: Path) -> None:
    """A client that gets a twentieth of a core for 64 connections, a token each 10 ms, says that it was the limit."""
    load = Load(connections=64, requests=192, tokens=32)

    slowed_run(tmp_path / "starved", throttle(0.05), load, itl_ms=10)

    assert is_flagged(tmp_path / "starved" / "run")
