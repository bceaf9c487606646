"""Entrypoints: what can be one, what it is given, what it gives."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from flowpregel.channels import EphemeralValue, LastValue
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_stream_writer
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    NodeTimeoutError,
    ValueEncodingError,
)
from flowpregel.func import entrypoint, task
from flowpregel.store.memory import InMemoryStore
from flowpregel.types import Command, Send
from tests.runs.functional.flows import double, sync_flow


def test_an_entrypoint_is_a_graph_of_one_node() -> None:
    """Its channels have LangGraph's names and kinds."""

    @entrypoint()
    def write_essay(essay: dict[str, str]) -> entrypoint.final[str, int]:
        return entrypoint.final(value=essay["topic"], save=1)

    kinds = {name: type(channel) for name, channel in write_essay.channels.items()}
    assert ["write_essay"] == list(write_essay.nodes)
    assert {
        "__start__": EphemeralValue,
        "__end__": LastValue,
        "__previous__": LastValue,
    } == {name: kind for name, kind in kinds.items() if name != "__pregel_tasks"}
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
    """``config``, ``runtime``, ``context``, ``store`` and ``writer``, beside the
    input.
    """

    items = InMemoryStore()

    @entrypoint(store=items, context_schema=dict)
    def flow(
        n: int, config: dict, runtime: Any, context: Any, store: Any, writer: Any
    ) -> Any:
        writer("hello")
        assert runtime.context is context
        return config["configurable"]["k"], context["user"], store

    streamed = drive.stream(
        flow,
        1,
        {"configurable": {"k": 5}},
        context={"user": "ann"},
        stream_mode=["custom", "updates"],
    )

    assert [("custom", "hello"), ("updates", {"flow": (5, "ann", items)})] == streamed


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


class Generating:
    """Is called like a function, and yields."""

    def __call__(self, n: int) -> Any:
        yield n


@pytest.mark.parametrize(
    "body", [generator, async_generator, functools.partial(generator), Generating()]
)
def test_a_generator_body_is_refused_with_the_way_to_stream(body: Any) -> None:
    """The message names get_stream_writer and the stream mode that shows it."""
    with pytest.raises(
        ConfigurationError, match=r"get_stream_writer.*stream_mode='custom'"
    ):
        entrypoint()(body)


def test_a_body_without_a_parameter_is_refused() -> None:
    """There is always one input."""
    with pytest.raises(ConfigurationError, match="'flow' takes no input"):

        @entrypoint()
        def flow() -> None: ...


def test_a_method_cannot_be_decorated_where_it_is_written() -> None:
    """There is no object yet; the message shows how to make a workflow of a bound
    method.
    """
    with pytest.raises(
        ConfigurationError, match=r"self\.flow = entrypoint\(\.\.\.\)\(self\.run\)"
    ):

        class Shop:
            @entrypoint()
            def run(self, n: int) -> int:
                return n


def test_the_methods_of_an_object_can_be_workflows(drive: Any, executor: str) -> None:
    """So can partials and objects that are called like functions."""

    class Shop:
        def __init__(self, price: int) -> None:
            self.price = price
            self.flow = entrypoint(executor=executor)(self.run)

        def run(self, n: int) -> int:
            return double(n * self.price).result()

        def __call__(self, n: int) -> int:
            return self.run(n)

    shop = Shop(3)
    added = functools.partial(lambda k, n: k + n, 1)
    assert 12 == drive.invoke(shop.flow, 2)
    assert 12 == drive.invoke(entrypoint(executor=executor)(shop), 2)
    assert 3 == drive.invoke(entrypoint(executor=executor)(added), 2)


@pytest.mark.parametrize(
    "returned", [Command(goto="x"), [Send("x", 1)]], ids=["command", "sends"]
)
def test_what_a_body_returns_is_a_value_whatever_it_is(
    drive: Any, returned: Any
) -> None:
    """There is nowhere to go to, so commands and sends are not acted on."""

    @entrypoint()
    def flow(n: int) -> Any:
        return returned

    assert returned == drive.invoke(flow, 1)


def test_what_was_saved_follows_forks(drive: Any) -> None:
    """A run that starts from an earlier checkpoint finds what that one saved."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int, previous: int = 0) -> int:
        return previous + n

    for n in (1, 10, 100):
        drive.invoke(flow, n, thread_id="1")
    first = next(s for s in flow.get_state_history(thread_id="1") if 1 == s.values)

    assert 1001 == drive.invoke(flow, 1000, first.config)


@pytest.mark.parametrize("saved", [int, (int, str, float)])
def test_final_has_two_types(saved: Any) -> None:
    """Of what is returned, and of what is saved."""
    with pytest.raises(TypeError, match="arguments for"):
        entrypoint.final[saved]


def test_a_sync_body_cannot_have_a_timeout() -> None:
    """It waits in this process, where nothing can stop it; its tasks can have one."""
    with pytest.raises(ConfigurationError, match="give the timeout to its tasks"):

        @entrypoint(timeout=1)
        def flow(n: int) -> None: ...


def test_returning_a_future_says_what_to_return(executor: str) -> None:
    """A forgotten ``.result()`` is not told as something about async code."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return double(n)

    with pytest.raises(TypeError, match=r"'flow' returned a future.*\.result\(\)"):
        flow.invoke(1)


def test_a_future_that_would_be_kept_says_what_to_keep(
    saver: BaseCheckpointSaver,
) -> None:
    """Futures inside of what a body returns are not seen before."""

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(n: int) -> Any:
        return {"doubled": [double(n)]}

    with pytest.raises(
        ValueEncodingError, match=r"future of a call, .* its result\(\) returns"
    ):
        flow.invoke(1, thread_id="1")


def test_an_async_body_can_have_a_timeout(drive: Any) -> None:
    """It is stopped where it awaits."""

    @entrypoint(timeout=0.05)
    async def flow(n: int) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NodeTimeoutError):
        drive.invoke(flow, 1)


def test_a_workflow_is_not_a_function() -> None:
    """Calling it says how it is run."""
    with pytest.raises(TypeError, match=r"write flow\.run\("):
        sync_flow(double, "inline")([1])


def test_progress_can_be_streamed_from_a_body_and_its_tasks(
    drive: Any, executor: str
) -> None:
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
