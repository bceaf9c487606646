"""Tasks that wait until as few are at work as may be."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task
from flowpregel._engine.nested import RunContext
from flowpregel._engine.quota import stretches
from flowpregel._engine.tasks import ConcurrencyLimit, TaskGroup
from flowpregel.context import RunInfo

NODE = Node(name="n")
SETTING = StepContext("", "", 0, 1, {}, {}, None, False, {})
AROUND = RunContext(config={})


def task(name: str, node: Node = NODE, parent: Task | None = None) -> Task:
    """Return a call."""
    return Task(name, node, Kind.CALL, None, name, parent=parent)


def stretch(*names: str) -> TaskGroup:
    """Return calls of these names."""
    return TaskGroup(NODE, [task(name) for name in names], SETTING, AROUND, RunInfo())


def admitted(quota: ConcurrencyLimit) -> list[str]:
    """Return the names of those whose turn it is now."""
    return [each.id for part in quota.admit() for each in part.tasks]


def test_those_who_came_first_go_first() -> None:
    quota = ConcurrencyLimit(3)
    quota.add(stretch("a", "b"))
    quota.add(stretch("c", "d", "e"))
    assert ["a", "b", "c"] == admitted(quota)
    assert [] == admitted(quota)

    quota.leave(["b", "never came"])
    assert ["d"] == admitted(quota)


def test_what_others_wait_for_goes_before_them() -> None:
    quota = ConcurrencyLimit(1)
    quota.add(stretch("a", "b"))
    assert ["a"] == admitted(quota)
    quota.add(stretch("below a"), first=True)
    quota.leave(["a"])
    assert ["below a"] == admitted(quota)


def test_who_is_withdrawn_takes_no_place() -> None:
    quota = ConcurrencyLimit(1)
    quota.add(stretch("a", "b", "c"))
    assert ["a"] == admitted(quota)

    withdrawn = quota.withdraw("b")
    assert withdrawn is not None
    assert "b" == withdrawn.id
    assert quota.withdraw("b") is None
    assert quota.withdraw("a") is None, "it is at work"
    quota.leave(["a"])
    assert ["c"] == admitted(quota)


def test_a_part_starts_with_what_the_whole_was_to_start_with() -> None:
    quota, whole = ConcurrencyLimit(1), stretch("a", "b")
    quota.add(whole)
    (part,) = quota.admit()
    assert whole.setting is part.setting
    assert whole.run is part.run


@given(st.integers(1, 4), st.lists(st.sampled_from(["add", "leave", "withdraw"]), max_size=40))
def test_never_more_than_may_and_everybody_once(most: int, moves: list[str]) -> None:
    quota, working, waiting, seen, count = ConcurrencyLimit(most), [], [], [], 0
    for move in [*moves, *["leave"] * 200]:
        if move == "add":
            names = [str(count + n) for n in range(3)]
            count += 3
            quota.add(stretch(*names))
            waiting += names
        elif move == "leave" and working:
            quota.leave([working.pop(0)])
        elif move == "withdraw" and waiting:
            name = waiting.pop()
            assert quota.withdraw(name) is not None
            seen.append(name)
        new = admitted(quota)
        assert waiting[: len(new)] == new
        del waiting[: len(new)]
        working += new
        seen += new
        assert len(working) <= most
        assert not waiting or len(working) == most
    assert count == len(set(seen)) == len(seen)


def test_calls_are_parted_by_node_and_caller() -> None:
    other, body = Node(name="n"), task("body")
    tasks: list[Any] = [task("a"), task("b"), task("c", other), task("d", other, body), task("e")]
    parts = [[each.id for each in part] for part in stretches(tasks)]
    assert [["a", "b"], ["c"], ["d"], ["e"]] == parts
