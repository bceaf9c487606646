"""Bodies that are edited between a failure and the next run: every call gets its own
result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel import task
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import Flow, entrypoint

Call = tuple[str, int]
Group = list[Call]
"""Calls that are made before the first of them is waited for."""

CALLS = st.tuples(st.sampled_from("abc"), st.integers(0, 3))
GROUPS = st.lists(CALLS, min_size=1, max_size=4)
BODIES = st.lists(GROUPS, min_size=1, max_size=5)


@st.composite
def edited(draw: st.DrawFn, body: list[Group]) -> list[Group]:
    """Add, drop, swap and rename calls, and change their arguments."""
    calls = [(index, call) for index, group in enumerate(body) for call in group]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(calls)))
        match draw(st.sampled_from(["add", "drop", "swap", "change"])):
            case "add":
                calls.insert(at, (draw(st.integers(0, len(body))), draw(CALLS)))
            case "drop" if at < len(calls):
                del calls[at]
            case "swap" if at + 1 < len(calls):
                calls[at], calls[at + 1] = calls[at + 1], calls[at]
            case "change" if at < len(calls):
                calls[at] = calls[at][0], draw(CALLS)
    groups: list[Group] = [[] for _ in range(len(body) + 1)]
    for index, call in calls:
        groups[index].append(call)
    return [group for group in groups if group]


@st.composite
def histories(draw: st.DrawFn) -> list[list[Group]]:
    """Return a body, and what it became at each edit."""
    bodies = [draw(BODIES)]
    for _ in range(draw(st.integers(1, 3))):
        bodies.append(draw(edited(bodies[-1])))
    return bodies


class Laboratory:
    """Runs bodies under one id, and notes which calls are executed.

    The result of an execution is its own: what was asked, and a number that no other
    has.
    """

    def __init__(self) -> None:
        self.saver = InMemorySaver()
        self.executed: list[Call] = []
        self.left = 0
        """How many more calls end well."""
        self._numbers = count()

    def flow(self, body: list[Group]) -> Flow[[int], list[Any]]:
        """Return a workflow that makes the calls of *body*."""

        def execute(name: str, argument: int) -> tuple[str, int, int]:
            if self.left == 0:
                raise InterruptedError("enough for today")
            self.left -= 1
            self.executed.append((name, argument))
            return name, argument, next(self._numbers)

        # The code of the tasks stays the same; that of the body has its calls in it.
        options: Any = {"executor": "inline", "version": "1"}
        tasks = {
            name: task(
                lambda argument, name=name: execute(name, argument),
                name=name,
                **options,
            )
            for name in "abc"
        }

        @entrypoint(checkpointer=self.saver)
        def laboratory(_: int) -> list[Any]:
            results = []
            for group in body:
                futures = [tasks[name](argument) for name, argument in group]
                results += [future.result() for future in futures]
            return results

        return laboratory

    def run(self, body: list[Group], left: int) -> list[Any] | None:
        """Run *body* until *left* calls were executed; return its results if it came to
        its end.
        """
        self.left, self.executed = left, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self.flow(body).run(1, id="study")
            except InterruptedError:
                return None


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(bodies=histories(), stops=st.lists(st.integers(0, 8), min_size=3, max_size=3))
def test_no_call_gets_the_result_of_another_and_none_runs_twice(
    bodies: list[list[Group]], stops: list[int]
) -> None:
    """What was asked before is answered; what was not is executed, and nothing else."""
    laboratory = Laboratory()
    known: Counter[Call] = Counter()
    for body, stop in zip(bodies[:-1], stops, strict=False):
        asked = Counter(call for group in body for call in group)
        results = laboratory.run(body, stop)
        known += Counter(laboratory.executed)
        assert not Counter(laboratory.executed) - asked
        if results is not None:
            return  # done: another body is not asked for by this id

    last = [call for group in bodies[-1] for call in group]
    results = laboratory.run(bodies[-1], 1_000)

    assert results is not None
    assert [result[:2] for result in results] == last
    assert len({number for *_, number in results}) == len(results)
    assert Counter(laboratory.executed) == Counter(last) - known
