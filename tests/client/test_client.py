"""A client against a real server on loopback: every planned request gets exactly one row, and the row tells the truth."""

import asyncio
import collections
import dataclasses
import time

import pytest

from distbench.client.client import LoadClient
from distbench.client.messages import LevelStart
from distbench.errors import FleetError
from tests.client.load_server import HEAD, LoadServer, Seen, chunk, closed_port, event, refuse, stream
from tests.client.plans import (
    TinyWorkload,
    client_setup,
    collect,
    level,
    order,
    run_level,
    run_levels,
    wait_until,
)

MS = 1_000_000


def indices(rows: list[dict[str, object]], phase: str = "measured") -> list[object]:
    """Return the indices of a phase."""
    return [row["index"] for row in rows if row["phase"] == phase]


def test_every_request_has_one_row_and_the_server_saw_each_once() -> None:
    """Warm-up on top of the measured ones; ids are the plan's; two connections carry all."""
    with LoadServer(stream(3)) as server:
        result = run_level(client_setup(server.url), order(level(warmup=3, requests=20)))
    rows = result.rows
    assert indices(rows, "warmup") == [0, 1, 2]
    assert indices(rows) == list(range(20))
    assert collections.Counter(row["outcome"] for row in rows) == {"ok": 23}
    assert sorted(seen.request_id for seen in server.truth.seen) == sorted(result.column("request_id"))
    assert server.truth.accepts == 3  # the probe's and two that carry the load
    assert result.finished.reason == "complete"
    assert {row["completion_tokens"] for row in rows} == {3}


def test_connections_are_full_until_the_pool_is_empty() -> None:
    """A pool, no waves: durations 5, 1, 1, 1 on two connections take 5, with two in flight until the last."""
    unit_s = 0.06

    async def reply(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await stream(1, delay_s=5 * unit_s if seen.request_id % 10 == 0 else unit_s)(seen, writer)

    with LoadServer(reply) as server:
        result = run_level(client_setup(server.url), order(level(requests=4)))
        began_ns = min(seen.began_ns for seen in server.truth.seen)
        long_one = next(seen for seen in server.truth.seen if seen.request_id % 10 == 0)
        others_ended_ns = max(seen.ended_ns for seen in server.truth.seen if seen is not long_one)
    assert len(result.rows) == 4
    assert server.truth.max_in_flight == 2
    assert others_ended_ns - began_ns < 5 * unit_s * 1e9


def test_250_connections_are_in_flight_at_once() -> None:
    """No hidden limit of 100."""
    with LoadServer(stream(1, delay_s=0.5)) as server:
        spec = level(connections=250, requests=250)
        run_level(client_setup(server.url), order(spec, start_ns=time.monotonic_ns() + 400 * MS))
    assert server.truth.max_in_flight == 250


def test_connections_are_spread_over_targets_evenly() -> None:
    """Connection c goes to target c mod n, and the row names it."""
    with LoadServer(stream(1, 0.01)) as first, LoadServer(stream(1, 0.01)) as second:
        result = run_level(client_setup(first.url, second.url), order(level(connections=4, requests=40)))
        peers = [len({seen.peer for seen in server.truth.seen}) for server in (first, second)]
        targets = {row["connection"]: row["target"] for row in result.rows}
        assert targets == {0: first.url, 1: second.url, 2: first.url, 3: second.url}
    assert peers == [2, 2]


def test_stamps_are_in_order_and_relative_to_the_epoch() -> None:
    """Sent before the first byte before the tokens before the end, and inside the level."""
    with LoadServer(stream(3, 0.005)) as server:
        result = run_level(client_setup(server.url), order(level()))
    for row in result.rows:
        stamps = [
            row[name] for name in ("sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns")
        ]
        assert stamps == sorted(stamps)
        assert 0 < stamps[0] < stamps[-1] < 20_000 * MS
        assert len(row["chunk_us"]) == 3
    assert result.finished.start_delay_ns is not None
    assert result.finished.start_delay_ns >= 0


def test_a_deadline_cuts_what_runs_and_drops_what_was_not_taken() -> None:
    """The partial answer is kept; planned requests without a turn are rows too."""
    with LoadServer(stream(1000, 0.02)) as server:
        result = run_level(client_setup(server.url), order(level(requests=6, duration_s=0.5)))
        wait_until(lambda: server.truth.aborted == 2)
    assert result.column("outcome") == ["cut", "cut", "dropped", "dropped", "dropped", "dropped"]
    cut, dropped = result.rows[0], result.rows[-1]
    assert len(cut["chunk_us"]) >= 1
    assert (cut["error_kind"], cut["connection"]) == (None, 0)
    assert (dropped["connection"], dropped["sent_ns"], dropped["attempts"]) == (-1, None, 0)
    assert result.finished.reason == "deadline"
    assert result.finished.pool_empty_ns is None


def test_a_duration_without_requests_ends_by_time_alone() -> None:
    """Nothing is dropped, since nothing was planned; indices are those of the order of sending."""
    with LoadServer(stream(1, 0.005)) as server:
        result = run_level(client_setup(server.url), order(level(requests=None, duration_s=0.3)))
    rows = result.rows
    assert indices(rows) == list(range(len(rows)))
    assert len(rows) > 10
    assert set(result.column("outcome")) <= {"ok", "cut"}


def test_stop_cuts_and_reports() -> None:
    """Everything planned has its row soon after."""
    with LoadServer(stream(1000, 0.02)) as server:
        setup = client_setup(server.url)

        def stop(client: LoadClient) -> None:
            wait_until(lambda: server.truth.in_flight == 2)
            client.stop()

        began_s = time.monotonic()
        result = run_level(setup, order(level(requests=5)), during=stop)
    assert collections.Counter(result.column("outcome")) == {"cut": 2, "dropped": 3}
    assert result.finished.reason == "stopped"
    assert time.monotonic() - began_s < 10


def test_stop_before_the_start_drops_everything() -> None:
    """Nothing is sent."""
    with LoadServer() as server:
        start = order(level(requests=5), start_ns=time.monotonic_ns() + 60_000 * MS)
        result = run_level(client_setup(server.url), start, during=lambda client: client.stop())
        assert server.truth.seen == []
    assert result.column("outcome") == ["dropped"] * 5
    assert result.finished.start_delay_ns is None


def test_a_silent_driver_stops_the_load() -> None:
    """After the first ping, silence ends the level by itself."""
    with LoadServer(stream(1000, 0.02)) as server:
        setup = client_setup(server.url)
        client = LoadClient(silence_limit_s=0.3)
        client.start()
        try:
            client.setup(setup)
            handle = client.start_level(order(level(requests=2)))
            client.touch()
            result = collect(handle)
        finally:
            client.close()
    assert result.finished.reason == "driver_silent"
    assert result.column("outcome") == ["cut", "cut"]


def test_the_hard_end_stops_the_load() -> None:
    """Whatever happens."""
    with LoadServer(stream(1000, 0.02)) as server:
        now_ns = time.monotonic_ns()
        result = run_level(client_setup(server.url), order(level(requests=2), hard_end_ns=now_ns + 300 * MS))
    assert result.finished.reason == "hard_end"


def test_levels_follow_each_other_on_one_client() -> None:
    """A level may be ordered as soon as the one before has said its last word; its ids are its own."""
    with LoadServer() as server:
        first, second = run_levels(
            client_setup(server.url), [order(level(level=1, requests=4)), order(level(level=2, requests=4))]
        )
    assert first.column("request_id") == [1 * 10**12 + index for index in range(4)]
    assert second.column("request_id") == [2 * 10**12 + index for index in range(4)]


def test_a_second_level_at_the_same_time_is_refused() -> None:
    """Also a level before the setup."""
    client = LoadClient()
    client.start()
    try:
        with pytest.raises(FleetError, match="before its setup"):
            client.start_level(order(level()))
        with LoadServer() as server:
            client.setup(client_setup(server.url))
            handle = client.start_level(order(level(), start_ns=time.monotonic_ns() + 60_000 * MS))
            with pytest.raises(FleetError, match="while another runs"):
                client.start_level(order(level()))
            client.stop()
            collect(handle)
    finally:
        client.close()


def test_a_closed_port_fails_every_request_without_haste() -> None:
    """Each is a row; the pool is not burnt in a moment."""
    with closed_port() as port:
        result = run_level(client_setup(f"http://127.0.0.1:{port}/v1"), order(level(requests=8)))
    assert result.column("outcome") == ["failed"] * 8
    assert set(result.column("error_kind")) == {"connect"}
    assert result.column("sent_ns") == [None] * 8
    ends = sorted(result.column("end_ns"))
    assert ends[-1] - ends[0] >= 100 * MS
    assert "connect" in (result.progress[-1].last_error or "")


def test_probe_tells_what_works_and_what_does_not() -> None:
    """One result a target, in one sentence."""
    with closed_port() as port, LoadServer() as server:
        client = LoadClient(7)
        client.start()
        try:
            good, bad = client.setup(client_setup(server.url, f"http://127.0.0.1:{port}/v1", client=7))
        finally:
            client.close()
    assert (good.client, good.target, good.error) == (7, server.url, None)
    assert good.connect_s is not None
    assert bad.connect_s is None
    assert "cannot connect" in (bad.error or "")


def test_a_refused_request_is_sent_again_as_the_server_asks() -> None:
    """The first sending, all attempts and only the last answer are in the row; the wait is not in flight."""
    refused: set[int] = set()

    async def reply(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.request_id in refused:
            await stream(2)(seen, writer)
        else:
            refused.add(seen.request_id)
            await refuse(503, "retry-after: 0.2\r\n")(seen, writer)

    with LoadServer(reply) as server:
        result = run_level(client_setup(server.url, retries=1), order(level(connections=1, requests=1)))
    row = result.rows[0]
    assert (row["outcome"], row["attempts"], row["http_status"]) == ("ok", 2, 200)
    assert row["sent_ns"] - row["first_sent_ns"] >= 200 * MS
    sample = result.health[-1]
    assert sample["in_flight_mean"] * sample["interval_s"] < 0.2


def test_without_retries_a_refusal_is_a_failure() -> None:
    """Rate limits have their own kind."""
    with LoadServer(refuse(429)) as server:
        result = run_level(client_setup(server.url), order(level(requests=2)))
    assert result.column("error_kind") == ["rate_limited"] * 2
    assert result.column("attempts") == [1, 1]


def test_a_stream_that_breaks_off_is_a_failure_with_its_partial_tokens() -> None:
    """Errors are rows, and the next request goes on a new connection."""

    async def reply(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event("a")))
        await writer.drain()
        writer.close()

    with LoadServer(reply) as server:
        result = run_level(client_setup(server.url), order(level(connections=1, requests=3)))
    assert result.column("outcome") == ["failed"] * 3
    assert set(result.column("error_kind")) == {"truncated"}
    assert [len(chunks) for chunks in result.column("chunk_us")] == [1, 1, 1]


def test_without_keepalive_each_request_has_a_connection_of_its_own() -> None:
    """And its connect time in its row."""
    with LoadServer() as server:
        result = run_level(client_setup(server.url, keepalive=False), order(level(requests=6)))
    assert server.truth.accepts == 1 + 6
    assert None not in result.column("connect_ns")


def test_the_reference_connection_carries_a_level_too() -> None:
    """Httpx behind the same Protocol: same rows, stamps of user space."""
    with LoadServer(stream(2, 0.005)) as server:
        setup = dataclasses.replace(client_setup(server.url), http_client="httpx")
        result = run_level(setup, order(level(requests=6, warmup=2)))
    assert result.column("outcome") == ["ok"] * 8
    assert set(result.column("stamp")) == {"user"}
    assert set(result.column("completion_tokens")) == {2}


def test_turns_of_a_conversation_never_overlap() -> None:
    """Each is sent after the answer before it has ended."""
    workload = TinyWorkload(follows=((1, 0), (3, 2), (4, 3)))
    with LoadServer(stream(2, 0.02)) as server:
        result = run_level(
            client_setup(server.url, workload=workload), order(level(connections=4, requests=6))
        )
    rows = result.rows
    assert indices(rows) == [0, 1, 2, 3, 4, 5]
    for later, earlier in workload.follows:
        assert rows[later]["sent_ns"] >= rows[earlier]["end_ns"]


def test_open_loop_waits_for_a_connection_and_says_so() -> None:
    """Due at 0, 100, 200, 300 ms, one connection, 200 ms of service: they leave at 0, 200, 400, 600."""
    with LoadServer(stream(1, 0.2)) as server:
        spec = level(connections=1, requests=4, pattern="constant", rate_rps=10.0)
        result = run_level(client_setup(server.url), order(spec))
    scheduled = result.column("scheduled_ns")
    assert [round((s - scheduled[0]) / MS) for s in scheduled] == [0, 100, 200, 300]
    queue_ms = [(row["sent_ns"] - row["scheduled_ns"]) / MS for row in result.rows]
    assert queue_ms == pytest.approx([0, 100, 200, 300], abs=80)
    assert result.column("outcome") == ["ok"] * 4


def test_open_loop_slots_that_found_no_connection_before_the_end_are_dropped() -> None:
    """With their schedule; what ran is cut."""
    with LoadServer(stream(1, 5.0)) as server:
        spec = level(connections=1, requests=50, pattern="constant", rate_rps=20.0, duration_s=0.4)
        result = run_level(client_setup(server.url), order(spec))
    assert collections.Counter(result.column("outcome")) == {"cut": 1, "dropped": 49}
    dropped = [row["scheduled_ns"] for row in result.rows if row["outcome"] == "dropped"]
    # Slots at 50, 100, ... 350 ms were due within 400 ms; the others lie beyond the level.
    assert sum(value is not None for value in dropped) == 7


def test_open_loop_warmup_is_the_first_part_of_the_schedule() -> None:
    """Same pace, other phase."""
    with LoadServer() as server:
        spec = level(connections=4, requests=4, warmup=2, pattern="constant", rate_rps=100.0)
        result = run_level(client_setup(server.url), order(spec))
    rows = sorted(result.rows, key=lambda row: row["scheduled_ns"])
    assert [row["phase"] for row in rows] == ["warmup"] * 2 + ["measured"] * 4
    assert [round((row["scheduled_ns"] - rows[0]["scheduled_ns"]) / MS) for row in rows] == [
        0,
        10,
        20,
        30,
        40,
        50,
    ]


def test_two_clients_share_a_level() -> None:
    """Each computes its own part; together they are the whole."""
    with LoadServer() as server:
        spec = level(connections=5, requests=13, warmup=5)
        results = []
        for position in range(2):
            start: LevelStart = order(spec, position=position, num_clients=2)
            results.append(run_level(client_setup(server.url, client=position), start))
    rows = [row for result in results for row in result.rows]
    assert sorted(indices(rows)) == list(range(13))  # type: ignore[type-var]
    assert {row["client"] for row in rows} == {0, 1}
    assert sorted({row["connection"] for row in rows}) == [0, 1, 2, 3, 4]


def test_prompts_are_sent_as_the_plan_has_them() -> None:
    """Model, messages, length and stream options are in the body."""
    with LoadServer() as server:
        run_level(client_setup(server.url), order(level(connections=1, requests=1)))
    body = server.truth.seen[0].body
    assert body["model"] == "m"
    assert body["messages"] == [{"role": "user", "content": "measured 3 0 "}]
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (3, True, True)
    assert body["stream_options"] == {"include_usage": True}


def test_health_samples_tell_how_full_the_client_was() -> None:
    """About one per second while the level runs; in flight as asked."""
    with LoadServer(stream(20, 0.01)) as server:
        result = run_level(client_setup(server.url), order(level(connections=8, requests=24)))
    samples = result.health
    assert samples
    first = samples[0]
    assert (first["level"], first["client"], first["connections"], first["connected"]) == (3, 0, 8, 8)
    assert 5.5 <= first["in_flight_mean"] <= 8.05
    assert first["loop_cpu_ratio"] > 0
    assert sum(sample["output_tokens"] for sample in samples) == 24 * 20
    assert sum(sample["requests_done"] for sample in samples) == 24
    assert sum(sample["turnarounds"] for sample in samples) == 16


def test_the_tokens_of_an_answer_under_way_are_in_the_progress() -> None:
    """One answer of 3 s: what was read of it so far counts, not only what has ended."""
    with LoadServer(stream(30, 0.1)) as server:
        result = run_level(client_setup(server.url), order(level(connections=1, requests=1)))
    under_way = [each.output_tokens for each in result.progress if not each.ok]
    assert max(under_way) >= 15
    assert under_way == sorted(under_way)
    samples = [sample["reads"] for sample in result.health]
    assert len(samples) >= 3
    assert all(5 <= reads <= 15 for reads in samples[:2])
