"""The small parts: limits, retries, outbox, watchdog, counters, health."""

import pickle
import threading
import time
from pathlib import Path

import pytest

from distbench.client import limits
from distbench.client.counters import InFlight, LevelCounters, quantile_s
from distbench.client.gc_pause import GcPause
from distbench.client.health import HealthSampler
from distbench.client.hostinfo import host_info, kernel_stamps_work
from distbench.client.messages import Finished, Progress
from distbench.client.outbox import Outbox
from distbench.client.retry import carry_over, is_retryable, retry_delay_s
from distbench.client.watchdog import Watchdog
from distbench.wire.base import Exchange
from tests.support.hot_paths import use_hot_path


def finished() -> Finished:
    """Return a last word."""
    return Finished(
        client=0, measured_start_ns=None, pool_empty_ns=None, reason="complete", start_delay_ns=None
    )


def progress() -> Progress:
    """Return counters."""
    return Progress(
        client=0, connected=0, in_flight=0, waiting_parse=0, warmup_done=0, sent=0, ok=0, failed=0, cut=0,
        dropped=0, output_tokens=0, last_error=None, at_ns=0,
    )  # fmt: skip


def test_files_problem_names_need_and_limit() -> None:
    """200 connections and what the process needs beside them do not fit into 64 files."""
    problem = limits.files_problem(200, 64)
    assert problem is not None
    assert "200 connections need 328, this client may have 64" in problem
    assert limits.files_problem(200, 1024) is None


def test_ports_problem_counts_per_target() -> None:
    """A local port can be used once for each target."""
    assert limits.ports_problem(["a:1", "b:1"] * 10, 10) is None
    problem = limits.ports_problem(["a:1"] * 11 + ["b:1"] * 5, 10)
    assert problem is not None
    assert "11 connections to a:1" in problem
    assert limits.ports_problem([], 0) is None


def test_local_ports_reads_the_kernels_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends count; an unreadable file means the kernel's default."""
    file = tmp_path / "range"
    file.write_text("40000\t40099\n")
    monkeypatch.setattr(limits, "_PORT_RANGE", file)
    assert limits.local_ports() == 100
    file.unlink()
    assert limits.local_ports() == 28_232


@pytest.mark.parametrize(
    ("headers", "attempt", "delay_s"),
    [
        ({"retry-after": "2"}, 0, 2.0),
        ({"retry-after": "3600"}, 0, 30.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0, 0.0),
        ({}, 0, 0.5),
        ({}, 2, 2.0),
        ({"retry-after": "soon"}, 9, 30.0),
    ],
    ids=["seconds", "capped", "date", "first", "third", "unreadable"],
)
def test_retry_delay_honours_the_server(headers: dict[str, str], attempt: int, delay_s: float) -> None:
    """Retry-After in both forms, with a cap; else doubling."""
    assert retry_delay_s(Exchange(headers=headers), attempt) == delay_s


@pytest.mark.parametrize(
    ("status", "complete", "expected"),
    [(429, True, True), (503, True, True), (503, False, False), (500, True, False)],
)
def test_only_not_now_is_retried(status: int, complete: bool, expected: bool) -> None:
    """429 and 503, whole."""
    assert is_retryable(Exchange(status=status, complete=complete)) is expected


def test_carry_over_keeps_the_first_sending_and_sums_the_rest() -> None:
    """The request as a whole, not its last attempt."""
    later = Exchange(first_sent_ns=9, sent_ns=9, attempts=1, reads=2, bytes_received=20)
    carry_over(
        Exchange(first_sent_ns=1, sent_ns=1, attempts=2, reconnects=1, reads=1, bytes_received=10), later
    )
    assert (later.first_sent_ns, later.sent_ns) == (1, 9)
    assert (later.attempts, later.reconnects, later.reads, later.bytes_received) == (3, 1, 3, 30)


def test_outbox_returns_events_in_order_and_knows_its_end() -> None:
    """Finished is the last event; then it is drained."""
    box = Outbox()
    assert box.get(0) == []
    box.put(progress())
    box.put(finished())
    drained = [box.drained]
    assert box.get(0) == [progress(), finished()]
    drained.append(box.drained)
    assert drained == [False, True]
    assert box.get(5) == []


def test_outbox_wakes_its_listener() -> None:
    """An event ends the wait at once."""
    box = Outbox()
    threading.Timer(0.05, lambda: box.put(progress())).start()
    began_s = time.monotonic()
    assert box.get(10) == [progress()]
    assert time.monotonic() - began_s < 5


def test_outbox_raises_a_failure_after_the_events_before_it() -> None:
    """Nothing that was measured is lost by a fault."""
    box = Outbox()
    box.put(progress())
    box.fail(RuntimeError("bug"))
    assert box.get(0) == [progress()]
    with pytest.raises(RuntimeError, match="bug"):
        box.get(0)
    assert box.drained


def test_outbox_leaves_out_progress_that_nobody_collects() -> None:
    """Memory is bounded."""
    box = Outbox()
    for _ in range(500):
        box.put(progress())
    assert len(box.get(0)) < 100


def test_watchdog_is_off_until_touched() -> None:
    """Who never pings is not missed."""
    watchdog = Watchdog(limit_s=1.0)
    assert not watchdog.is_silent(10**18)
    watchdog.touch()
    now_ns = time.monotonic_ns()
    assert not watchdog.is_silent(now_ns)
    assert watchdog.is_silent(now_ns + 1_100_000_000)


def test_in_flight_counts_an_answer_until_its_last_byte_not_until_it_was_noticed() -> None:
    """Sent at 10, ended at 30, noticed at 50: 20 ns in flight; a running one counts until now."""
    in_flight = InFlight()
    in_flight.begin(8)
    in_flight.begin(40)
    assert in_flight.integral_ns(50) == 42 + 10
    in_flight.end(8, 10, 30)
    assert in_flight.count == 1
    assert in_flight.integral_ns(50) == 20 + 10
    in_flight.end(40, None, 60)
    assert in_flight.integral_ns(90) == 20


def test_quantile_of_nothing_is_none() -> None:
    """None is not zero."""
    assert quantile_s([], 0.5) is None
    assert quantile_s([1_000_000_000, 3_000_000_000], 0.5) == 2.0


def test_health_sample_covers_its_interval_only() -> None:
    """Rates are differences, quantiles are of the requests that ended in the interval."""
    counters = LevelCounters()
    sampler = HealthSampler(level=1, client=2, connections=4, epoch_ns=0, counters=counters)
    counters.taken, counters.exchanges, counters.reads = 5, 3, 10
    counters.turnarounds_ns += [2_000_000, 4_000_000]
    sampler.sample(waiting_parse=7, running_reads=2, running_bytes=0)
    counters.exchanges, counters.reads = 4, 12
    rss_bytes = sampler.sample(waiting_parse=0, running_reads=0, running_bytes=0)
    table = sampler.take()
    assert table is not None
    first, second = table.to_pylist()
    assert (first["level"], first["client"], first["connections"]) == (1, 2, 4)
    assert (first["requests_sent"], first["requests_done"], first["reads"]) == (5, 3, 12)
    assert (first["turnarounds"], first["turnaround_sum_s"], first["waiting_parse"]) == (2, 0.006, 7)
    assert (second["requests_done"], second["reads"], second["turnarounds"]) == (1, 0, 0)
    assert second["turnaround_p50_s"] is None
    assert second["rss_bytes"] == rss_bytes > 0
    assert sampler.take() is None


def test_gc_pause_holds_until_the_last_level_of_the_process_ended() -> None:
    """Clients of one process share it."""
    import gc

    pause = GcPause()
    assert gc.isenabled()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_kernel_stamps_are_found_on_linux() -> None:
    """The machine of the tests has them."""
    assert kernel_stamps_work()


def test_host_info_masks_credentials_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies are told only where they are obeyed, without user and password; the info travels."""
    monkeypatch.setenv("http_proxy", "http://user:pw@proxy:3128")
    info = host_info(4, trust_env=True, uvloop=True)
    assert info.proxies["http"] == "http://proxy:3128"
    assert host_info(4, trust_env=False, uvloop=True).proxies == {}
    assert pickle.loads(pickle.dumps(info)) == info
    assert info.open_files_limit >= 64


@pytest.mark.parametrize("name", ["compiled", "python"])
def test_host_info_tells_which_hot_path_is_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever reads a run knows what its tokens cost the client."""
    use_hot_path(name, monkeypatch)
    assert host_info(0, trust_env=False, uvloop=True).compiled is (name == "compiled")
