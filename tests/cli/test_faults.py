"""
What goes wrong while a run is under way, on the real command: what the user sees, and that nothing measured is lost.

docs/faults.md lists the same faults; those that take several machines are in tests/hosts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.analysis.judge import judge_run
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from distbench.store.reader import open_run
from tests.support.command import SMALL, Command

pytestmark = pytest.mark.slow

# Steps of 10 ms keep the rates, and with them the files, small.
STEPS = StepTimeSettings(
    fixed_s=0.01, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)
LONG = ("--connections", "4", "--requests", "20000", *SMALL)
WITHOUT_RAY = ("--ray-address", "none")


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """Give a server that a test may do anything to."""
    with EmbeddedServer(SimSettings(step_time=STEPS)) as server:
        yield server


def outcome(path: Path) -> tuple[str, dict[str, int]]:
    """Return (status, measured requests by outcome) of a run whose planned requests must all be accounted for."""
    run = open_run(path)
    rows = run.requests(columns=["phase", "outcome", "index"]).to_pandas()
    rows = rows[rows.phase == "measured"]
    assert rows["index"].is_unique
    assert len(rows) == run.info.totals.planned
    return run.info.status, {str(word): int(count) for word, count in rows.outcome.value_counts().items()}


def reasons(path: Path) -> list[str]:
    """Return why each level does not count."""
    table = open_run(path).levels()
    assert set(table.column("valid").to_pylist()) == {False}
    return [str(reason) for reason in table.column("invalid_reason").to_pylist()]


@pytest.mark.ray
def test_ctrl_c_on_a_terminal_keeps_what_was_measured(server: EmbeddedServer, tmp_path: Path) -> None:
    """The key reaches Ray's processes too; the run ends in order all the same: 130, and nothing is left over."""
    with Command("run", server.url, *LONG, output=tmp_path / "r", terminal=True) as command:
        command.wait_for_rows(90)
        command.type(b"\x03")
        assert command.wait(30) == 130
        assert "interrupted; everything is in" in command.shown
        assert "Traceback" not in command.shown
        command.wait_until_gone(30)
    status, requests = outcome(tmp_path / "r")
    assert status == "interrupted"
    assert requests["ok"] > 0
    assert set(requests) <= {"ok", "cut", "dropped"}
    assert reasons(tmp_path / "r")[0].startswith("it was ended early (interrupted)")


def test_sigterm_is_like_ctrl_c(server: EmbeddedServer, tmp_path: Path) -> None:
    """As a scheduler ends a job."""
    with Command("run", server.url, *LONG, *WITHOUT_RAY, output=tmp_path / "r") as command:
        command.wait_for_rows()
        command.signal(signal.SIGTERM)
        assert command.wait(30) == 130
    status, requests = outcome(tmp_path / "r")
    assert (status, requests["ok"] > 0) == ("interrupted", True)


@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_stop_while_ray_starts_leaves_nothing(
    number: signal.Signals, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Before the first request there is nothing to keep: no directory, no process."""
    with Command("run", server.url, *LONG, output=tmp_path / "r") as command:
        command.wait_until(lambda: any(_is_ray(pid) for pid in command.processes()))
        command.signal(number)
        assert command.wait(30) == 130
        assert "Traceback" not in command.shown
        command.wait_until_gone(30)
    assert not (tmp_path / "r").exists()


@pytest.mark.ray
def test_a_killed_client_is_told_and_costs_its_last_rows_only(server: EmbeddedServer, tmp_path: Path) -> None:
    """
    Kill -9 of one of two: the other goes on, what was not heard of is lost, the level does not count, and the search stops there.

    Exit code 1.
    """
    options = ("--connections", "4,8", "--requests", "800", "--clients", "2", *SMALL)
    with Command("capacity", server.url, *options, output=tmp_path / "r") as command:
        command.wait_for_rows(90, clients=2)
        victim = open_run(tmp_path / "r").info.hosts[1]
        os.kill(int(victim["pid"]), signal.SIGKILL)
        assert command.wait(60) == 1
        assert "client 1 lost: its process or host died" in command.shown
        command.wait_until_gone(30)
    status, requests = outcome(tmp_path / "r")
    assert status == "incomplete"
    assert requests["ok"] > 400
    assert requests["lost"] > 0
    assert set(requests) == {"ok", "lost"}
    assert [reason.startswith("client 1 was lost") for reason in reasons(tmp_path / "r")] == [True]


@pytest.mark.ray
def test_a_killed_driver_leaves_a_readable_run_and_no_process(server: EmbeddedServer, tmp_path: Path) -> None:
    """Kill -9: the rows up to the last seconds are there, and can be judged."""
    with Command("run", server.url, *LONG, output=tmp_path / "r") as command:
        command.wait_for_rows(90)
        command.signal(signal.SIGKILL)
        assert command.wait(10) == -signal.SIGKILL
        # Ray's agents notice last that nobody is left.
        command.wait_until_gone(90)
    run = open_run(tmp_path / "r")
    assert run.info.status == "running"
    rows = run.requests(columns=["outcome"])
    assert set(rows.column("outcome").to_pylist()) == {"ok"}
    verdict = judge_run(run)
    assert verdict.rows[0]["requests_ok"] > 0


def test_a_killed_server_ends_the_level(server: EmbeddedServer, tmp_path: Path) -> None:
    """Refusals are counted for ten seconds, then the run ends by itself and says why."""
    with Command("run", server.url, *LONG, *WITHOUT_RAY, output=tmp_path / "r") as command:
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGKILL)
        assert command.wait(45) == 1
        assert "takes no connections any more (Connection refused)" in command.shown
        assert "client was the limit" not in command.shown
    status, requests = outcome(tmp_path / "r")
    assert status == "incomplete"
    assert min(requests["ok"], requests["failed"], requests["dropped"]) > 0
    assert reasons(tmp_path / "r")[0].startswith("it was ended early (target gone)")


def test_a_restarted_server_is_seen_and_the_level_does_not_count(tmp_path: Path) -> None:
    """Refused for a few seconds, then served again: failures with their kind, no verdict on the level."""
    settings = SimSettings(step_time=STEPS)
    options = ("--connections", "4", "--requests", "1500", *SMALL[:-1], *WITHOUT_RAY)
    with (
        EmbeddedServer(settings) as server,
        Command("run", server.url, *options, output=tmp_path / "r") as command,
    ):
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(2)
        with EmbeddedServer(settings, port=server.port):
            code = command.wait(90)
    status, requests = outcome(tmp_path / "r")
    assert (code, status) == (0, "complete")
    assert requests["failed"] > 0
    kinds = set(open_run(tmp_path / "r").requests(columns=["error_kind"]).column(0).to_pylist())
    assert kinds <= {None, "connect", "reset", "truncated"}
    assert "restarted" in reasons(tmp_path / "r")[0]


def test_one_of_two_servers_that_dies_does_not_end_the_run(server: EmbeddedServer, tmp_path: Path) -> None:
    """Its requests fail; those of the other go on, and are told apart."""
    options = ("--connections", "4", "--requests", "1200", *SMALL, *WITHOUT_RAY)
    with (
        EmbeddedServer(SimSettings(step_time=STEPS)) as other,
        Command("run", server.url, other.url, *options, output=tmp_path / "r") as command,
    ):
        command.wait_for_rows()
        os.kill(other.pid, signal.SIGKILL)
        assert command.wait(60) == 0
    rows = open_run(tmp_path / "r").requests(columns=["target", "outcome"]).to_pandas()
    failed = set(rows[rows.outcome == "failed"].target)
    assert failed == {f"{other.url}/v1"}
    assert len(rows[rows.outcome == "ok"]) > 800


def test_a_third_ctrl_c_ends_at_once(server: EmbeddedServer, tmp_path: Path) -> None:
    """The driver cannot end in order (its server is frozen): the third key ends it as kill -9 would, and the rows are there."""
    with Command("run", server.url, *LONG[:-1], *WITHOUT_RAY, output=tmp_path / "r") as command:
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(0.5)
        for _ in range(3):
            command.signal(signal.SIGINT)
            time.sleep(0.1)
        assert command.wait(10) == 130
        os.kill(server.pid, signal.SIGCONT)
        command.wait_until_gone(10)
        assert "Traceback" not in command.shown
    run = open_run(tmp_path / "r")
    assert run.info.status == "running"
    assert run.requests(columns=["outcome"]).num_rows > 0


def test_a_frozen_server_costs_no_more_than_the_timeouts(server: EmbeddedServer, tmp_path: Path) -> None:
    """SIGSTOP and, 4 s later, SIGCONT: what waited too long failed by its time-out, the rest went on."""
    limits = ("--timeout-first-token", "1s", "--timeout-idle", "1s")
    options = ("--connections", "4", "--requests", "600", *SMALL, *WITHOUT_RAY, *limits)
    with Command("run", server.url, *options, output=tmp_path / "r") as command:
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(server.pid, signal.SIGCONT)
        assert command.wait(60) == 0
    status, requests = outcome(tmp_path / "r")
    assert status == "complete"
    assert requests["ok"] > 500
    assert requests["failed"] >= 4
    kinds = open_run(tmp_path / "r").requests(columns=["error_kind"]).column(0).to_pylist()
    assert {kind for kind in kinds if kind} <= {"first_token_timeout", "idle_timeout"}


def test_a_frozen_server_can_be_left_at_any_time(server: EmbeddedServer, tmp_path: Path) -> None:
    """The limits are long by default; Ctrl-C does not wait for them, nor for the server's metrics."""
    with Command("run", server.url, *LONG[:-1], *WITHOUT_RAY, output=tmp_path / "r") as command:
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(1)
        command.signal(signal.SIGINT)
        began_s = time.monotonic()
        assert command.wait(45) == 130
        took_s = time.monotonic() - began_s
        os.kill(server.pid, signal.SIGCONT)
    assert took_s < 30
    status, requests = outcome(tmp_path / "r")
    assert (status, requests["cut"]) == ("interrupted", 4)


def test_a_server_that_stays_frozen_ends_the_level(server: EmbeddedServer, tmp_path: Path) -> None:
    """With time-outs of minutes: nothing for 20 s and no answer to anything else ends it within half a minute."""
    with Command("run", server.url, *LONG[:-1], *WITHOUT_RAY, output=tmp_path / "r") as command:
        command.wait_for_rows()
        os.kill(server.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        assert command.wait(60) == 1
        took_s = time.monotonic() - began_s
        os.kill(server.pid, signal.SIGCONT)
        assert "takes connections but answers nothing" in command.shown
    assert took_s > 20
    status, requests = outcome(tmp_path / "r")
    assert (status, requests["cut"]) == ("incomplete", 4)


def _is_ray(pid: int) -> bool:
    try:
        return b"raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
