"""Modules that stay LangGraph's under the import hook do the same on flowpregel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ValueEncodingError
from flowpregel.graph import START, StateGraph
from flowpregel.plugins.langgraph import ForeignCache
from flowpregel.types import CachePolicy, GraphInterruptEvent, interrupt
from tests.parity.programs.servers import RedisClient
from tests.runs.hooked_programs import outcomes_of

pytestmark = pytest.mark.slow

PROGRAMS = "tests.parity.programs.kept"


@cache
def outcomes_of_langgraph(module: str) -> list[Any]:
    """Return the outcomes of a program on LangGraph, which runs it once."""
    with TemporaryDirectory() as folder:
        expected = outcomes_of(module, folder)
    assert [] == [line for line in expected if "error" in line[2]]
    return expected


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_programs_with_these_modules_do_the_same(executor: str, tmp_path: Path) -> None:
    """Caches in SQLite and Redis, messages for user interfaces, graphs on a server."""
    outcomes = outcomes_of(PROGRAMS, str(tmp_path), executor=executor)

    for theirs, ours in zip(outcomes_of_langgraph(PROGRAMS), outcomes, strict=True):
        assert theirs == ours


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_handlers_are_called_when_a_run_stops_and_resumes(executor: str) -> None:
    """At questions and breakpoints, with the position of the run."""
    module = "tests.parity.programs.lifecycles"

    assert outcomes_of_langgraph(module) == outcomes_of(module, executor=executor)


class Asked:
    """A handler that has no other method."""

    def __init__(self) -> None:
        self.events: list[GraphInterruptEvent] = []

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Note the event."""
        self.events.append(event)


def test_a_handler_may_have_only_a_method_for_interrupts() -> None:
    """Of LangChain, it needs no class."""
    handler = Asked()
    builder = StateGraph(dict).add_node("ask", lambda _: {"a": interrupt("Why?")})
    app = builder.add_edge(START, "ask").compile(
        checkpointer=InMemorySaver(), executor="inline"
    )
    config = {"configurable": {"thread_id": "1"}, "callbacks": [handler]}

    app.invoke({"a": 1}, config)

    [event] = handler.events
    assert ["Why?"] == [question.value for question in event.interrupts]
    assert ("pending", ()) == (event.status, event.checkpoint_ns)


def double(state: dict[str, int]) -> dict[str, int]:
    """Double the number."""
    return {"number": 2 * state["number"]}


def test_a_cache_of_langgraph_is_used_without_the_hook(tmp_path: Path) -> None:
    """As a checkpointer is."""
    from langgraph.cache.sqlite import SqliteCache

    cache = SqliteCache(path=str(tmp_path / "cache.db"))
    builder = StateGraph(dict).add_node(double, cache_policy=CachePolicy(ttl=100))
    app = builder.add_edge(START, "double").compile(cache=cache, executor="inline")

    results = [app.invoke({"number": 3}) for _ in range(2)]

    assert [{"number": 6}] * 2 == results
    assert isinstance(app.cache, ForeignCache)
    [tasks] = [*app.stream({"number": 3}, stream_mode="updates")][:1]
    assert "__metadata__" in tasks


KEY = (("name, with: separators",), "key")


def test_a_short_time_to_live_is_a_second_in_a_cache_of_langgraph() -> None:
    """Its caches take whole seconds. A key may have any characters."""
    from langgraph.cache.redis import RedisCache

    client = RedisClient()
    cache = ForeignCache(RedisCache(client))

    cache.set({KEY: ([("number", 3), ("other", None)], 0.25)})

    assert 1 == len(client.entries)
    assert {KEY: [("number", 3), ("other", None)]} == cache.get([KEY])
    cache.clear([("another",)])
    assert 1 == len(client.entries)
    cache.clear([KEY[0]])
    assert {} == cache.get([KEY])
    cache.set({KEY: ([], None)})
    cache.clear()
    assert {} == client.entries


def test_a_result_that_langgraph_cannot_serialize_is_refused() -> None:
    """With our error for such values."""
    from langgraph.cache.memory import InMemoryCache

    with pytest.raises(ValueEncodingError, match="cannot be stored by"):
        ForeignCache(InMemoryCache()).set({KEY: ([("lock", Lock())], None)})
