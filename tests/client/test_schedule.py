"""The open loop's schedule."""

import asyncio
import time

import numpy as np

from distbench.client.schedule import Schedule
from distbench.client.work import WorkBuilder
from distbench.core.shards import ClientShare
from tests.client.plans import TinyWorkload, level

MS = 1_000_000


def make_schedule(
    due_ms: list[int],
    *,
    warmup: int = 0,
    requests: int | None = None,
    targets: tuple[int, ...] = (0, 0),
    workload: TinyWorkload | None = None,
) -> Schedule:
    """Return a schedule whose slots are due so many ms from now."""
    start_ns = time.monotonic_ns()
    spec = level(pattern="constant", rate_rps=1.0)
    num_measured = len(due_ms) - warmup if requests is None else requests
    share = ClientShare(
        connections=range(len(targets)),
        targets=targets,
        measured=range(num_measured),
        warmup=range(warmup),
    )
    due_ns = np.asarray(due_ms, np.int64) * MS + start_ns
    return Schedule(share, due_ns, WorkBuilder(spec, workload or TinyWorkload(), lambda p: b"{}", start_ns))


def test_slots_are_handed_out_when_they_are_due_not_before() -> None:
    """The lane waits; the request bears the time it was planned for."""

    async def scenario() -> None:
        schedule = make_schedule([0, 30], warmup=1)
        schedule.start()
        first = schedule.take(0)
        assert first is not None
        assert schedule.take(0) is None
        second = await schedule.wait(0)
        assert second is not None
        assert second.scheduled_ns is not None
        assert 0 <= time.monotonic_ns() - second.scheduled_ns < 500 * MS
        assert (str(first.phase), str(second.phase), second.index) == ("warmup", "measured", 0)
        assert await schedule.wait(0) is None

    asyncio.run(scenario())


def test_a_slot_without_a_free_lane_waits_in_order() -> None:
    """The next lane that is free takes the oldest one; its schedule stays what it was."""

    async def scenario() -> None:
        schedule = make_schedule([-30, -20, -10])
        schedule.start()
        works = [schedule.take(0) for _ in range(3)]
        assert [work.index for work in works if work is not None] == [0, 1, 2]
        assert schedule.pool_empty_ns is not None
        schedule.close()

    asyncio.run(scenario())


def test_free_lanes_of_the_slots_own_target_come_first() -> None:
    """Slots go to the targets in turn while each has a free lane, and to another target where not."""

    async def scenario() -> list[int]:
        schedule = make_schedule([10, 11, 12], targets=(0, 0, 1))
        order: list[int] = []

        async def lane(number: int) -> None:
            work = await schedule.wait(number)
            if work is not None:
                order.append(number)

        tasks = [asyncio.create_task(lane(number)) for number in range(3)]
        await asyncio.sleep(0)
        schedule.start()
        await asyncio.gather(*tasks)
        return order

    # Target 0's lane used last, then target 1's, then what is left of target 0.
    assert asyncio.run(scenario()) == [1, 2, 0]


def test_close_names_unsent_slots_and_requests_past_the_end_of_the_times() -> None:
    """The former with their times, the latter without."""

    async def scenario() -> list[tuple[int, bool]]:
        schedule = make_schedule([-1, 50_000], requests=3)
        schedule.start()
        assert schedule.take(0) is not None
        schedule.close()
        return [(leftover.index, leftover.scheduled_ns is None) for leftover in schedule.leftovers()]

    assert asyncio.run(scenario()) == [(1, False), (2, True)]


def test_a_follower_is_scheduled_no_earlier_than_the_answer_it_follows() -> None:
    """The wait for the other answer is not this client's lateness."""

    async def scenario() -> None:
        schedule = make_schedule([-20, -10], workload=TinyWorkload(follows=((1, 0),)))
        schedule.start()
        first = schedule.take(0)
        assert first is not None
        assert schedule.take(1) is None
        ended_ns = time.monotonic_ns()
        schedule.done(first)
        second = schedule.take(1)
        assert second is not None
        assert second.scheduled_ns is not None
        assert second.scheduled_ns >= ended_ns
        schedule.close()

    asyncio.run(scenario())


def test_a_thousand_slots_per_second_leave_on_time() -> None:
    """The alarm is finer than the loop's milliseconds; half of the slots are less than 1 ms late even on a busy machine."""

    async def scenario() -> float:
        schedule = make_schedule([100 + i for i in range(200)])
        late_ns = []
        schedule.start()
        while (work := schedule.take(0) or await schedule.wait(0)) is not None:
            assert work.scheduled_ns is not None
            late_ns.append(time.monotonic_ns() - work.scheduled_ns)
        assert len(late_ns) == 200
        return float(np.median(late_ns))

    assert asyncio.run(scenario()) < 2 * MS
