"""Code is what it is at the call: callables and closures that change between calls."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task

EXECUTORS = pytest.mark.parametrize(
    "executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker: each call finds what the one before has left."""
    with ProcessExecutor(1) as pool:
        yield pool


class Model:
    """Predicts by its weight."""

    def __init__(self, w: int) -> None:
        self.w = w

    def predict(self, x: int) -> int:
        return self.w * x


class Scale:
    """Is equal to any other whose factor is equal, and has its hash."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: int) -> float:
        return self.by * x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self.by == other.by

    def __hash__(self) -> int:
        return hash(self.by)


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[int] = []

    def __call__(self, x: int) -> tuple[int, list[int]]:
        self.calls += 1
        self.seen.append(x)
        return self.calls, self.seen


# ------------------------------------------------ plain functions of a pool


def test_a_bound_method_has_the_state_of_its_call(pool: ProcessExecutor) -> None:
    """Its object was changed between two calls; equal methods are not the same."""
    model = Model(1)
    first = pool.submit(model.predict, 10)
    model.w = 2
    second = pool.submit(model.predict, 10)

    assert (10, 20) == (first.result(), second.result())


def test_equality_never_stands_for_identity(pool: ProcessExecutor) -> None:
    """Of callables that are equal, each is called itself."""
    found = [
        pool.submit(each, 2).result() for each in (Scale(1), Scale(1.0), Scale(True))
    ]

    assert ["2", "2.0", "2"] == [*map(repr, found)]


def test_what_a_call_leaves_in_its_callable_is_gone_at_the_next(
    pool: ProcessExecutor,
) -> None:
    """Also in what is deeper in it."""
    counter = Counter()

    assert [(1, [7])] * 3 == [pool.submit(counter, 7).result() for _ in range(3)]
    assert 0 == counter.calls


def test_a_closure_has_the_values_of_its_call(pool: ProcessExecutor) -> None:
    """Whether a name was bound anew, or its value was changed, here or in a helper."""
    factor, table = 1, {"a": [1]}

    def helper(x: int) -> int:
        return factor * x

    def work(x: int, *, most: int = 3) -> tuple[int, int, int]:
        return helper(x), table["a"][0], most

    found = [pool.submit(work, 10)]
    factor = 2
    found.append(pool.submit(work, 10))
    table["a"][0] = 5
    found.append(pool.submit(work, 10))
    work.__kwdefaults__["most"] = 9
    found.append(pool.submit(work, 10))

    assert [(10, 1, 3), (20, 1, 3), (20, 5, 3), (20, 5, 9)] == [
        each.result() for each in found
    ]


def test_a_closure_keeps_nothing_of_an_earlier_call(pool: ProcessExecutor) -> None:
    """Neither in a name that is not its own, nor in a list, nor in an attribute of
    itself.
    """
    count, seen = 0, []

    def work(x: int) -> tuple[int, int, int]:
        nonlocal count
        count += 1
        seen.append(x)
        work.calls = getattr(work, "calls", 0) + 1  # type: ignore[attr-defined]
        return count, len(seen), work.calls  # type: ignore[attr-defined]

    assert [(1, 1, 1)] * 3 == [pool.submit(work, 1).result() for _ in range(3)]


def test_a_local_class_is_as_it_is_at_the_call(pool: ProcessExecutor) -> None:
    """What a task changed in it, or what the program deleted, does not stay in the
    worker.
    """

    class Settings:
        size = 1
        bias = 5

    def work(x: int) -> list[int]:
        found = [
            Settings.size * x,
            getattr(Settings, "bias", 0),
            getattr(Settings, "own", 0),
        ]
        Settings.size, Settings.own = 99, 99  # type: ignore[attr-defined]
        return found

    found = [pool.submit(work, 2).result() for _ in range(2)]
    Settings.size = 3
    del Settings.bias
    found.append(pool.submit(work, 2).result())

    assert [[2, 5, 0], [2, 5, 0], [6, 0, 0]] == found


MAIN = """
from flowpregel.executors.processes import ProcessExecutor

FACTOR, TABLE = 1, {"a": 1}

def helper(x):
    return FACTOR * x

def work(x):
    global FACTOR
    found = helper(x), TABLE["a"]
    FACTOR, TABLE["a"] = 77, 77
    return found

with ProcessExecutor(1) as pool:
    print(*[pool.submit(work, 10).result() for _ in range(2)])
    FACTOR = 2
    print(pool.submit(work, 10).result())
    TABLE["a"] = 3
    print(pool.submit(work, 10).result())
    def helper(x):
        return -x
    print(pool.submit(work, 10).result())
"""


@pytest.mark.slow
def test_functions_of_the_main_program_have_the_globals_of_their_call() -> None:
    """Those that they name, and those that their helpers name; none that a call has
    set.
    """
    done = subprocess.run(
        [sys.executable, "-c", MAIN], capture_output=True, text=True, check=False
    )

    expected = "(10, 1) (10, 1)\n(20, 1)\n(20, 3)\n(-10, 3)\n"
    assert (expected, "") == (done.stdout, done.stderr)


# ------------------------------------------------ tasks


@EXECUTORS
def test_a_task_gets_the_value_that_a_name_has_at_the_call(
    drive: Any, executor: str
) -> None:
    """Though it runs when the body has bound the name anew; and that value is
    recorded.
    """
    fails = [True]

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(_: int) -> list[int]:
        factor = 0

        def helper(x: int) -> int:
            return factor * x

        @task
        def scaled(x: int) -> int:
            return helper(x)

        @task
        def late(x: int, y: int) -> int:
            return helper(x) + y

        calls = []
        for factor in (1, 2, 3):  # noqa: B007 - the task closes over it
            first = scaled(10)
            calls.append(first)
            calls.extend(scaled.map([20, 30], chunksize=2))
            # Each waits for a value of its own: calls that ask for the same are known
            # by the order in which they can start.
            calls.append(late(10, first))
        found = [each.result() for each in calls]
        if fails.pop() if fails else False:
            raise RuntimeError("once")
        return found

    with pytest.raises(RuntimeError, match="once"):
        drive.invoke(flow, 0, thread_id="1")

    expected = [10, 20, 30, 20, 20, 40, 60, 40, 30, 60, 90, 60]
    assert expected == drive.invoke(flow, None, thread_id="1")


def test_equal_calls_of_other_code_have_their_own_results_in_any_order(
    drive: Any,
) -> None:
    """One that waits for a value can start sooner when the run resumes."""
    fails = [True]
    is_second_made = threading.Event()

    @entrypoint(executor="threads", checkpointer=InMemorySaver())
    def flow(_: int) -> list[int]:
        factor = 0

        @task
        def first() -> int:
            is_second_made.wait(30)
            return 10

        @task
        def late(x: int, y: int) -> int:
            if factor == 2:
                is_second_made.set()
            return factor * x + y

        value = first()
        if not fails:
            value.result()
        factor = 1
        waiting = late(10, value)
        factor = 2
        direct = late(10, 10)
        found = [waiting.result(), direct.result()]
        if fails:
            fails.clear()
            raise RuntimeError("once")
        return found

    with pytest.raises(RuntimeError, match="once"):
        drive.invoke(flow, 0, thread_id="1")

    assert [20, 30] == drive.invoke(flow, None, thread_id="1")


@pytest.mark.slow
def test_a_task_gets_what_its_closure_held_at_the_call(drive: Any) -> None:
    """In a worker: the body changes it before the call can have been sent."""

    @entrypoint(executor="processes")
    def flow(_: int) -> list[int]:
        seen: list[int] = []

        @task
        def count() -> int:
            return len(seen)

        calls = []
        for number in range(20):
            calls.append(count())
            seen.append(number)
        return [each.result() for each in calls]

    assert [*range(20)] == drive.invoke(flow, 0)


@pytest.mark.slow
def test_an_engine_of_the_user_gets_what_a_closure_held_at_the_call(drive: Any) -> None:
    """Any `concurrent.futures.Executor`."""
    with ThreadPoolExecutor(1) as engine:

        @entrypoint(executor=engine)
        def flow(_: int) -> list[int]:
            seen: list[int] = []

            @task
            def count() -> int:
                return len(seen)

            calls = []
            for number in range(20):
                calls.append(count())
                seen.append(number)
            return [each.result() for each in calls]

        assert [*range(20)] == drive.invoke(flow, 0)


@task(executor="threads")
def called(function: Callable[[int], Any]) -> Any:
    return function(1)


@pytest.mark.slow
def test_calls_of_a_task_in_a_worker_are_of_its_code_then(drive: Any) -> None:
    """Also of tasks that run in this process; each call has code of its own."""

    @task
    def parent(_: int) -> list[Any]:
        factor, counter = 1, Counter()
        counting = task(counter, executor="threads", name="counting")

        @task(executor="threads")
        def scaled(x: int) -> int:
            return factor * x

        calls = [scaled(10)]
        factor = 2
        calls.append(scaled(10))
        return [
            *(each.result() for each in calls),
            *(counting(7).result()[0] for _ in range(3)),
        ]

    @entrypoint(executor="processes")
    def flow(_: int) -> list[Any]:
        return parent(0).result()

    assert [10, 20, 1, 1, 1] == drive.invoke(flow, 0)


def test_a_task_may_still_bind_names_of_the_body_that_it_calls_its_own(
    drive: Any,
) -> None:
    """With ``nonlocal``, where it runs in this process."""

    @entrypoint(executor="inline")
    def flow(_: int) -> int:
        total = 0

        @task
        def add(x: int) -> None:
            nonlocal total
            total += x

        for number in (1, 2):
            add(number).result()
        return total

    assert 3 == drive.invoke(flow, 0)
