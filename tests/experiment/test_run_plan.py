"""Tests of distbench.experiment.commands: whole runs over real sockets, without Ray (tests/fleet has it)."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from distbench.analysis.facts import level_facts
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.errors import FleetError, StoreError, TargetError
from distbench.experiment.commands import run_plan
from distbench.experiment.observer import LevelProgress, SilentObserver
from distbench.experiment.signals import StopFlag
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.store.reader import open_run
from tests.support.small_run import small_run
from tests.support.stub_server import ONE_MODEL, STREAM, Reply, Seen, stub_server


def counter(url: str, name: str) -> float:
    """Return a counter of the server."""
    found = re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def test_every_request_has_a_row_and_tokens_equal_the_servers_counter(
    fast_server: EmbeddedServer, tmp_path: Path, truth_log: Path
) -> None:
    """
    60 measured requests of 8 tokens and 12 of warm-up: 72 rows, 480 measured tokens, and the counter moved by 8 * 72 plus the probe.

    The server's log knows each request by its id, with as many tokens.
    """
    before = counter(fast_server.url, "vllm:generation_tokens_total")
    result = small_run(fast_server.url, tmp_path / "r", clients=2)
    after = counter(fast_server.url, "vllm:generation_tokens_total")
    assert (result.status, result.exit_code) == ("complete", 0)
    rows = open_run(tmp_path / "r").requests().to_pandas()
    measured = rows[rows.phase == "measured"]
    assert (len(rows), len(measured), set(rows.outcome)) == (72, 60, {"ok"})
    assert sorted(measured.request_id) == list(range(60))
    assert measured.completion_tokens.sum() == 480
    assert after - before == 8 * 72 + 1
    logged = {entry["request_id"]: entry for entry in map(json.loads, truth_log.read_text().splitlines())}
    assert all(logged[str(i)]["completion_tokens"] == 8 for i in measured.request_id)
    info = open_run(tmp_path / "r").info
    assert (info.totals.planned, info.totals.ok, info.totals.failed) == (60, 60, 0)


def test_judging_holds_the_clients_means_against_the_servers(
    fast_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Servers tell means, so the clients' means are what is compared: those of the answered requests sent in the window."""
    small_run(fast_server.url, tmp_path / "r")
    found = open_run(tmp_path / "r")
    case = level_facts(found, found.info.levels[0]).case
    rows = found.requests().to_pandas()
    ttft_s = (rows.first_token_ns - rows.sent_ns) / 1e9
    assert case.ttft_s is not None
    assert case.ttft_s == case.ttft_mean_s
    assert ttft_s.min() <= case.ttft_s <= ttft_s.max()
    assert case.e2e_s == case.e2e_mean_s


@pytest.mark.slow
def test_connections_and_requests_are_totals_spread_over_clients(
    fast_server: EmbeddedServer, tmp_path: Path
) -> None:
    """12 connections over 3 clients are 4 each, 60 requests are 20 each."""
    small_run(fast_server.url, tmp_path / "r", clients=3)
    rows = open_run(tmp_path / "r").requests().to_pandas()
    measured = rows[rows.phase == "measured"]
    assert measured.groupby("client").size().to_dict() == {0: 20, 1: 20, 2: 20}
    assert rows.groupby("client").connection.unique().map(sorted).to_dict() == {
        0: [0, 1, 2, 3],
        1: [4, 5, 6, 7],
        2: [8, 9, 10, 11],
    }


@pytest.mark.slow
def test_the_written_plan_repeats_the_run(fast_server: EmbeddedServer, tmp_path: Path) -> None:
    """plan.toml of a run is a plan that gives the same prompts again."""
    small_run(fast_server.url, tmp_path / "a")
    table = open_run(tmp_path / "a").plan()
    result = run_plan(build_plan("run", table, {"output": str(tmp_path / "b")}))
    assert result.exit_code == 0
    prompts = [
        open_run(tmp_path / name).requests(columns=["prompt_id"]).to_pandas().prompt_id.sort_values().tolist()
        for name in "ab"
    ]
    assert prompts[0] == prompts[1]


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(fast_server: EmbeddedServer, tmp_path: Path) -> None:
    """A stop in the middle of a long level: status interrupted, exit code 130, every planned request accounted for."""
    stop = StopFlag()

    class StopSoon(SilentObserver):
        def progress(self, state: LevelProgress) -> None:
            if state.ok > 0:
                stop.set()

    started = time.monotonic()
    result = small_run(fast_server.url, tmp_path / "r", stop, StopSoon(), requests=100_000)
    assert time.monotonic() - started < 20
    assert (result.status, result.exit_code) == ("interrupted", 130)
    totals = open_run(tmp_path / "r").info.totals
    assert totals.ok > 0
    assert totals.planned == 100_000 == totals.ok + totals.failed + totals.cut + totals.dropped + totals.lost
    assert open_run(tmp_path / "r").levels().column("valid").to_pylist() == [False]


@pytest.mark.slow
def test_failures_are_counted_told_and_leave_exit_code_zero(tmp_path: Path) -> None:
    """Every third request fails inside its stream: they are failures with a kind, and the others are figures."""
    settings = SimSettings(faults=("stream_error:every=3",))
    with EmbeddedServer(settings) as server:
        result = small_run(server.url, tmp_path / "r", warmup=0)
    assert result.exit_code == 0
    assert {kind: count for kind, (count, _) in result.errors.items()} == {
        "stream_error": result.rows[0]["requests_failed"]
    }
    assert 15 <= result.rows[0]["requests_failed"] <= 25
    assert result.rows[0]["e2e_n"] <= result.rows[0]["requests_ok"]


def test_all_failed_is_exit_code_one(tmp_path: Path) -> None:
    """A run without a single answer is no success, and has no latency at all; the server's words are told (C43)."""
    probes = iter([STREAM])

    def once(_: Seen) -> Reply:
        return next(probes, Reply(500, {"error": {"message": "engine dead"}}))

    with stub_server({"GET /v1/models": ONE_MODEL, "POST /v1/chat/completions": once}) as (url, _):
        result = small_run(url, tmp_path / "r", no_metrics=True, connections="2", requests=4)
    row = result.rows[0]
    assert (result.exit_code, row["requests_ok"], row["requests_failed"], row["ttft_p50_s"]) == (
        1,
        0,
        4,
        None,
    )
    assert result.errors == {"http_5xx": (4, "HTTP 500: engine dead")}


@pytest.mark.slow
def test_max_failures_ends_early(tmp_path: Path) -> None:
    """--max-failures stops the level; what was not sent is dropped, and the run is incomplete."""
    with EmbeddedServer(SimSettings(faults=("stream_error:every=2",))) as server:
        result = small_run(server.url, tmp_path / "r", max_failures=5, requests=20_000, warmup=0)
    assert (result.status, result.exit_code) == ("incomplete", 1)
    assert result.rows[0]["requests_dropped"] > 0


@pytest.mark.slow
def test_an_slo_that_is_missed_is_exit_code_three(fast_server: EmbeddedServer, tmp_path: Path) -> None:
    """8 tokens at 2 ms a step take at least 14 ms: 1 ms cannot be met, 60 s can."""
    assert small_run(fast_server.url, tmp_path / "a", requests=400, slo=["e2e=1ms"]).exit_code == 3
    assert small_run(fast_server.url, tmp_path / "b", requests=400, slo=["e2e=60s"]).exit_code == 0


def test_a_target_that_cannot_be_used_leaves_nothing_behind(tmp_path: Path) -> None:
    """The output directory is made before the target is tried, and removed where the target is of no use."""
    with pytest.raises(TargetError):
        small_run("http://127.0.0.1:1", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_output_that_is_not_empty_is_refused_before_the_target_is_asked(tmp_path: Path) -> None:
    """Nothing is ever overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        small_run("http://127.0.0.1:1", tmp_path)


@pytest.mark.slow
def test_the_key_is_sent_and_in_no_file(tmp_path: Path) -> None:
    """A server that wants the key gets it on every request; no file of the run holds it (C57)."""
    with EmbeddedServer(SimSettings(api_key="sk-secret")) as server:
        result = small_run(server.url, tmp_path / "r", api_key_env="K", header=["X-Api-Token: also-secret"])
    assert result.rows[0]["requests_ok"] == 60
    written = b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert (b"sk-secret" in written, b"also-secret" in written, b"X-Api-Token" in written) == (
        False,
        False,
        True,
    )


@pytest.mark.slow
def test_progress_is_told_while_it_runs(fast_server: EmbeddedServer, tmp_path: Path) -> None:
    """The observer hears of connections held and requests done, and sees the server's own running count."""
    seen: list[LevelProgress] = []

    class Watch(SilentObserver):
        def progress(self, state: LevelProgress) -> None:
            seen.append(state)

    small_run(fast_server.url, tmp_path / "r", requests=2500, observer=Watch())
    assert max(state.in_flight for state in seen) == 12
    assert max(state.running or 0 for state in seen) == 8
    assert threading.active_count() < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "is_told"),
    [({"requests": 8}, False), ({"pattern": "constant", "rate": 40, "requests": 8}, True)],
)
def test_conversations_that_clients_share_are_told(
    fast_server: EmbeddedServer, tmp_path: Path, load: dict[str, Any], is_told: bool
) -> None:
    """Dealt out in turn, the turns of a conversation go to both clients; a burst keeps them on one, and nothing is said."""
    turns = [{"from": who, "value": text} for who, text in (("human", "a b"), ("gpt", "c"), ("human", "d e"))]
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"conversations": turns}) + "\n")
    flags: dict[str, Any] = {
        "dataset": "jsonl",
        "dataset_path": str(data),
        "clients": 2,
        "connections": 2,
        "warmup": 0,
        **load,
    }
    small_run(fast_server.url, tmp_path / "r", **flags)
    notes = " ".join(open_run(tmp_path / "r").info.notes)
    assert ("turns of one conversation may go to different clients" in notes) is is_told


@pytest.mark.slow
def test_a_verification_that_cannot_be_placed_is_a_note(
    fast_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the clients find no room: the finished search stays complete, and says that the client was not verified."""

    def refuse(plan: Plan, _: Any) -> Any:
        raise FleetError(f"{plan.load.clients} clients asked, 1 can be placed")

    monkeypatch.setattr("distbench.experiment.loop.fleet_for", refuse)
    result = small_run(
        fast_server.url,
        tmp_path / "r",
        command="capacity",
        connections="2",
        requests=700,
        repeats=0,
        system_tokens=0,
        user_tokens=8,
        clients=1,
        verify_client=True,
    )
    assert (result.status, result.exit_code) == ("complete", 0)
    notes = " ".join(open_run(tmp_path / "r").info.notes)
    assert "the client could not be verified with 2 clients: 2 clients asked, 1 can be placed" in notes
