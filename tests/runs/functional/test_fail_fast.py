"""What is queued when a body has failed, and failures that nobody looked at."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.runs.functional.flows import run
from tests.runs.notes import Notes

_COUNT = 12


class Halves:
    """A workflow whose first call fails while the others wait behind it."""

    def __init__(self, executor: str, *, is_async: bool = False) -> None:
        seen = self.seen = Notes()
        mended = self.mended = Notes()

        @task
        def halve(n: int) -> float:
            seen.append(n)
            if n == 0 and not len(mended):
                raise OSError("no half of 0")
            time.sleep(0.02)
            return n / 2

        def wait(count: int) -> float:
            return sum(future.result() for future in halve.map(range(count)))

        async def gather(count: int) -> float:
            return sum(await asyncio.gather(*halve.map(range(count))))

        body: Any = gather if is_async else wait
        made = entrypoint(checkpointer=InMemorySaver(), executor=executor)(body)
        self.flow = made.with_config(max_concurrency=2)


@pytest.mark.parametrize("is_async", [False, True], ids=["waits", "gathers"])
def test_what_is_queued_is_not_started_once_the_body_has_failed(
    drive: Any, executor: str, is_async: bool
) -> None:
    """What runs then is finished and kept: the next run makes the rest alone."""
    halves = Halves(executor, is_async=is_async)

    with pytest.raises(OSError, match="no half of 0"):
        run(drive, halves.flow, _COUNT, id="1")

    at_failure = [*halves.seen]
    assert len(at_failure) < _COUNT

    halves.mended.append("yes")
    assert _COUNT * (_COUNT - 1) / 4 == run(drive, halves.flow, _COUNT, id="1")
    assert sorted([0, *range(_COUNT)]) == sorted(halves.seen)


def test_calls_are_made_to_their_end_where_that_was_asked_for(
    drive: Any, executor: str
) -> None:
    """Though the run fails."""
    halves = Halves(executor)

    with pytest.raises(OSError, match="no half of 0"):
        run(drive, halves.flow, _COUNT, id="1", fail_fast=False)

    assert [*range(_COUNT)] == sorted(halves.seen)


def test_invoke_makes_calls_to_their_end(drive: Any, executor: str) -> None:
    """As LangGraph's does."""
    halves = Halves(executor)

    with pytest.raises(OSError, match="no half of 0"):
        drive.invoke(halves.flow, _COUNT, thread_id="1")

    assert [*range(_COUNT)] == sorted(halves.seen)


def test_invoke_can_be_told_to_fail_fast(drive: Any, executor: str) -> None:
    """The option is one of every run."""
    halves = Halves(executor)

    with pytest.raises(OSError, match="no half of 0"):
        drive.invoke(halves.flow, _COUNT, thread_id="1", fail_fast=True)

    assert len(halves.seen) < _COUNT


def test_a_call_that_waits_for_its_next_attempt_has_none_once_the_body_has_failed(
    drive: Any,
) -> None:
    """It would be of no use to anybody, and the run would wait for it."""
    tries = Notes()

    @task(
        retry_policy=RetryPolicy(initial_interval=60, max_attempts=3, retry_on=OSError)
    )
    def unsteady() -> None:
        tries.append("try")
        raise OSError("try again")

    @entrypoint(executor="threads")
    def flow(n: int) -> None:
        unsteady()
        while not len(tries):
            time.sleep(0.001)
        time.sleep(0.1)
        raise KeyError(n)

    began = time.monotonic()
    with pytest.raises(KeyError):
        run(drive, flow, 1)

    assert time.monotonic() - began < 30
    assert ["try"] == [*tries]


def test_a_body_that_is_tried_again_loses_no_call(drive: Any, executor: str) -> None:
    """It has not failed for good: its calls go on, and the next attempt finds them."""
    halves = Halves(executor)
    policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=OSError)
    body = halves.flow.nodes["wait"].bound

    def wait(count: int) -> float:
        try:
            return float(body(count))
        finally:
            halves.mended.append("yes")

    flow = entrypoint(executor=executor, retry_policy=policy)(wait)

    assert _COUNT * (_COUNT - 1) / 4 == run(drive, flow, _COUNT)
    assert [0, *range(_COUNT)] == sorted(halves.seen)


def test_a_failure_that_nobody_looked_at_says_how_to_look(
    drive: Any, executor: str
) -> None:
    """It is what the run fails with, though the body has returned."""

    @task
    def check(n: int) -> None:
        raise OSError(n)

    @entrypoint(executor=executor)
    def flow(count: int) -> int:
        return len(check.map(range(count)))

    with pytest.raises(OSError, match=r"\d") as failed:
        run(drive, flow, 3)

    notes = "\n".join(failed.value.__notes__)
    assert "the body did not check this failure of check(" in notes
    assert ".result()" in notes
    assert ".exception()" in notes


def test_failures_beside_the_one_that_is_raised_are_named(
    drive: Any, executor: str
) -> None:
    """They are what is to be mended next."""

    @task
    def check(n: int) -> None:
        if n:
            raise OSError(n)

    @entrypoint(executor=executor)
    def flow(count: int) -> None:
        futures = check.map(range(count))
        futures[2].exception()
        futures[1].result()

    with pytest.raises(OSError, match="1") as failed:
        run(drive, flow, 7, fail_fast=False)

    (note,) = [note for note in failed.value.__notes__ if "unchecked" in note]
    assert note.startswith("other unchecked failures (4): check(")
    assert note.endswith("), ...")
    assert "check(2)" not in note


def test_a_failure_that_was_looked_at_says_nothing_of_that(
    drive: Any, executor: str
) -> None:
    """The note is for those that would be missed."""

    @task
    def check(n: int) -> None:
        raise OSError(n)

    @entrypoint(executor=executor)
    def flow(count: int) -> None:
        check(count).result()

    with pytest.raises(OSError, match="3") as failed:
        run(drive, flow, 3)

    notes = "\n".join(failed.value.__notes__)
    assert "did not check" not in notes
    assert "unchecked" not in notes
