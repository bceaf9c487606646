"""The status of runs that LangGraph itself makes, on one of our savers."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import LastValue
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Send

from flowpregel import _fault
from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.checkpoint.work import status_of
from flowpregel.plugins.langgraph import SaverAdapter
from tests.runs.recovery.test_between_supersteps import ROOT, printed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]

THREAD: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict):
    """The nodes that have run."""

    ran: Annotated[list[str], operator.add]


def step(name: str) -> Callable[[State], State]:
    """Return a node that notes its *name*."""
    return lambda _: {"ran": [name]}


def builder_of(names: str, **deferred: bool) -> Any:
    """Return a builder with nodes of these names, the first of which begins."""
    builder = StateGraph(State)
    for name in names:
        builder.add_node(name, step(name), defer=deferred.get(name, False))
    builder.add_edge(START, names[0])
    return builder


def chain() -> Any:
    """Return a graph of nodes after each other."""
    builder = builder_of("abc")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder


def join() -> Any:
    """Return a graph whose last node waits for two, one of which takes longer."""
    builder = builder_of("abcd")
    builder.add_edge(START, "b")
    builder.add_edge("b", "c")
    builder.add_edge(["a", "c"], "d")
    return builder


def deferred() -> Any:
    """Return a graph whose last node waits until all others have ended."""
    builder = builder_of("abcd", d=True)
    builder.add_edge(START, "b")
    builder.add_edge("b", "c")
    builder.add_edge("a", "d")
    return builder


def sends() -> Any:
    """Return a graph with tasks that are sent."""
    builder = builder_of("abc")
    builder.add_conditional_edges(
        "a", lambda state: [Send("b", state), Send("b", state)]
    )
    builder.add_edge("b", "c")
    return builder


def loop() -> Any:
    """Return a graph whose node follows itself."""
    builder = builder_of("a")
    builder.add_conditional_edges(
        "a", lambda state: "a" if len(state["ran"]) < 3 else END
    )
    return builder


@pytest.mark.parametrize("build", [chain, join, deferred, sends, loop])
def test_a_graph_is_stopped_at_each_checkpoint_that_tasks_follow(
    build: Callable[[], Any],
) -> None:
    """LangGraph says of each what is due; the last one is done."""
    saver = InMemorySaver()
    graph = build().compile(checkpointer=SaverAdapter(saver))
    graph.invoke({"ran": []}, THREAD)

    due = {
        snapshot.config["configurable"]["checkpoint_id"]: snapshot.next
        for snapshot in graph.get_state_history(THREAD)
    }
    # Killed at that commit, no task had left anything yet.
    found = {
        saved.checkpoint.id: status_of(replace(saved, writes=(), ran=()), running=False)
        for saved in saver.history(Address("1"))
    }

    assert {id: "stopped" if nodes else "done" for id, nodes in due.items()} == found
    assert {"stopped", "done"} == {*found.values()}


def test_a_node_that_has_run_before_is_due_again_by_what_it_has_seen() -> None:
    """In a graph made by hand no channel is named after a node."""
    saver = InMemorySaver()
    graph: Any = Pregel(
        nodes={
            "ping": NodeBuilder().subscribe_only("a").do(lambda n: n + 1).write_to("b"),
            "pong": NodeBuilder()
            .subscribe_only("b")
            .do(lambda n: n if n < 3 else None)
            .write_to(a=lambda n: n, out=lambda n: n),
        },
        channels={name: LastValue(int) for name in ("a", "b", "out")},
        input_channels="a",
        output_channels="b",
        checkpointer=SaverAdapter(saver),
    )
    graph.invoke(1, THREAD, interrupt_after=["pong"])

    (newest, *_) = saver.history(Address("1"))

    assert ("ping",) == graph.get_state(THREAD).next
    assert "stopped" == status_of(replace(newest, writes=(), ran=()), running=False)


PROGRAM = f"""
import sys
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.plugins.langgraph import SaverAdapter
from {__name__} import THREAD, chain
with LMDBSaver(sys.argv[1]) as saver:
    graph = chain().compile(checkpointer=SaverAdapter(saver))
    graph.invoke({{"ran": []}}, THREAD, durability="sync")
"""


def test_a_graph_of_langgraph_that_was_killed_between_supersteps_is_listed_as_stopped(
    tmp_path: Path,
) -> None:
    """`ls` and `show` said that it was done."""
    found = []
    for number in range(1, 12):
        store = str(tmp_path / f"store{number}")
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        env[_fault.FAULT] = f"store.commit.after:{number}:kill"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, store],
            env=env,
            capture_output=True,
            check=False,
        )
        ((row,), shown) = printed(store, "ls"), printed(store, "show", "1")
        with LMDBSaver(store) as saver:
            state = chain().compile(checkpointer=SaverAdapter(saver)).get_state(THREAD)
        assert (
            row["status"] == shown["status"] == ("stopped" if state.tasks else "done")
        )
        found.append(row["status"])
        if not done.returncode:
            break

    assert "done" == found[-1]
    assert 3 <= found.count("stopped")
