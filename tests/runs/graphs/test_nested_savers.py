"""Graphs that keep their state with a saver of their own, inside a graph with
another.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from flowpregel._core.records import Address
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_config, interrupt
from flowpregel.errors import ThreadBusyError
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from flowpregel.pregel import ChannelWriteEntry, NodeBuilder, Pregel
from flowpregel.types import Command


def count_up(value: int) -> int | None:
    """Return the next number, up to five."""
    return value + 1 if value < 5 else None


def counting(saver: Any) -> Pregel:
    """Return a graph of several supersteps."""
    again = ChannelWriteEntry("v", skip_none=True)
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_only("v").do(count_up).write_to(again)},
        channels={"v": LastValue(int)},
        input_channels="v",
        output_channels="v",
        checkpointer=saver,
    )


def test_what_a_nested_graph_keeps_is_on_disk_when_the_run_ends(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """In async mode too, and its writer's OS thread has ended with it."""
    own, others = LMDBSaver(tmp_path / "own"), LMDBSaver(tmp_path / "others")
    app = Pregel(
        nodes={
            "inner": NodeBuilder().subscribe_only("a").do(counting(own)).write_to("b")
        },
        channels={"a": LastValue(int), "b": LastValue(int)},
        input_channels="a",
        output_channels="b",
        checkpointer=others,
        executor=executor,
    )

    assert 5 == drive.invoke(app, 0, thread_id="1", durability="async")

    assert not [one for one in threading.enumerate() if one.name == "flowpregel-writer"]
    (inner,) = [address.namespace for address in own.namespaces("1")]
    saved = own.load(Address("1", inner))
    assert saved is not None
    assert {"v": 5} == saved.checkpoint.values
    assert [""] == [address.namespace for address in others.namespaces("1")]


def test_the_state_of_a_nested_graph_is_read_from_its_own_saver() -> None:
    """Inside its task, and asked for by its namespace; what is edited goes there
    too.
    """
    own = InMemorySaver()
    inner = Pregel(
        nodes={"ask": NodeBuilder().subscribe_only("v").do(interrupt).write_to("w")},
        channels={"v": LastValue(int), "w": LastValue(int)},
        input_channels="v",
        output_channels="w",
        checkpointer=own,
    )
    app = Pregel(
        nodes={"inner": NodeBuilder().subscribe_only("a").do(inner).write_to("b")},
        channels={"a": LastValue(int), "b": LastValue(int)},
        input_channels="a",
        output_channels="b",
        checkpointer=InMemorySaver(),
        executor="inline",
    )
    app.invoke(1, thread_id="1")

    (deep,) = app.get_state(thread_id="1", subgraphs=True).tasks
    (task,) = app.get_state(thread_id="1").tasks
    named = app.get_state(task.state)
    app.update_state(task.state, 7, as_node="ask")

    assert {"v": 1} == deep.state.values == named.values
    assert ("ask",) == named.next
    assert {"v": 1, "w": 7} == app.get_state(task.state).values
    (kept,) = own.namespaces("1")
    assert {"v": 1, "w": 7} == own.load(kept).checkpoint.values


class Turns(TypedDict, total=False):
    """How often a graph was called."""

    turns: int


def take_turn(state: Turns) -> Turns:
    """Count a turn; the third is asked about."""
    if state.get("turns") == 2:
        interrupt("a third?")
    return {"turns": state.get("turns", 0) + 1}


def remembering(saver: Any) -> Any:
    """Return a graph that counts the turns of its thread."""
    return (
        StateGraph(Turns).add_node("n", take_turn).add_edge(START, "n").compile(saver)
    )


def calling(graph: Any, caller: Literal["node", "task", "workflow"], saver: Any) -> Any:
    """Return a program that calls *graph* on the thread it is given."""

    def call(thread: str) -> Any:
        return graph.invoke({}, {"configurable": {"thread_id": thread}})

    if caller == "workflow":
        return entrypoint(checkpointer=saver)(call)
    if caller == "task":

        def body(thread: str) -> Any:
            return task(call)(thread).result()

        return entrypoint(checkpointer=saver)(body)
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_only("a").do(call).write_to("b")},
        channels={"a": LastValue(str), "b": LastValue(dict)},
        input_channels="a",
        output_channels="b",
        checkpointer=saver,
    )


@pytest.mark.parametrize("caller", ["node", "task", "workflow"])
@pytest.mark.parametrize("outer", ["same", "own", "none"])
def test_a_graph_that_is_called_with_a_thread_of_its_own_remembers_it(
    drive: Any, caller: Any, outer: str
) -> None:
    """As LangGraph's do: it is an outermost run, and its question ends it for the
    caller.
    """
    saver = InMemorySaver()
    app = remembering(saver)
    around = {"same": saver, "own": InMemorySaver(), "none": None}[outer]
    program = calling(app, caller, around).copy({"executor": "threads"})

    said = [drive.invoke(program, "user-7", thread_id=f"{n}") for n in range(3)]

    assert [{"turns": 1}, {"turns": 2}] == said[:2]
    assert ["a third?"] == [asked.value for asked in said[2]["__interrupt__"]]
    assert {"turns": 2} == app.get_state(thread_id="user-7").values
    assert {"turns": 3} == drive.invoke(app, Command(resume=True), thread_id="user-7")
    assert ["user-7"] == sorted(
        {a.thread_id for a in saver.namespaces()} - {"0", "1", "2"}
    )


def test_a_thread_that_another_run_has_is_refused_to_a_graph_that_is_called(
    tmp_path: Path,
) -> None:
    """It is the thread's lease that says so; a run that ended has given it back."""
    saver = LMDBSaver(tmp_path / "s")
    program = calling(remembering(saver), "node", None).copy({"executor": "threads"})

    with saver.lease("user-7"), pytest.raises(ThreadBusyError):
        program.invoke("user-7")

    assert {"turns": 1} == program.invoke("user-7")


def test_a_node_that_hands_its_config_on_stays_on_its_thread(drive: Any) -> None:
    """Its config names the caller's thread, and the place of the call in it."""
    own = InMemorySaver()
    app = remembering(own)
    flow = entrypoint(checkpointer=InMemorySaver())(
        lambda _: app.invoke({}, get_config())
    )

    assert [{"turns": 1}] * 2 == [
        drive.invoke(flow, n, thread_id="1") for n in range(2)
    ]
    assert [] == [address for address in own.namespaces("1") if not address.namespace]


def test_a_graph_that_is_called_sees_the_config_that_it_was_called_with() -> None:
    """And what it does not change of the caller's."""
    seen: dict[str, Any] = {}

    def look(value: int) -> int:
        seen.update(get_config()["configurable"])
        return value

    inner = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("v").do(look).write_to("w")},
        channels={"v": LastValue(int), "w": LastValue(int)},
        input_channels="v",
        output_channels="w",
        executor="inline",
    )
    flow = entrypoint()(lambda n: inner.invoke(n, {"configurable": {"who": "child"}}))

    flow.invoke(1, {"configurable": {"who": "parent", "where": "here"}})

    assert {"who": "child", "where": "here"} == {
        key: seen[key] for key in ("who", "where")
    }
