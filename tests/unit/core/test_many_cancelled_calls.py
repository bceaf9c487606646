"""A superstep, fed by hand: the work for many calls that their body gives up."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from flowpregel._core.effects import (
    CacheLookup,
    Call,
    CancelCall,
    Event,
    Wait,
    Wakeup,
)
from flowpregel._core.records import Arguments, Task
from flowpregel._core.waiting import WaitingTasks
from flowpregel.policies import CachePolicy
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import call_of, fed, node, program


def calls_by(body: Task, count: int, *, is_shared: bool) -> list[Call]:
    """Return *count* calls that *body* makes with different arguments."""
    policy = CachePolicy() if is_shared else None
    called = node("one", cache=policy)
    return [
        replace(
            call_of(body),
            node=called,
            arguments=Arguments((number,), {}),
            reply=(body, number),
        )
        for number in range(count)
    ]


def lines_of_wakeup(steps: Any, events: list[Event]) -> int:
    """Return how many lines of Python run until the first effect of a wake-up with
    *events*.
    """
    lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        steps.send(Wakeup(events, 3, 0))
    finally:
        sys.settrace(before)
    return lines


def lines_to_give_up(count: int, *, is_shared: bool, is_later: bool) -> int:
    """Return how many lines of Python run in the wake-up in which a body gives *count*
    calls up, the last one first.

    Args:
        count: The number of calls.
        is_shared: Whether the results of the calls are shared with other runs.
        is_later: Whether the calls were made in an earlier wake-up.
    """
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    made = calls_by(body, count, is_shared=is_shared)
    events: list[Event] = [
        CancelCall(call.task_id, call.attempt, call.reply) for call in reversed(made)
    ]
    if not is_later:
        return lines_of_wakeup(steps, [*made, *events])
    effect = steps.send(Wakeup(made, 2, 0))
    while not isinstance(effect, Wait):
        effect = steps.send({} if isinstance(effect, CacheLookup) else None)
    return lines_of_wakeup(steps, events)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_later", [True, False])
def test_twice_as_many_calls_that_are_given_up_take_twice_the_work(
    is_shared: bool, is_later: bool
) -> None:
    """A `map` may have thousands of calls."""
    few, many = (
        lines_to_give_up(count, is_shared=is_shared, is_later=is_later)
        for count in (100, 200)
    )

    assert many < 2.1 * few


def test_a_task_that_waits_a_second_time_is_due_at_its_second_time() -> None:
    """Its first time, at which it no longer waited, does not count."""
    waiting = WaitingTasks()
    waiting.add("a", 1)
    assert {"a"} == waiting.take({"a", "b"})
    assert not waiting

    waiting.add("a", 5)
    waiting.add("b", 6)

    assert 5 == waiting.first_due_at
    assert waiting.pop_due(4) is None
    assert ["a", "b", None] == [waiting.pop_due(6) for _ in range(3)]
