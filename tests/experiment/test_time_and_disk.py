"""Machines that misbehave under a run: a wall clock that jumps, a disk that fills up."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.core.plan_io import build_plan
from distbench.experiment.commands import resume_run, run_plan
from distbench.experiment.observer import LevelProgress, SilentObserver
from distbench.experiment.signals import StopFlag
from distbench.sim.embedded import EmbeddedServer
from distbench.store.reader import open_run
from tests.support.command import SMALL, Command
from tests.support.small_run import small_run

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS], ids=["ahead", "back"])
def test_a_wall_clock_that_jumps_changes_no_figure(
    jump_ns: int, fast_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour, in the middle of the level: all stamps and latencies are those of a clock that does not jump."""
    true_ns = time.time_ns
    jumped = [0]

    class JumpSoon(SilentObserver):
        def progress(self, state: LevelProgress) -> None:
            jumped[0] = jump_ns

    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + jumped[0])
    began_s = time.monotonic()
    result = small_run(fast_server.url, tmp_path / "r", observer=JumpSoon())
    took_ns = (time.monotonic() - began_s) * 1e9
    assert jumped == [jump_ns]
    rows = open_run(tmp_path / "r").requests().to_pandas()
    assert (result.status, set(rows.outcome)) == ("complete", {"ok"})
    assert ((rows.sent_ns > 0) & (rows.end_ns > rows.sent_ns) & (rows.end_ns < took_ns)).all()


@pytest.mark.slow
def test_a_resumed_search_keeps_its_order_under_a_clock_that_was_set_back(
    fast_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new levels come after the old ones, as far as the files can tell."""
    stop = StopFlag()
    levels: list[object] = []

    class StopInTheSecond(SilentObserver):
        def progress(self, state: LevelProgress) -> None:
            if len(levels) == 1 and state.ok:
                stop.set()

        def level_done(self, row: object) -> None:
            levels.append(row)

    settings = {
        "urls": [fast_server.url], "connections": "2,4", "requests": 400, "repeats": 1, "system-tokens": 16, "user-tokens": 16,
        "output-tokens": 8, "ray-address": "none", "output": str(tmp_path / "r"),
    }  # fmt: skip
    plan = build_plan("capacity", {}, settings)
    assert run_plan(plan, StopInTheSecond(), stop=stop).status == "interrupted"
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() - HOUR_NS)
    assert resume_run(str(tmp_path / "r"), plan).status == "complete"
    rows = open_run(tmp_path / "r").requests(columns=["level", "sent_ns", "end_ns"]).to_pandas()
    spans = rows.groupby("level").agg({"sent_ns": "min", "end_ns": "max"})
    assert len(spans) >= 3
    assert all(spans.end_ns.iloc[i] < spans.sent_ns.iloc[i + 1] for i in range(len(spans) - 1))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a size; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.hosts
@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_order(fast_server: EmbeddedServer, tmp_path: Path) -> None:
    """
    The disk has 900 kB, half of which the run sets aside: it ends by itself, exit code 1, says that no space is left, and its state
    and everything written before can be read.
    """
    options = ("--ray-address", "none", "--connections", "8", "--requests", "400000", *SMALL)
    with small_disk(tmp_path / "disk", "900k") as disk:
        with Command("run", fast_server.url, *options, output=disk / "r") as command:
            command.wait_for_rows()
            # Somebody else fills the rest.
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
            assert command.wait(60) == 1
            assert "No space left on device" in command.shown
            assert "the run ended early" in command.shown
            assert "Traceback" not in command.shown
        info = json.loads((disk / "r/run.json").read_text())
        assert info["status"] == "incomplete"
        assert any("No space left on device" in note for note in info["notes"])
        rows = open_run(disk / "r").requests(columns=["outcome"]).column(0).to_pylist()
        assert rows.count("ok") > 0
