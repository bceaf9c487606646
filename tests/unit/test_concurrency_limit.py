"""Tasks that wait until fewer run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task
from flowpregel._engine.admission import ConcurrencyLimit
from flowpregel.context import Job

NODE = Node(name="n")


def group(*names: str, priority: int = 0) -> list[Job]:
    """Return jobs of these names."""
    return [
        Job(
            Task(name, NODE, Kind.CALL, None, ""),
            StepContext("", "", 0, 1),
            priority=priority,
        )
        for name in names
    ]


def ids(jobs: list[Job]) -> list[str]:
    """Return the ids of the tasks that may start."""
    return [job.task.id for job in jobs]


def test_those_who_came_first_go_first() -> None:
    limit = ConcurrencyLimit(3)
    assert ["a", "b"] == ids(limit.acquire(group("a", "b")))
    assert ["c"] == ids(limit.acquire(group("c", "d", "e")))
    assert [] == ids(limit.release([]))

    assert ["d"] == ids(limit.release(["b", "never came"]))


def test_what_others_wait_for_goes_before_them() -> None:
    limit = ConcurrencyLimit(1)
    assert ["a"] == ids(limit.acquire(group("a", "b")))
    assert [] == ids(limit.acquire(group("below a"), first=True))
    assert ["below a"] == ids(limit.release(["a"]))


def test_a_large_task_takes_more_of_the_room() -> None:
    """The last one that starts may take more than there is: it must start some day."""
    sizes = {"a": 3, "b": 9, "c": 1, "d": 4, "e": 1}
    limit = ConcurrencyLimit(4, lambda job: sizes[job.task.id])
    assert ["a", "b"] == ids(limit.acquire(group(*sizes)))
    assert [] == ids(limit.release(["a"]))
    assert limit.room < 1

    assert ["c", "d"] == ids(limit.release(["b"]))
    assert [] == ids(limit.release(["c"]))
    assert ["e"] == ids(limit.release(["d"]))


def test_a_higher_priority_goes_first_and_a_lower_one_last() -> None:
    limit = ConcurrencyLimit(1)
    assert ["a"] == ids(limit.acquire(group("a", "b")))
    assert [] == ids(limit.acquire(group("late", priority=-1)))
    assert [] == ids(limit.acquire(group("urgent", "urgent too", priority=5)))

    order = [
        ids(limit.release([task_id])) for task_id in ("a", "urgent", "urgent too", "b")
    ]

    assert [["urgent"], ["urgent too"], ["b"], ["late"]] == order


def test_who_is_withdrawn_takes_no_place() -> None:
    limit = ConcurrencyLimit(1)
    assert ["a"] == ids(limit.acquire(group("a", "b", "c")))

    withdrawn = limit.withdraw("b")
    assert withdrawn is not None
    assert "b" == withdrawn.task.id
    assert limit.withdraw("b") is None
    assert limit.withdraw("a") is None, "it runs"
    assert ["c"] == ids(limit.release(["a"]))


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["add", "leave", "withdraw"]), max_size=40),
)
def test_never_more_than_may_and_everybody_once(most: int, moves: list[str]) -> None:
    limit = ConcurrencyLimit(most)
    running: list[str] = []
    waiting: list[str] = []
    seen: list[str] = []
    count = 0
    for move in [*moves, *["leave"] * 200]:
        new: list[str] = []
        if move == "add":
            names = [str(count + n) for n in range(3)]
            count += 3
            waiting += names
            new = ids(limit.acquire(group(*names)))
        elif move == "leave" and running:
            new = ids(limit.release([running.pop(0)]))
        elif move == "withdraw" and waiting:
            name = waiting.pop()
            assert limit.withdraw(name) is not None
            seen.append(name)
        assert waiting[: len(new)] == new
        del waiting[: len(new)]
        running += new
        seen += new
        assert len(running) <= most
        assert not waiting or len(running) == most
    assert count == len(set(seen)) == len(seen)
