"""Before finished work is repeated, it is told: none of a task's recorded calls
fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, RunNotice, UnmatchedCallsError
from flowpregel.func import Flow, entrypoint, task

Seen = list[Any]
"""The calls that were made and the notices that came, in order."""


def flow_of(
    calls: Callable[[list[int]], list[Any]], saver: BaseCheckpointSaver
) -> Flow[Any, Any]:
    """Return a workflow that makes *calls*, waits for them, and fails once for no fault
    of its.
    """

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(numbers: list[int]) -> list[int]:
        return [future.result() for future in calls(numbers)]

    return flow


def begun(saver: BaseCheckpointSaver, seen: Seen, numbers: list[int]) -> None:
    """Run a workflow that calls ``work`` with each number, and fails in the end."""

    @task
    def work(x: int) -> int:
        seen.append(x)
        return x

    @task
    def fail() -> None:
        raise OSError("the power went out")

    with pytest.raises(OSError, match="power"):
        flow_of(lambda numbers: [*work.map(numbers), fail()], saver).run(
            numbers, id="1"
        )
    seen.clear()


@contextmanager
def noting(seen: Seen) -> Iterator[None]:
    """Add the notices that come to what is *seen*."""

    def show(message: Any, category: type[Warning], *_: Any) -> None:
        assert category is RunNotice
        seen.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", RunNotice)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def told(seen: Seen) -> list[str]:
    """Return the notices among what was *seen* that tell of calls that do not match."""
    return [
        each for each in seen if isinstance(each, str) and "not match the calls" in each
    ]


def respelled(seen: Seen) -> Any:
    """Return a task that is called with one argument more than before."""

    @task
    def work(x: int, mode: str) -> int:
        seen.append(x)
        return x

    return work


def waited_for(future: Any) -> Any:
    """Return *future* when it is done."""
    future.exception()
    return future


WAYS: dict[str, Callable[[Any, list[int]], list[Any]]] = {
    "all at once": lambda work, numbers: work.map(numbers, ["fast"] * len(numbers)),
    "one by one": lambda work, numbers: [
        waited_for(work(number, "fast")) for number in numbers
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_told_before_the_first_call_is_made_again(
    way: str, saver: BaseCheckpointSaver
) -> None:
    """Once, with how many there are, and with both calls."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])
    work = respelled(seen)

    with noting(seen):
        flow_of(lambda numbers: WAYS[way](work, numbers), saver).run([0, 1, 2], id="1")

    assert (
        "3 recorded calls of work do not match the calls made now (recorded work(0), "
        "now work(0, 'fast')); to stop before the new calls run, press Ctrl-C now, "
        "or pass on_unmatched='error'"
    ) == seen[0]
    assert 1 == len(told(seen))
    assert [0, 1, 2] == sorted({each for each in seen if isinstance(each, int)})


@pytest.mark.parametrize("way", WAYS)
def test_it_is_an_error_on_demand_and_nothing_is_lost(
    way: str, saver: BaseCheckpointSaver
) -> None:
    """No call is made; with the task as it was, the run goes on from its records."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])
    flow = flow_of(lambda numbers: WAYS[way](respelled(seen), numbers), saver)

    with pytest.raises(
        UnmatchedCallsError, match=r"3 recorded calls of work.*work\(0, 'fast'\)"
    ):
        flow.run([0, 1, 2], id="1", on_unmatched="error")

    assert [] == seen

    @task
    def work(x: int) -> int:
        seen.append(x)
        return x

    with noting(seen):
        again = flow_of(lambda numbers: [*work.map(numbers)], saver)
        assert [0, 1, 2] == again.run([0, 1, 2], id="1", on_unmatched="error")
    assert [] == [each for each in seen if isinstance(each, int)]


@pytest.mark.parametrize(
    "numbers", [[0, 1, 2, 3], [3, 0, 1, 2], [0, 3, 1, 2], [2, 1]], ids=str
)
def test_calls_that_are_merely_new_are_not_told_of(
    numbers: list[int], saver: BaseCheckpointSaver
) -> None:
    """The code is other code, and the input grew, at any place: others fit."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])

    @task
    def work(x: int) -> int:
        seen.append(x)
        return x

    with noting(seen):
        flow = flow_of(lambda numbers: work.map(numbers), saver)
        result = flow.run(numbers, id="1", adopt=True, on_unmatched="error")

    assert numbers == result
    assert [] == told(seen)


def test_a_new_call_in_front_of_the_others_waits_for_them_to_fit(
    saver: BaseCheckpointSaver,
) -> None:
    """The body was edited; its input is what it was."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])

    @task
    def work(x: int) -> int:
        seen.append(x)
        return x

    with noting(seen):
        flow = flow_of(lambda numbers: work.map([9, *numbers]), saver)
        assert [9, 0, 1, 2] == flow.run([0, 1, 2], id="1", on_unmatched="error")

    assert [] == told(seen)
    assert [9] == [each for each in seen if isinstance(each, int)]


class EagerSaver(InMemorySaver):
    """A saver that reads the results of all calls at once, as others' savers do."""

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        """Return a checkpoint with all its results."""
        return super().load(address, before=before)


@pytest.mark.parametrize("is_eager", [False, True])
def test_other_arguments_for_the_same_task_are_told_of(
    is_eager: bool, saver: BaseCheckpointSaver
) -> None:
    """The body was edited; neither its input nor the code of the task was."""
    ran: list[int] = []
    if is_eager:
        saver = EagerSaver()

    @task
    def work(x: int) -> int:
        ran.append(x)
        return x

    @task
    def fail() -> None:
        raise OSError("the power went out")

    with pytest.raises(OSError, match="power"):
        flow_of(lambda numbers: [*work.map(numbers), fail()], saver).run(
            [0, 1, 2], id="1"
        )

    edited = flow_of(
        lambda numbers: [*work.map([each + 10 for each in numbers])], saver
    )
    with pytest.raises(
        UnmatchedCallsError, match=r"3 recorded calls of work.*work\(0\).*work\(10\)"
    ):
        edited.run([0, 1, 2], id="1", on_unmatched="error")

    assert [0, 1, 2] == ran


@pytest.mark.parametrize("way", ["other name", "decorated", "in chunks"])
def test_a_call_in_the_place_of_a_task_that_is_gone_is_told_of(
    way: str, saver: BaseCheckpointSaver
) -> None:
    """It has the same arguments, and the body names the recorded task no more."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])

    @task
    def other(x: int) -> int:
        seen.append(x)
        return x

    calls: dict[str, Callable[[list[int]], list[Any]]] = {
        "other name": lambda numbers: other.map(numbers),
        "decorated": lambda numbers: as_decorated(seen).map(numbers),
        "in chunks": lambda numbers: [
            *other.with_options(name="work").map(numbers, chunksize=2)  # type: ignore[list-item]
        ],
    }
    asked = {
        "other name": "other(0)",
        "decorated": "inner(0)",
        "in chunks": "work.map(2 items",
    }
    flow = flow_of(calls[way], saver)
    with pytest.raises(
        UnmatchedCallsError, match=r"3 recorded calls of work.*adopts='work'"
    ):
        flow.run([0, 1, 2], id="1", on_unmatched="error")
    assert [] == seen
    with noting(seen):
        flow.run([0, 1, 2], id="1")

    assert (
        "3 recorded calls of work do not match the calls made now "
        f"(recorded work(0), now {asked[way]}"
    ) in seen[0]
    assert ("adopts='work'" in seen[0]) is (way != "in chunks")
    assert 1 == len(told(seen))


@pytest.mark.parametrize("way", ["still called", "other arguments"])
def test_a_new_task_is_not_told_of(way: str, saver: BaseCheckpointSaver) -> None:
    """Its calls stand where those of another task are recorded."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])

    @task
    def work(x: int) -> int:
        seen.append(x)
        return x

    @task
    def other(x: int) -> int:
        return x

    calls: dict[str, Callable[[list[int]], list[Any]]] = {
        "still called": lambda numbers: [
            work(waited_for(other(each)).result()) for each in numbers
        ],
        "other arguments": lambda numbers: [other(each + 10) for each in numbers],
    }
    with noting(seen):
        flow_of(calls[way], saver).run([0, 1, 2], id="1", on_unmatched="error")

    assert [] == told(seen)
    assert [] == [each for each in seen if isinstance(each, int)]


def test_the_option_is_checked() -> None:
    """The message says what it can be."""

    @entrypoint(executor="inline")
    def flow(_: int) -> None: ...

    with pytest.raises(ConfigurationError, match="'run' or 'error'"):
        flow.run(1, on_unmatched="stop")  # type: ignore[call-overload]


# tasks that have changed ---------------------------------------------------


class Model:
    """An object whose method is a task."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def work(self, x: int) -> int:
        """Note the call."""
        self.seen.append(x)
        return x


def logged(function: Any) -> Any:
    """Wrap *function*, and say so nowhere."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def as_method(seen: Seen, **options: Any) -> Any:
    """Return a task that is a method now."""

    class Tool(Model):
        work = task(**options)(Model.work)  # type: ignore[assignment]

    return Tool(seen).work


def as_decorated(seen: Seen, **options: Any) -> Any:
    """Return a task with a decorator that hides its name and its parameters."""

    def work(x: int) -> int:
        seen.append(x)
        return x

    return task(**options)(logged(work))


@pytest.mark.parametrize("change", [as_method, as_decorated])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_task_that_has_changed_its_form_adopts_its_calls(
    change: Any, by_name: bool, saver: BaseCheckpointSaver
) -> None:
    """It became a method, or got a decorator without ``functools.wraps``."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])
    work = change(seen, adopts="work")

    def calls(numbers: list[int]) -> list[Any]:
        return [work(x=number) if by_name else work(number) for number in numbers]

    with noting(seen):
        result = flow_of(calls, saver).run([0, 1, 2], id="1", on_unmatched="error")

    assert [0, 1, 2] == result
    assert [] == [each for each in seen if isinstance(each, int)]


def test_without_that_a_task_that_became_a_method_is_told_of(
    saver: BaseCheckpointSaver,
) -> None:
    """The message says how to adopt."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])
    work = as_method(seen, name="work")

    with pytest.raises(
        UnmatchedCallsError, match=r"adopts='work'.*turned into a method"
    ):
        flow_of(lambda numbers: work.map(numbers), saver).run(
            [0, 1, 2], id="1", on_unmatched="error"
        )

    assert [] == seen


def test_a_call_that_is_refused_late_is_not_counted_as_executed(
    saver: BaseCheckpointSaver,
) -> None:
    """The body fails while the call waits, so there is nothing to notice."""
    seen: Seen = []
    begun(saver, seen, [0, 1, 2])
    work = as_method(seen, name="work")

    def calls(numbers: list[int]) -> list[Any]:
        try:
            work(0).result()
        finally:
            work(1)
        return []

    with pytest.raises(UnmatchedCallsError):
        flow_of(calls, saver).run([0, 1, 2], id="1", on_unmatched="error")

    assert [] == seen
