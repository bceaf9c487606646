"""Tasks: what can be one, and how they are called."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from concurrent.futures import Future, as_completed, wait
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import TaskFunction, TaskOptions, entrypoint, task
from flowpregel.func.options import TaskKeywords
from tests.runs.functional.flows import double, sync_flow


@task
async def double_later(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def async_flow(called: Any, executor: str, **options: Any) -> Any:
    @entrypoint(executor=executor, **options)
    async def flow(numbers: list[int]) -> int:
        return sum(await asyncio.gather(*called.map(numbers)))

    return flow


# ---------------------------------------------------------------- colours


@pytest.mark.parametrize(
    "called", [double, double_later], ids=["sync task", "async task"]
)
@pytest.mark.parametrize(
    "make", [sync_flow, async_flow], ids=["sync body", "async body"]
)
@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["volatile", "durable"])
def test_bodies_and_tasks_of_either_colour_run_under_either_call(
    drive: Any, executor: str, make: Any, called: Any, saver: Any
) -> None:
    """All sixteen combinations of call, body and task give the same result."""
    flow = make(called, executor, checkpointer=saver and saver())

    assert 12 == drive.invoke(flow, [1, 2, 3], thread_id="1")


def test_a_task_can_call_tasks(drive: Any, executor: str) -> None:
    """Nesting is unlimited."""

    @task
    def below(depth: int) -> int:
        return 0 if depth == 0 else 1 + below(depth - 1).result()

    @entrypoint(executor=executor)
    def flow(depth: int) -> int:
        return below(depth).result()

    assert 7 == drive.invoke(flow, 7)


def test_many_tasks_that_wait_for_their_own_do_not_deadlock(
    drive: Any, executor: str
) -> None:
    """Forty parents, each waiting for a child, need no forty places."""

    @task
    def parent(n: int) -> int:
        return double(n).result()

    @entrypoint(executor=executor)
    def flow(n: int) -> int:
        return sum(future.result() for future in parent.map(range(n)))

    assert 1560 == drive.invoke(flow, 40)


@pytest.mark.parametrize(
    "make", [sync_flow, async_flow], ids=["sync body", "async body"]
)
def test_one_task_at_a_time_is_enough_to_get_on(
    drive: Any, executor: str, make: Any
) -> None:
    """A body that waits takes none of the places that ``max_concurrency`` gives."""
    assert 12 == drive.invoke(make(double, executor), [1, 2, 3], max_concurrency=1)


@pytest.mark.parametrize("wait", [as_completed, lambda futures: wait(futures).done])
def test_futures_are_those_of_the_standard_library(
    drive: Any, executor: str, wait: Callable[[Any], Iterable[Future[int]]]
) -> None:
    """What `concurrent.futures` offers for futures works with them."""

    @entrypoint(executor=executor)
    def flow(n: int) -> list[int]:
        return sorted(future.result() for future in wait(double.map(range(n))))

    assert [0, 2, 4] == drive.invoke(flow, 3)


def test_asyncio_waits_for_futures_in_its_own_ways(drive: Any, executor: str) -> None:
    """``as_completed``, ``wait_for`` and ``TaskGroup`` take them like any awaitable."""

    async def one(n: int) -> int:
        return await asyncio.wait_for(double(n), 30)

    @entrypoint(executor=executor)
    async def flow(n: int) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i)) for i in range(n)]
        ended = sorted(
            [await each for each in asyncio.as_completed(double.map(range(n)))]
        )
        return [each.result() for each in tasks], ended

    assert ([0, 2, 4], [0, 2, 4]) == drive.invoke(flow, 3)


def test_waiting_for_a_task_where_its_loop_runs_is_refused() -> None:
    """``.result()`` in an async body would stop the loop that brings the result."""

    @entrypoint()
    async def flow(n: int) -> int:
        return double(n).result()

    with pytest.raises(RuntimeError, match=r"\.result\(\).* use await"):
        asyncio.run(flow.ainvoke(1))


# ---------------------------------------------------------------- what can be a task


class Shop:
    """Has a task as a method."""

    def __init__(self, price: int) -> None:
        self.price = price

    @task
    def cost(self, count: int) -> int:
        return self.price * count

    @staticmethod
    @task
    def tax(cost: int) -> int:
        return cost // 5

    @classmethod
    @task
    def named(cls, name: str) -> str:
        return f"{cls.__name__} {name}"


class Adder:
    """Is called like a function."""

    def __call__(self, n: int) -> int:
        return n + 1


def test_a_method_is_bound_to_its_object(drive: Any, executor: str) -> None:
    """``@task`` on a method gets ``self``, and ``map`` does too."""

    @entrypoint(executor=executor)
    def flow(count: int) -> Any:
        shop = Shop(7)
        return shop.cost(count).result(), [f.result() for f in shop.cost.map([1, 2])]

    assert (21, [7, 14]) == drive.invoke(flow, 3)


def test_static_and_class_methods_are_tasks_too(drive: Any, executor: str) -> None:
    """The other kinds of methods are bound as Python binds them."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return Shop.tax(n).result(), Shop(1).tax(n).result(), Shop.named("A").result()

    assert (2, 2, "Shop A") == drive.invoke(flow, 10)


def test_the_plain_method_of_an_object_can_be_called_anywhere() -> None:
    """``.func`` of a bound task is the bound method."""
    assert 14 == Shop(7).cost.func(2)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (functools.partial(operator.add, 1), "add"),
        (functools.partial(functools.partial(max, 3), 2), "max"),
        (Adder(), "Adder"),
        (lambda n: n + 1, "<lambda>"),
        (Shop(4).price.__add__, "__add__"),
    ],
)
def test_any_callable_can_be_a_task(
    drive: Any, executor: str, target: Any, name: str
) -> None:
    """Partials, objects, lambdas and built-ins have a name and give a result."""
    called = task(target)

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(n: int) -> int:
        return called(n).result()

    assert name == called.name
    assert target(3) == drive.invoke(flow, 3, thread_id="1")


def test_a_task_keeps_the_face_of_its_function() -> None:
    """Name, docstring and module are the function's."""

    @task(name="other")
    def measured(path: str) -> int:
        """Measure a file."""
        return len(path)

    assert ("measured", "Measure a file.") == (measured.__name__, measured.__doc__)
    assert "other" == measured.name
    assert __name__ == measured.__module__


def test_naming_a_task_leaves_the_function_alone() -> None:
    """One function can be two tasks; neither name is written into it."""

    def plain() -> None:
        """Do nothing."""

    first, second = task(plain, name="first"), task(name="second")(plain)

    assert ("plain", "first", "second") == (plain.__name__, first.name, second.name)


def test_other_options_make_another_task() -> None:
    """``with_options`` leaves the task as it was."""
    other = double.with_options(name="twice", timeout=5)

    assert ("double", None) == (double.name, double.options.timeout)
    assert ("twice", 5.0) == (other.name, other.options.timeout.run_timeout)
    assert double.func is other.func


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 3},
        {"timeout": -1},
        {"executor": "moon"},
        {"version": 2},
        {"retry_policy": 3},
        {"retry_policy": ["no"]},
        {"cache_policy": {}},
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    """The decorator raises, not the first call."""
    with pytest.raises(ConfigurationError):
        task(**options)


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    """The message lists those there are."""
    with pytest.raises(
        TypeError, match=r"no option 'retries'; it has name, retry_policy"
    ):
        task(retries=3)
    with pytest.raises(TypeError, match="no option 'retries'"):
        double.with_options(retries=3)


def test_type_checkers_know_the_options_that_there_are() -> None:
    """What is typed for the decorator's keywords are the fields of the record."""
    known = {each.name: each.type for each in dataclasses.fields(TaskOptions)}

    assert known == {
        name: each.__forward_arg__
        for name, each in TaskKeywords.__annotations__.items()
    }


def test_a_generator_cannot_be_a_task() -> None:
    """What it yields would be lost on the way; the message says what to do instead."""

    def numbers() -> Any:
        yield 1

    with pytest.raises(
        ConfigurationError, match=r"'numbers' is a generator.*get_stream_writer"
    ):
        task(numbers)


def test_what_cannot_be_called_cannot_be_a_task() -> None:
    """The message shows what was given."""
    with pytest.raises(ConfigurationError, match="takes a function, not 3"):
        task(3)


def test_a_task_called_outside_of_a_run_says_what_to_do() -> None:
    """The error names the task and all remedies."""
    with pytest.raises(
        RuntimeError,
        match=(
            r"task 'double'.*double\.run\(.*flowpregel\.map\(double, "
            r".*double\.func\(\.\.\.\).*@entrypoint"
        ),
    ):
        double(1)


def test_the_plain_function_is_there() -> None:
    """``.func`` can be tested and called without a run."""
    assert isinstance(double, TaskFunction)
    assert 6 == double.func(3)


def test_map_takes_several_iterables_of_equal_length(drive: Any, executor: str) -> None:
    """It is the built-in `map`, but for lengths that differ."""
    power = task(pow)

    @entrypoint(executor=executor)
    def flow(_: Any) -> list[int]:
        with pytest.raises(ValueError, match="argument 2 is longer"):
            power.map([1], [2, 3])
        return [f.result() for f in power.map([2, 3], [3, 2])]

    assert [8, 9] == drive.invoke(flow, 0)
