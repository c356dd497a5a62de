"""The closed loop's pool."""

import asyncio
import time

from distbench.client.pool import Pool
from distbench.client.work import Work, WorkBuilder
from distbench.core.records import Phase
from distbench.core.shards import level_share
from tests.client.plans import TinyWorkload, level


def make_pool(workload: TinyWorkload | None = None, limit: int | None = None, **changes: object) -> Pool:
    """Return the pool of the only client."""
    spec = level(**changes)
    share = level_share(spec, position=0, num_clients=1, num_targets=1)
    builder = WorkBuilder(spec, workload or TinyWorkload(), lambda prompt: b"{}", time.monotonic_ns())
    return Pool(share, builder, limit=limit)


def take_all(pool: Pool) -> list[tuple[str, int]]:
    """Take until nothing may be sent, each answered at once."""
    taken = []
    while (work := pool.take(0)) is not None:
        taken.append((str(work.phase), work.index))
        pool.done(work)
    return taken


def ids(works: list[Work]) -> list[int]:
    """Return the indices."""
    return [work.index for work in works]


def test_pool_hands_out_the_warmup_first_and_everything_once() -> None:
    """Warm-up, then measured, in order."""
    pool = make_pool(warmup=2, requests=3)
    assert take_all(pool) == [("warmup", 0), ("warmup", 1), ("measured", 0), ("measured", 1), ("measured", 2)]
    assert list(pool.leftovers()) == []


def test_pool_tells_when_the_measured_part_began_and_was_empty() -> None:
    """Both are None before, and the times of the first and last measured request."""
    pool = make_pool(warmup=1, requests=2)
    pool.take(0)
    assert (pool.measured_start_ns, pool.pool_empty_ns) == (None, None)
    before_ns = time.monotonic_ns()
    pool.take(0)
    assert pool.measured_start_ns is not None
    assert pool.measured_start_ns >= before_ns
    assert pool.pool_empty_ns is None
    pool.take(0)
    assert pool.pool_empty_ns is not None


def test_prepare_builds_ahead_at_most_what_all_connections_need() -> None:
    """As many as the connections, and a little spare."""
    pool = make_pool(connections=10, requests=1000)
    assert pool.prepare(time.monotonic_ns() + 10**9) is False
    assert len(pool._ready) == 42


def test_prepare_stops_at_its_time() -> None:
    """It tells that more is wanted."""
    pool = make_pool(connections=10, requests=1000)
    assert pool.prepare(0) is True
    assert len(pool._ready) == 1


def test_closed_pool_hands_out_nothing_and_names_what_is_left() -> None:
    """Both what was built ahead and what was not."""
    pool = make_pool(warmup=1, requests=60, connections=1)
    pool.prepare(time.monotonic_ns() + 10**9)
    for _ in range(3):
        pool.take(0)
    pool.close()
    assert pool.take(0) is None
    left = [(leftover.phase, leftover.index) for leftover in pool.leftovers()]
    assert left == [(Phase.MEASURED, index) for index in range(2, 60)]


def test_open_ended_pool_plans_nothing_and_ends_with_the_data() -> None:
    """Only what was sent has a row; the data's end is the level's end."""
    pool = make_pool(requests=None, limit=5)
    assert [index for _, index in take_all(pool)] == [0, 1, 2, 3, 4]
    endless = make_pool(requests=None)
    endless.prepare(time.monotonic_ns() + 10**9)
    endless.close()
    assert list(endless.leftovers()) == []


def test_a_follower_waits_for_the_answer_it_follows() -> None:
    """Others overtake it; it is handed out once that answer has ended."""
    pool = make_pool(TinyWorkload(follows=((1, 0),)), requests=3)
    first, third = pool.take(0), pool.take(1)
    assert first is not None
    assert third is not None
    assert (first.index, third.index) == (0, 2)
    assert pool.take(2) is None
    pool.done(first)
    second = pool.take(2)
    assert second is not None
    assert (second.index, second.body) == (1, b"{}")


def test_a_parked_lane_gets_the_follower_and_others_are_sent_home() -> None:
    """A lane with nothing to do neither ends early nor waits for ever."""

    async def scenario() -> list[int | None]:
        pool = make_pool(TinyWorkload(follows=((1, 0),)), requests=2)
        first = pool.take(0)
        assert first is not None
        waits = [asyncio.create_task(_index(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.done(first)
        return await asyncio.gather(*waits)

    assert sorted(asyncio.run(scenario()), key=str) == [1, None]


def test_think_time_counts_from_the_end_of_the_answer() -> None:
    """The next turn comes that much later."""

    async def scenario() -> float:
        pool = make_pool(TinyWorkload(follows=((1, 0),), think_ns=50_000_000), requests=2)
        first = pool.take(0)
        assert first is not None
        pool.done(first)
        began_s = time.monotonic()
        assert pool.take(0) is None
        work = await pool.wait(0)
        assert work is not None
        assert work.index == 1
        return time.monotonic() - began_s

    assert 0.045 <= asyncio.run(scenario()) < 1.0


def test_a_request_handed_to_a_cancelled_lane_is_not_lost() -> None:
    """It is a leftover, so that it gets its row."""

    async def scenario() -> list[int]:
        pool = make_pool(TinyWorkload(follows=((1, 0),)), requests=2)
        first = pool.take(0)
        assert first is not None
        waiting = asyncio.create_task(_index(pool))
        await asyncio.sleep(0)
        pool.done(first)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        pool.close()
        return [leftover.index for leftover in pool.leftovers()]

    assert asyncio.run(scenario()) == [1]


async def _index(pool: Pool) -> int | None:
    work = await pool.wait(0)
    return None if work is None else work.index
