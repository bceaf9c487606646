"""Calls that fail together: a resume tries all of them again, and none that the body
saw.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.runs.notes import Notes

_MANY = 4


class Broken:
    """Fails as long as it is broken; remembers what it was called with."""

    def __init__(self) -> None:
        self.seen = Notes()
        self.mended = Notes()

    def __call__(self, n: int) -> int:
        self.seen.append(n)
        if not len(self.mended):
            raise OSError(n)
        return n


def _resumed(drive: Any, flow: Any, broken: Broken) -> Any:
    """Return what *flow* comes to in its second try, after everything was mended."""
    with pytest.raises(OSError, match=r"\d"):
        drive.invoke(flow, _MANY, thread_id="1")
    broken.mended.append("yes")
    return drive.invoke(flow, None, thread_id="1")


def test_calls_that_failed_together_are_tried_again_together(
    drive: Any, executor: str
) -> None:
    """Though the body heard of the first of them alone."""
    broken = Broken()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return sum(future.result() for future in task(broken).map(range(n)))

    assert 6 == _resumed(drive, flow, broken)
    assert sorted([*range(_MANY)] * 2) == sorted(broken.seen)


def test_calls_that_nobody_waited_for_are_tried_again_together(
    drive: Any, executor: str
) -> None:
    """They fail the run when its body has ended."""
    broken = Broken()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return len(task(broken).map(range(n)))

    assert _MANY == _resumed(drive, flow, broken)
    assert sorted([*range(_MANY)] * 2) == sorted(broken.seen)


@pytest.mark.parametrize("wrapped", [False, True], ids=["futures", "coroutines"])
def test_calls_that_were_gathered_are_tried_again_together(
    drive: Any, executor: str, wrapped: bool
) -> None:
    """`asyncio.gather` raises the first failure, and drops the others."""
    broken = Broken()

    async def one(n: int) -> int:
        return await task(broken)(n)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    async def flow(n: int) -> int:
        calls = [one(i) for i in range(n)] if wrapped else task(broken).map(range(n))
        return sum(await asyncio.gather(*calls))

    assert 6 == _resumed(drive, flow, broken)
    assert sorted([*range(_MANY)] * 2) == sorted(broken.seen)


def test_a_failure_that_another_coroutine_caught_is_replayed(
    drive: Any, executor: str
) -> None:
    """The call that it made instead has its place after it."""
    broken, crash = Broken(), Broken()

    async def one(n: int) -> int:
        try:
            return await task(broken)(n)
        except OSError:
            return await task(lambda: -1, version="1")()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    async def flow(n: int) -> int:
        (found,) = await asyncio.gather(one(n))
        return found + await task(crash)(0)

    with pytest.raises(OSError, match="0"):
        drive.invoke(flow, _MANY, thread_id="1")
    broken.mended.append("yes")
    crash.mended.append("yes")

    assert -1 == drive.invoke(flow, None, thread_id="1")
    assert [_MANY] == [*broken.seen]


def test_a_failure_that_the_body_caught_is_replayed_beside_one_that_ended_it(
    drive: Any, executor: str
) -> None:
    """Only those that it cannot have known of are tried again."""
    broken = Broken()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        futures = task(broken).map(range(n))
        caught = futures[0].exception()
        return sum(future.result() for future in futures[1:]) + (caught is not None)

    assert 7 == _resumed(drive, flow, broken)
    assert [0, 1, 1, 2, 2, 3, 3] == sorted(broken.seen)


# ---------------------------------------------------------------- calls of a task


def test_calls_of_a_task_that_failed_together_are_tried_again_together(
    drive: Any, executor: str
) -> None:
    """Wherever the task runs that makes them."""
    broken = Broken()

    @task
    def middle(n: int) -> int:
        return sum(future.result() for future in task(broken).map(range(n)))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return middle(n).result()

    assert 6 == _resumed(drive, flow, broken)
    assert sorted([*range(_MANY)] * 2) == sorted(broken.seen)


def test_calls_of_a_task_that_it_did_not_wait_for_fail_it(
    drive: Any, executor: str
) -> None:
    """Also those that had failed before it returned."""
    broken, later = Broken(), Broken()
    later.mended.append("from the start")

    @task
    def middle(n: int) -> int:
        calls = task(broken).map(range(n))
        # By now the others have failed, or are about to.
        return len(calls) + task(later)(0).result()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return middle(n).result()

    assert _MANY == _resumed(drive, flow, broken)
    assert sorted([*range(_MANY)] * 2) == sorted(broken.seen)


def test_a_failure_that_a_task_caught_is_replayed_beside_one_that_ended_it(
    drive: Any, executor: str
) -> None:
    """It is part of what the task did."""
    broken = Broken()

    @task
    def middle(n: int) -> int:
        futures = task(broken).map(range(n))
        caught = futures[0].exception()
        return sum(future.result() for future in futures[1:]) + (caught is not None)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return middle(n).result()

    assert 7 == _resumed(drive, flow, broken)
    assert [0, 1, 1, 2, 2, 3, 3] == sorted(broken.seen)


def test_a_call_that_a_body_never_looked_at_lets_it_be_tried_again(drive: Any) -> None:
    """As if the body itself had failed with that: its policy says how often."""
    seen: list[str] = []
    ended = threading.Event()

    @task
    def fails_once() -> None:
        seen.append("call")
        if seen.count("call") == 1:
            raise OSError("once")

    @entrypoint(
        executor="threads",
        retry_policy=RetryPolicy(
            initial_interval=0.001, jitter=False, retry_on=OSError
        ),
    )
    def flow(n: int) -> int:
        seen.append("body")
        fails_once().add_done_callback(lambda _: ended.set())
        assert ended.wait(10)
        return n

    assert 7 == drive.invoke(flow, 7)
    assert 2 == seen.count("body")
