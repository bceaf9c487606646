"""LangGraph's async savers: what they keep waits for the event loop that the run is
on.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt

DURABILITIES = ["sync", "async", "exit"]
CONFIG = {"configurable": {"thread_id": "1"}}
OTHER = {"configurable": {"thread_id": "other"}}
Open = Callable[[], AbstractAsyncContextManager[Any]]


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
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@asynccontextmanager
async def on_postgres(url: str, kind: str) -> AsyncIterator[Any]:
    """Open a saver on one connection, on one in pipeline mode, or on a pool of them."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    if kind == "pool":
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(
            url, min_size=2, kwargs=settings, open=False
        ) as pool:
            yield AsyncPostgresSaver(pool)
        return
    pipeline = kind == "pipeline"
    async with AsyncPostgresSaver.from_conn_string(url, pipeline=pipeline) as saver:
        yield saver


@pytest.fixture(params=["sqlite", "connection", "pipeline", "pool"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens an async saver of LangGraph."""
    if request.param == "sqlite":
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite.aio")
        return lambda: sqlite.AsyncSqliteSaver.from_conn_string(str(tmp_path / "db"))
    url = request.getfixturevalue("langgraph_url")
    return lambda: on_postgres(url, request.param)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_on_an_async_saver_ends_and_goes_on(
    opened: Open, durability: Any
) -> None:
    """It neither waits for the loop that it holds, nor calls the saver on it."""

    async def story() -> None:
        async with opened() as saver:
            app = graph(saver)
            asked = await app.ainvoke({"items": []}, CONFIG, durability=durability)
            answered = await app.ainvoke(
                Command(resume="yes"), CONFIG, durability=durability
            )
            state = await app.aget_state(CONFIG)
            history = [
                each.values["items"] async for each in app.aget_state_history(CONFIG)
            ]
        assert ["really?"] == [each.value for each in asked["__interrupt__"]]
        assert [0, "yes"] == answered["items"] == state.values["items"]
        between = [[0]] if durability == "exit" else [[0], []]
        assert [[0, "yes"], *between] == history[: 1 + len(between)]

    run(story())


def test_a_nested_graph_on_an_async_saver_resumes(opened: Open) -> None:
    """The records of its finished nodes are not read on the loop of the saver."""

    async def story() -> None:
        async with opened() as saver:
            builder = StateGraph(Items).add_node("inner", graph(None))
            app = builder.add_edge(START, "inner").compile(saver, executor="threads")
            asked = await app.ainvoke({"items": []}, CONFIG)
            answered = await app.ainvoke(Command(resume="yes"), CONFIG)
        assert ["really?"] == [each.value for each in asked["__interrupt__"]]
        assert [0, "yes"] == answered["items"]

    run(story())


def test_a_graph_on_another_thread_with_an_async_saver_resumes(opened: Open) -> None:
    """Its start is not read on the loop of the saver."""

    async def story() -> None:
        async with opened() as saver:
            inner = graph(saver)

            async def answer(_: Items) -> Items:
                asked = await inner.ainvoke({"items": []}, OTHER)
                answered = await inner.ainvoke(Command(resume="yes"), OTHER)
                finished = await inner.ainvoke(None, OTHER)
                questions = [each.value for each in asked["__interrupt__"]]
                return {"items": [questions, answered["items"], finished["items"]]}

            builder = StateGraph(Items).add_node(answer).add_edge(START, "answer")
            app = builder.compile(saver)
            result = await app.ainvoke({"items": []}, CONFIG)
            state = await inner.aget_state(OTHER)
        assert [["really?"], [0, "yes"], [0, "yes"]] == result["items"]
        assert [0, "yes"] == state.values["items"]

    run(story())


class SlowSaver(InMemorySaver):
    """LangGraph's, which waits before it reads the thread ``other``."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def get_tuple(self, config: Any) -> Any:
        if config["configurable"]["thread_id"] == "other":
            self.entered.set()
            assert self.release.wait(60)
        return super().get_tuple(config)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_run_that_is_cancelled_before_its_start_is_known_can_begin_again(
    is_nested: bool,
) -> None:
    async def story() -> None:
        saver = SlowSaver()
        app = inner = graph(saver)
        config = OTHER
        if is_nested:

            async def call(_: Items) -> Any:
                return await inner.ainvoke({"items": []}, OTHER)

            builder = StateGraph(Items).add_node(call).add_edge(START, "call")
            app, config = builder.compile(saver), CONFIG
        running = asyncio.create_task(app.ainvoke({"items": []}, config))
        await asyncio.to_thread(saver.entered.wait)
        running.cancel()
        saver.release.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        asked = await inner.ainvoke({"items": []}, OTHER)
        assert ["really?"] == [each.value for each in asked["__interrupt__"]]

    run(story())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_on_an_async_saver_can_be_cancelled(
    opened: Open, durability: Any
) -> None:
    """What it has kept by then is there, and it goes on."""

    async def story() -> None:
        entered, release = asyncio.Event(), asyncio.Event()

        async def wait(_: Items) -> Items:
            entered.set()
            await release.wait()
            return {"items": ["done"]}

        async with opened() as saver:
            builder = (
                StateGraph(Items).add_sequence([note, wait]).add_edge(START, "note")
            )
            app = builder.compile(saver)
            running = asyncio.create_task(
                app.ainvoke({"items": []}, CONFIG, durability=durability)
            )
            await entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            release.set()
            assert [0, "done"] == (await app.ainvoke(None, CONFIG))["items"]

    run(story())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_node_that_would_block_the_loop_of_its_saver_is_an_error(
    opened: Open, durability: Any
) -> None:
    """A sync node there waits for a graph, which waits for the saver, which needs the
    loop.
    """
    inner = (
        StateGraph(Items)
        .add_node(note)
        .add_edge(START, "note")
        .compile(executor="inline")
    )

    def call(state: Items) -> Any:
        return inner.invoke(state)

    async def story() -> None:
        async with opened() as saver:
            builder = StateGraph(Items).add_node(call).add_edge(START, "call")
            app = builder.compile(saver, executor="inline")
            with pytest.raises(
                RuntimeError, match=r"inline on the event loop.*executor=\"threads\""
            ):
                await app.ainvoke({"items": []}, CONFIG, durability=durability)

    run(story())


@pytest.mark.parametrize("run_input", [{"items": []}, None, Command(resume="yes")])
def test_a_node_that_would_block_the_loop_by_a_run_on_another_thread_is_an_error(
    opened: Open, run_input: Any
) -> None:
    async def story() -> None:
        async with opened() as saver:
            inner = graph(saver)

            def call(_: Items) -> Any:
                return inner.invoke(run_input, OTHER)

            builder = StateGraph(Items).add_node(call).add_edge(START, "call")
            app = builder.compile(saver, executor="inline")
            await inner.ainvoke({"items": []}, OTHER)
            with pytest.raises(
                RuntimeError, match=r"inline on the event loop.*executor=\"threads\""
            ):
                await app.ainvoke({"items": []}, CONFIG)

    run(story())
