"""Graphs that keep their state with a saver of their own, inside a graph with another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from flowpregel._core.records import Address
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
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
