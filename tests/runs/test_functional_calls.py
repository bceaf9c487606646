"""Entrypoints and tasks: what can be one, how they are called, what they are given."""

from __future__ import annotations

import asyncio
import functools
import operator
from typing import Any

import pytest

from flowpregel.channels import EphemeralValue, LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_stream_writer
from flowpregel.errors import ConfigurationError, EmptyInputError
from flowpregel.func import TaskFunction, entrypoint, task


@task
def double(n: int) -> int:
    return 2 * n


@task
async def double_later(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def sync_flow(called: Any, executor: str, **options: Any) -> Any:
    @entrypoint(executor=executor, **options)
    def flow(numbers: list[int]) -> int:
        return sum(future.result() for future in called.map(numbers))

    return flow


def async_flow(called: Any, executor: str, **options: Any) -> Any:
    @entrypoint(executor=executor, **options)
    async def flow(numbers: list[int]) -> int:
        return sum(await asyncio.gather(*called.map(numbers)))

    return flow


# ---------------------------------------------------------------- colours


@pytest.mark.parametrize("called", [double, double_later], ids=["sync task", "async task"])
@pytest.mark.parametrize("make", [sync_flow, async_flow], ids=["sync body", "async body"])
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

    assert 12 == drive.invoke(flow, 12)


def test_many_tasks_that_wait_for_their_own_do_not_deadlock(drive: Any, executor: str) -> None:
    """Forty parents, each waiting for a child, need no forty places."""

    @task
    def parent(n: int) -> int:
        return double(n).result()

    @entrypoint(executor=executor)
    def flow(n: int) -> int:
        return sum(future.result() for future in parent.map(range(n)))

    assert 1560 == drive.invoke(flow, 40)


@pytest.mark.parametrize("make", [sync_flow, async_flow], ids=["sync body", "async body"])
def test_one_task_at_a_time_is_enough_to_get_on(drive: Any, executor: str, make: Any) -> None:
    """A body that waits takes none of the places that ``max_concurrency`` gives."""
    assert 12 == drive.invoke(make(double, executor), [1, 2, 3], max_concurrency=1)


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
def test_any_callable_can_be_a_task(drive: Any, executor: str, target: Any, name: str) -> None:
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
    [{"name": ""}, {"name": 3}, {"timeout": -1}, {"executor": "moon"}, {"version": 2},
     {"retry_policy": 3}, {"retry_policy": ["no"]}, {"cache_policy": {}}],
)  # fmt: skip
def test_a_wrong_option_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    """The decorator raises, not the first call."""
    with pytest.raises(ConfigurationError):
        task(**options)


def test_a_generator_cannot_be_a_task() -> None:
    """What it yields would be lost on the way; the message says what to do instead."""

    def numbers() -> Any:
        yield 1

    with pytest.raises(ConfigurationError, match="'numbers' is a generator.*get_stream_writer"):
        task(numbers)


def test_what_cannot_be_called_cannot_be_a_task() -> None:
    """The message shows what was given."""
    with pytest.raises(ConfigurationError, match="takes a function, not 3"):
        task(3)


def test_a_task_called_outside_of_a_run_says_what_to_do() -> None:
    """The error names the task and both remedies."""
    with pytest.raises(RuntimeError, match=r"task 'double'.*@entrypoint.*double\.func\(\.\.\.\)"):
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


# ---------------------------------------------------------------- entrypoints


def test_an_entrypoint_is_a_graph_of_one_node() -> None:
    """Its channels have LangGraph's names and kinds."""

    @entrypoint()
    def write_essay(essay: dict[str, str]) -> entrypoint.final[str, int]:
        return entrypoint.final(value=essay["topic"], save=1)

    kinds = {name: type(channel) for name, channel in write_essay.channels.items()}
    assert ["write_essay"] == list(write_essay.nodes)
    assert {"__start__": EphemeralValue, "__end__": LastValue, "__previous__": LastValue} == {
        name: kind for name, kind in kinds.items() if name != "__pregel_tasks"
    }
    assert (str, int) == (
        write_essay.channels["__end__"].typ,
        write_essay.channels["__previous__"].typ,
    )
    assert "updates" == write_essay.stream_mode


def test_what_is_saved_may_be_another_thing_than_what_is_returned(drive: Any) -> None:
    """``entrypoint.final`` gives the caller one value, and the next run another."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int, *, previous: int | None = None) -> Any:
        return entrypoint.final(value=previous, save=2 * n)

    assert [None, 6, 2] == [drive.invoke(flow, n, thread_id="1") for n in (3, 1, 0)]
    assert None is drive.invoke(flow, 3, thread_id="2")


def test_without_a_saver_nothing_is_previous(drive: Any) -> None:
    """Each run starts from scratch."""

    @entrypoint()
    def flow(n: int, previous: int | None = None) -> int | None:
        return previous

    assert [None, None] == [drive.invoke(flow, 1), drive.invoke(flow, 1)]


def test_everything_a_body_asks_for_by_name_is_given(drive: Any) -> None:
    """``config``, ``runtime``, ``context``, ``store`` and ``writer``, beside the input."""

    @entrypoint(store="a store", context_schema=dict)
    def flow(n: int, config: dict, runtime: Any, context: Any, store: Any, writer: Any) -> Any:
        writer("hello")
        assert runtime.context is context
        return config["configurable"]["k"], context["user"], store

    items = drive.stream(
        flow, 1, {"configurable": {"k": 5}}, context={"user": "ann"},
        stream_mode=["custom", "updates"],
    )  # fmt: skip

    assert [("custom", "hello"), ("updates", {"flow": (5, "ann", "a store")})] == items


def test_tasks_are_given_what_they_ask_for_too(drive: Any, executor: str) -> None:
    """But an argument that the caller passes wins."""

    @task
    def show(n: int, config: dict[str, Any], context: Any = None) -> Any:
        return config["configurable"]["k"], context

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return show(n).result(), show(n, context="mine").result()

    given = {"configurable": {"k": 5}}
    assert ((5, "run's"), (5, "mine")) == drive.invoke(flow, 1, given, context="run's")


def test_no_input_is_no_run(drive: Any) -> None:
    """None means to go on, and there is nothing to go on with."""
    with pytest.raises(EmptyInputError):
        drive.invoke(sync_flow(double, "inline"), None)


def test_a_body_that_returns_none_has_returned(drive: Any) -> None:
    """None is a result like any other, and is what the next run finds."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int, previous: Any = "nothing") -> Any:
        return None

    assert [{"flow": None}] == drive.stream(flow, 1, thread_id="1")
    assert [{"__end__": None}, None] == [
        {"__end__": flow.get_state(thread_id="1").values},
        drive.invoke(flow, 1, thread_id="1"),
    ]


def generator(n: int) -> Any:
    yield n


async def async_generator(n: int) -> Any:
    yield n


@pytest.mark.parametrize("body", [generator, async_generator, functools.partial(generator)])
def test_a_generator_body_is_refused_with_the_way_to_stream(body: Any) -> None:
    """The message names get_stream_writer and the stream mode that shows it."""
    with pytest.raises(ConfigurationError, match="get_stream_writer.*stream_mode='custom'"):
        entrypoint()(body)


def test_a_body_without_a_parameter_is_refused() -> None:
    """There is always one input."""
    with pytest.raises(ConfigurationError, match="'flow' takes no input"):

        @entrypoint()
        def flow() -> None: ...


def test_the_parentheses_are_not_optional() -> None:
    """``@entrypoint`` alone would take the function for a checkpointer."""
    with pytest.raises(ConfigurationError, match="with parentheses"):

        @entrypoint
        def flow(n: int) -> None: ...


def test_a_sync_body_cannot_have_a_timeout() -> None:
    """It waits in this process, where nothing can stop it; its tasks can have one."""
    with pytest.raises(ConfigurationError, match="give the timeout to its tasks"):

        @entrypoint(timeout=1)
        def flow(n: int) -> None: ...


def test_a_graph_is_not_a_function() -> None:
    """Calling it says how it is run."""
    with pytest.raises(TypeError, match="use .invoke"):
        sync_flow(double, "inline")([1])


def test_progress_can_be_streamed_from_a_body_and_its_tasks(drive: Any, executor: str) -> None:
    """What a task gives the stream arrives, in order, before its result does."""

    @task
    def measure(n: int) -> int:
        get_stream_writer()({"measured": n})
        return n

    @entrypoint(executor=executor)
    def flow(n: int, writer: Any) -> int:
        writer("start")
        return measure(n).result()

    items = drive.stream(flow, 4, stream_mode=["custom", "updates"])

    assert [
        ("custom", "start"),
        ("custom", {"measured": 4}),
        ("updates", {"measure": 4}),
        ("updates", {"flow": 4}),
    ] == items


def test_several_inputs_run_side_by_side(executor: str) -> None:
    """``batch`` is inherited."""
    assert [2, 12] == sync_flow(double, executor).batch([[1], [1, 2, 3]])
