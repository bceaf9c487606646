"""Graphs that keep their state with a saver of their own, inside a graph with another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from flowpregel._core.records import Address
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.pregel import ChannelWriteEntry, NodeBuilder, Pregel


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
        nodes={"inner": NodeBuilder().subscribe_only("a").do(counting(own)).write_to("b")},
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
    """Inside its task, and asked for by its namespace; what is edited goes there too."""
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
