"""A loop over `task.imap` that is left early: nobody waits for calls that nobody
wants.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs.crashes import Once
from tests.runs.notes import Notes

LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


@task
def first_is_quick(n: int, ended: Notes) -> int:
    time.sleep(LONG if n else 0)
    ended.append(n)
    return n


@task
def double(n: int) -> int:
    return 2 * n


def sync_flow(pool: ProcessExecutor, ended: Notes, ordered: bool) -> Any:
    @entrypoint(executor=pool)
    def flow(size: int) -> int:
        for result in first_is_quick.imap(range(size), [ended] * size, ordered=ordered):
            if result == 0:
                break
        return result

    return flow


def async_flow(pool: ProcessExecutor, ended: Notes, ordered: bool) -> Any:
    @entrypoint(executor=pool)
    async def flow(size: int) -> int:
        async for result in first_is_quick.imap(
            range(size), [ended] * size, ordered=ordered
        ):
            if result == 0:
                break
        return result

    return flow


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """Two workers."""
    with ProcessExecutor(2) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [sync_flow, async_flow], ids=["sync body", "async body"]
)
@pytest.mark.parametrize("ordered", [True, False])
def test_calls_that_nobody_wants_are_given_up(
    make: Any, ordered: bool, pool: ProcessExecutor
) -> None:
    """Those that wait are not made, those that run are stopped, and the run is done."""
    ended = Notes()

    assert 0 == make(pool, ended, ordered).invoke(8)
    assert [0] == list(ended)


def test_a_body_that_fails_after_it_has_left_gives_nothing_up(
    drive: Any, executor: str
) -> None:
    """The next run goes through the loop again, and may come further."""
    once = Once(OSError("once"))

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(size: int) -> list[int]:
        seen = []
        for result in double.imap(range(size), window=3):
            seen.append(result)
            if result == 2:
                once()
        return seen

    with pytest.raises(OSError, match="once"):
        drive.invoke(flow, 6, thread_id="1")

    assert [0, 2, 4, 6, 8, 10] == drive.invoke(flow, None, thread_id="1")
