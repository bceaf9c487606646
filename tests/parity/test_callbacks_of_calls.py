"""LangChain's handlers get the models, tools, chains and functions of conditional edges
that nodes call, with the same parents as in LangGraph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    dispatch_custom_event,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config

from flowpregel.pregel import NodeBuilder
from tests.parity.calling_nodes import (
    State,
    a_called_graph,
    a_chain_as_a_node,
    a_failing_path,
    a_graph_in_a_chain,
    a_tool_node,
    async_nodes,
    custom_events,
    events_of_a_thread,
    models,
    paths,
    tools,
)
from tests.parity.libraries import BOTH, Library

LANGGRAPH, FLOWPREGEL = BOTH
SHOWN = ("langgraph_node", "langgraph_step", "topic", "own", "thread_id")
EVENTS = [
    "on_chain_start",
    "on_chain_end",
    "on_chain_error",
    "on_chat_model_start",
    "on_llm_start",
    "on_llm_new_token",
    "on_llm_end",
    "on_llm_error",
    "on_retriever_start",
    "on_retriever_end",
    "on_tool_start",
    "on_tool_end",
    "on_tool_error",
    "on_custom_event",
]


def plain(value: Any) -> Any:
    """Return *value* without the ids of messages and runs."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    for part in ("generations", "message", "content", "page_content"):
        if hasattr(value, part):
            return plain(getattr(value, part))
    return value if isinstance(value, str | int | None) else type(value).__name__


class Notes:
    """The events that a handler got, by the names of runs."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.names: dict[UUID, str] = {}

    def note(self, event: str, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        """Note one call of the handler."""
        run_id = more["run_id"]
        assert isinstance(run_id, UUID)
        metadata = more.get("metadata") or {}
        labels = {key: metadata.get(key) for key in SHOWN if key in metadata}
        if event.endswith("_start"):
            serialized, *args = args
            assert run_id not in self.names
            # LangGraph has no name for a lambda in an async run.
            name = more.get("name") or (serialized or {}).get("name")
            self.names[run_id] = name or "RunnableCallable"
        parent = self.names.get(more.get("parent_run_id"))
        tags = sorted(more.get("tags") or ())
        name = self.names[run_id]
        self.events.append((event, name, parent, plain(args), labels, tags))


def _noting(event: str) -> Any:
    def note(self: Any, *args: Any, **more: Any) -> None:
        self.notes.note(event, args, more)

    return note


def _noting_later(event: str) -> Any:
    async def note(self: Any, *args: Any, **more: Any) -> None:
        for _ in range(3):  # Other coroutines take their turns.
            await asyncio.sleep(0)
        self.notes.note(event, args, more)

    return note


class Watcher(BaseCallbackHandler):
    """A handler that notes every call."""

    def __init__(self) -> None:
        self.notes = Notes()


class AsyncWatcher(AsyncCallbackHandler):
    """An async handler that notes every call, after it has awaited."""

    def __init__(self) -> None:
        self.notes = Notes()


for _event in EVENTS:
    setattr(Watcher, _event, _noting(_event))
    setattr(AsyncWatcher, _event, _noting_later(_event))


def config_of(watcher: Any) -> dict[str, Any]:
    """Return the config of a run that *watcher* observes."""
    return {
        "callbacks": [watcher],
        "run_name": "run",
        "configurable": {"thread_id": "1"},
        "metadata": {"topic": "numbers"},
        "tags": ["mine"],
    }


PROGRAMS: list[Callable[[Library], Any]] = [
    models,
    tools,
    custom_events,
    a_chain_as_a_node,
    paths,
    a_failing_path,
    a_called_graph,
    a_graph_in_a_chain,
    a_tool_node,
]


def noted(library: Library, builder: Any, **options: Any) -> list[Any]:
    """Run a graph, and return the events that a handler got."""
    watcher = Watcher()
    app = library.compile(builder, **options)
    with suppress(OSError):
        app.invoke({"n": 1, "messages": []}, config_of(watcher))
    return watcher.notes.events


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_handler_gets_what_nodes_call(
    program: Callable[[Library], Any], executor: str
) -> None:
    """In the same order, with the same inputs, outputs, parents, tags and metadata."""
    theirs = noted(LANGGRAPH, program(LANGGRAPH))
    ours = noted(FLOWPREGEL, program(FLOWPREGEL), executor=executor)

    assert theirs == ours


@pytest.mark.parametrize("kind", [Watcher, AsyncWatcher])
@pytest.mark.parametrize(
    "program",
    [async_nodes, a_chain_as_a_node, paths, a_failing_path, a_tool_node],
    ids=lambda program: program.__name__,
)
def test_an_async_run_calls_sync_and_async_handlers(
    program: Callable[[Library], Any], kind: type[Any]
) -> None:
    """The calls of an async handler have been awaited when the run has ended."""
    events = []
    for library in BOTH:
        watcher = kind()
        own = {"executor": "threads"} if library.is_ours else {}
        app = library.compile(program(library), checkpointer=None, **own)
        with suppress(OSError):
            given = {"n": 1, "messages": []}
            asyncio.run(app.ainvoke(given, config_of(watcher)))
        events.append(watcher.notes.events)

    assert events[0] == events[1]


def test_a_sync_run_calls_async_handlers() -> None:
    """Each coroutine has ended when the next event comes."""
    events = []
    for library in BOTH:
        watcher = AsyncWatcher()
        app = library.compile(paths(library), checkpointer=None)
        app.invoke({"n": 1}, config_of(watcher))
        events.append(watcher.notes.events)

    assert events[0] == events[1]
    assert 10 < len(events[0])


def test_a_call_that_cannot_be_pickled_is_left_out() -> None:
    """The node in the worker process, and the other calls, are not affected."""

    def work(state: Any) -> Any:
        RunnableLambda(lambda _: 5, name="locked").invoke(Lock())
        RunnableLambda(lambda _: 6, name="open").invoke(1)
        return {"n": 1}

    events = noted(FLOWPREGEL, FLOWPREGEL.graph(State, work), executor="processes")

    assert ["run", "work", "open"] == [
        name for event, name, *_ in events if event == "on_chain_start"
    ]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("program", [custom_events, events_of_a_thread])
def test_a_custom_event_needs_no_handler(
    program: Callable[[Library], Any], executor: str
) -> None:
    """Nodes, tools and conditional edges dispatch events that nothing waits for."""
    theirs = LANGGRAPH.compile(program(LANGGRAPH), checkpointer=None)
    ours = FLOWPREGEL.compile(program(FLOWPREGEL), executor=executor)

    expected = theirs.invoke({"n": 1})
    assert expected == ours.invoke({"n": 1}, thread_id="1")


@pytest.mark.parametrize("program", [async_nodes, custom_events])
def test_a_custom_event_of_an_async_run_needs_no_handler(
    program: Callable[[Library], Any],
) -> None:
    """The nodes are async and sync."""
    results = []
    for library in BOTH:
        app = library.compile(program(library), checkpointer=None)
        results.append(asyncio.run(app.ainvoke({"n": 1})))

    assert results[0] == results[1]


def test_workflows_dispatch_custom_events_without_a_handler() -> None:
    """Their bodies and tasks dispatch them."""
    results = []
    for library in BOTH:
        task, entrypoint = library.of("func.task"), library.of("func.entrypoint")

        @task
        def double(number: int) -> int:
            dispatch_custom_event("doubled", number)
            return 2 * number

        @entrypoint()
        def flow(number: int) -> int:
            dispatch_custom_event("begun", number)
            return double(number).result()

        results.append(flow.invoke(4))

    assert [8, 8] == results


def test_a_node_outside_of_a_run_leaves_no_config_of_langchain() -> None:
    """It runs in the context variables of its caller."""
    node = NodeBuilder().subscribe_only("a").do(str.upper).build()

    assert "ADA" == node.invoke("ada")
    assert var_child_runnable_config.get() is None
