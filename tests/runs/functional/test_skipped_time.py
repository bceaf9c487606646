"""The pytest fixture ``flowpregel_clock``: waits of workflows end at once, in order."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from flowpregel import (
    InMemorySaver,
    RetryPolicy,
    asleep,
    entrypoint,
    signal,
    sleep,
    task,
)
from flowpregel.cache.memory import InMemoryCache
from flowpregel.policies import CachePolicy
from flowpregel.testing.clock import SkippingClock

DAY = 86_400.0

executors = pytest.mark.parametrize("executor", ["inline", "threads", "processes"])


@executors
def test_a_sleep_ends_at_once(flowpregel_clock: SkippingClock, executor: str) -> None:
    """In the body, and in tasks on every executor."""
    begin = flowpregel_clock.now

    @task
    def nap(days: float) -> float:
        sleep(days * DAY)
        return days

    @entrypoint(executor=executor)
    def flow(_: int) -> float:
        sleep(DAY)
        return nap(2).result()

    assert flow.run(1) == 2
    assert flowpregel_clock.now - begin >= timedelta(days=3)


def test_sleeps_end_in_their_order(flowpregel_clock: SkippingClock) -> None:
    """However they were begun."""
    ended: list[int] = []

    @task(executor="threads")
    def nap(days: int) -> None:
        sleep(days * DAY)
        ended.append(days)

    @entrypoint
    def flow(_: int) -> None:
        for future in nap.map([3, 1, 4, 2]):
            future.result()

    begin = flowpregel_clock.now
    flow.run(1)

    assert ended == [1, 2, 3, 4]
    days = (flowpregel_clock.now - begin) / timedelta(days=1)
    assert 4 <= days < 4.1


@executors
def test_a_backoff_ends_at_once(
    flowpregel_clock: SkippingClock, executor: str, tmp_path: Path
) -> None:
    """Also if a sleep ends before it."""
    policy = RetryPolicy(
        max_attempts=3,
        initial_interval=DAY,
        max_interval=2 * DAY,
        jitter=False,
        retry_on=OSError,
    )

    @task(retry_policy=policy)
    def fail(folder: str) -> int:
        count = len([*Path(folder).iterdir()])
        (Path(folder) / str(count)).touch()
        if count < 2:
            raise OSError(count)
        return count

    @entrypoint(executor=executor)
    def flow(folder: str) -> int:
        return fail(folder).result()

    begin = flowpregel_clock.now
    assert flow.run(str(tmp_path)) == 2
    assert flowpregel_clock.now - begin >= timedelta(days=3)


def test_an_async_run_skips_too(flowpregel_clock: SkippingClock) -> None:
    """Sleeps and backoffs, on the loop of the test."""
    ended: list[int] = []

    @task
    async def nap(days: int) -> None:
        await asleep(days * DAY)
        ended.append(days)

    @entrypoint
    async def flow(_: int) -> None:
        await asyncio.gather(*(nap(days) for days in (2, 1, 3)))

    begin = flowpregel_clock.now
    asyncio.run(flow.arun(1))

    assert ended == [1, 2, 3]
    assert flowpregel_clock.now - begin >= timedelta(days=3)


def test_a_signal_that_does_not_come_times_out_at_once(
    flowpregel_clock: SkippingClock,
) -> None:
    """A run that waits for a signal alone skips nothing."""

    @entrypoint(checkpointer=InMemorySaver())
    def order(_: int) -> str:
        approved = signal("approved")
        try:
            approved.result(timeout=DAY)
        except TimeoutError:
            approved.cancel()
            return "late"
        return "approved"

    begin = flowpregel_clock.now
    assert order.run(1, id="order-1") == "late"
    assert flowpregel_clock.now - begin >= timedelta(days=1)


def test_a_cached_result_expires(flowpregel_clock: SkippingClock) -> None:
    """By `advance`."""
    counts: list[int] = []

    @task(cache_policy=CachePolicy(ttl=60), executor="inline")
    def measure(number: int) -> int:
        counts.append(number)
        return number

    @entrypoint(cache=InMemoryCache())
    def flow(number: int) -> int:
        return measure(number).result()

    flow.run(1)
    flow.run(1)
    assert counts == [1]
    flowpregel_clock.advance(timedelta(minutes=2))
    flow.run(1)
    assert counts == [1, 1]


def test_a_users_own_wait_is_real(flowpregel_clock: SkippingClock) -> None:
    """A task that computes holds the clock, even while another sleeps."""
    ended: list[str] = []

    @task(executor="threads")
    def compute() -> None:
        time.sleep(0.2)
        ended.append("computed")

    @task(executor="threads")
    def nap() -> None:
        sleep(DAY)
        ended.append("slept")

    @entrypoint
    def flow(_: int) -> None:
        for future in [nap(), compute()]:
            future.result()

    flow.run(1)

    assert ended == ["computed", "slept"]


def test_the_clock_does_not_go_back(flowpregel_clock: SkippingClock) -> None:
    """Nor to infinity."""
    with pytest.raises(ValueError, match="advance"):
        flowpregel_clock.advance(-1)
