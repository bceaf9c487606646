"""A thread that is deleted while its run is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from flowpregel import LMDBSaver, StateGraph
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.errors import StoreError
from flowpregel.plugins.sqlite import SQLiteSaver

CONFIG = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    """A channel that only the input writes, and one that each node writes."""

    name: str
    total: int


@pytest.fixture(params=[LMDBSaver, SQLiteSaver])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DurableSaver]:
    with request.param(tmp_path / "runs") as saver:
        yield saver


def graph_of(saver: DurableSaver, between: Callable[[], None]) -> Any:
    """Return a graph that calls *between* in the second of its three nodes."""

    def add(state: State) -> State:
        return {"total": state.get("total", 0) + 1}

    def add_between(state: State) -> State:
        between()
        return add(state)

    builder = StateGraph(State)
    builder.add_sequence([("first", add), ("second", add_between), ("last", add)])
    builder.set_entry_point("first")
    return builder.compile(checkpointer=saver, executor="inline")


def test_the_run_ends_with_an_error_and_stores_no_half_of_its_state(
    saver: DurableSaver,
) -> None:
    graph = graph_of(saver, lambda: saver.delete_thread("t"))

    with pytest.raises(StoreError, match="thread 't' was deleted while its run was"):
        graph.invoke({"name": "ada"}, CONFIG, durability="sync")

    assert {} == graph.get_state(CONFIG).values


def test_the_thread_can_be_used_by_a_new_run(saver: DurableSaver) -> None:
    deletions = [saver.delete_thread]
    graph = graph_of(saver, lambda: deletions.pop()("t") if deletions else None)
    with pytest.raises(StoreError):
        graph.invoke({"name": "ada"}, CONFIG)

    graph.invoke({"name": "bob"}, CONFIG)

    assert {"name": "bob", "total": 3} == graph.get_state(CONFIG).values


def test_a_run_that_is_stored_at_its_end_stores_all_of_its_state(
    saver: DurableSaver,
) -> None:
    graph = graph_of(saver, lambda: saver.delete_thread("t"))

    graph.invoke({"name": "ada"}, CONFIG, durability="exit")

    assert {"name": "ada", "total": 3} == graph.get_state(CONFIG).values
