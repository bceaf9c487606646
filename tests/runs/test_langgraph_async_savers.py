"""LangGraph's async savers: what they keep waits for the event loop that the run is on."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt

sqlite = pytest.importorskip("langgraph.checkpoint.sqlite.aio")
DURABILITIES = ["sync", "async", "exit"]


class Items(TypedDict):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


async def note(state: Items) -> Items:
    """Add the number of items so far."""
    return {"items": [len(state["items"])]}


def ask(state: Items) -> Items:
    """Ask, and add the answer."""
    return {"items": [interrupt("really?")]}


def graph(saver: Any) -> Any:
    """Return a graph of an async and a sync node, kept with *saver*."""
    builder = StateGraph(Items).add_sequence([note, ask]).add_edge(START, "note")
    return builder.compile(saver, executor="threads")


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run *coroutine* for as long as a test may take."""
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_on_an_async_saver_ends_and_goes_on(tmp_path: Path, durability: Any) -> None:
    """It neither waits for the loop that it holds, nor calls the saver on it."""

    async def story() -> None:
        async with sqlite.AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            app, config = graph(saver), {"configurable": {"thread_id": "1"}}
            asked = await app.ainvoke({"items": []}, config, durability=durability)
            answered = await app.ainvoke(Command(resume="yes"), config, durability=durability)
            state = await app.aget_state(config)
        assert ["really?"] == [each.value for each in asked["__interrupt__"]]
        assert [0, "yes"] == answered["items"] == state.values["items"]

    run(story())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_on_an_async_saver_can_be_cancelled(tmp_path: Path, durability: Any) -> None:
    """What it has kept by then is there, and it goes on."""

    async def story() -> None:
        entered, release = asyncio.Event(), asyncio.Event()

        async def wait(_: Items) -> Items:
            entered.set()
            await release.wait()
            return {"items": ["done"]}

        async with sqlite.AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            builder = StateGraph(Items).add_sequence([note, wait]).add_edge(START, "note")
            app, config = builder.compile(saver), {"configurable": {"thread_id": "1"}}
            running = asyncio.create_task(app.ainvoke({"items": []}, config, durability=durability))
            await entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            release.set()
            assert [0, "done"] == (await app.ainvoke(None, config))["items"]

    run(story())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_node_that_would_block_the_loop_of_its_saver_is_an_error(durability: Any) -> None:
    """A sync node there waits for a graph, which waits for the saver, which needs the loop."""
    inner = StateGraph(Items).add_node(note).add_edge(START, "note").compile(executor="inline")

    def call(state: Items) -> Any:
        return inner.invoke(state)

    async def story() -> None:
        async with sqlite.AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            builder = StateGraph(Items).add_node(call).add_edge(START, "call")
            app = builder.compile(saver, executor="inline")
            config = {"configurable": {"thread_id": "1"}}
            with pytest.raises(
                RuntimeError, match=r"inline on the event loop.*executor=\"threads\""
            ):
                await app.ainvoke({"items": []}, config, durability=durability)

    run(story())
