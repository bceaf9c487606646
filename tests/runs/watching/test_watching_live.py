"""What a run does is shown to other processes while somebody watches, sealed, and
cheaply.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.base import Lease
from flowpregel.checkpoint.leases import WATCH, LiveState
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.graph import StateGraph
from flowpregel.storage.codec import PythonCodec
from tests.runs.watched import job, reading, until


@pytest.mark.slow
def test_the_run_of_another_process_shows_what_it_does(tmp_path: Path) -> None:
    """What runs, how far it is, and what waits; nothing any more once the process is
    dead.
    """
    with job(tmp_path) as process:
        until((tmp_path / "store" / "leases").is_dir)
        with (
            LMDBSaver(tmp_path / "store", readonly=True) as saver,
            reading(saver) as reader,
        ):

            def look() -> dict[str, Any] | None:
                found = reader.live("job")
                told = found and [
                    each for each in found["running"] if each["done"] is not None
                ]
                return found if told and len(told) == 2 else None

            live = until(look)
            row = until(lambda: reader.run("job"))
            process.send_signal(signal.SIGKILL)
            process.wait()
            after, left = reader.live("job"), reader.run("job")

    assert json.dumps(live)
    assert process.pid == live["pid"] == row.pid
    assert "running" == row.status
    assert {"flow", "hold"} == {each["name"] for each in live["running"]}
    assert {"hold": 1} == live["waiting"]
    hold = next(each for each in live["running"] if each["name"] == "hold")
    assert (10, "at it \x1b[2J") == (hold["total"], hold["message"])
    assert hold["text"] == f"hold({hold['done']})"
    assert process.pid == hold["pid"]
    assert after is None
    assert left is not None
    assert ("stopped", 0) == (left.status, left.pid)


@pytest.mark.slow
def test_the_first_look_after_a_runs_first_commit_shows_it(tmp_path: Path) -> None:
    """A run of another process; whoever looks every fifth of a second sees it within
    one.
    """
    with (
        LMDBSaver(tmp_path / "store") as saver,
        reading(saver) as reader,
        job(tmp_path) as process,
    ):
        none, before = reader.runs(), reader.mark()
        until((tmp_path / "go.begun").exists)
        after, (row,) = reader.mark(), reader.runs()

    assert [] == none
    assert before != after
    assert ("job", "running", process.pid) == (row.thread_id, row.status, row.pid)


def test_a_run_shows_where_it_may_go_too(tmp_path: Path) -> None:
    """The nodes of its graph that it has not come to, and the edges between them."""
    seen: list[dict[str, Any]] = []
    with LMDBSaver(tmp_path / "store") as saver, reading(saver) as reader:

        def first(state: dict[str, Any]) -> None:
            seen.append(until(lambda: reader.live("1")))

        graph = StateGraph(dict).add_node("first", first).add_edge("__start__", "first")
        for name in ("left", "right"):
            graph.add_node(name, lambda _: None).add_edge(name, "__end__")
        graph.add_conditional_edges("first", lambda _: "left", ["left", "right"])
        graph.compile(checkpointer=saver, executor="threads").invoke({}, thread_id="1")

    drawing = seen[0]["drawing"]
    assert ["first", "left", "right"] == drawing["nodes"]
    assert {("first", "left"), ("first", "right")} <= {*map(tuple, drawing["edges"])}


def test_nothing_is_asked_of_a_run_while_nobody_watches(tmp_path: Path) -> None:
    """Whoever looks is answered at the next wake-up."""
    asked: list[int] = []

    def state() -> dict[str, Any]:
        asked.append(1)
        return {"workers": []}

    with (
        LMDBSaver(tmp_path / "store") as saver,
        reading(saver) as reader,
        saver.lease("1") as lease,
    ):
        lease.live = state
        WATCH.look()
        before = [*asked]
        reader.live("1")
        WATCH.look()

        assert [] == before
        assert asked
        assert reader.live("1") is not None


def test_what_a_dead_process_has_shown_is_not_its_successors(tmp_path: Path) -> None:
    """Its file stays behind, and the next run on the thread takes it over."""
    with LMDBSaver(tmp_path / "store") as saver, reading(saver) as reader:
        with saver.lease("1") as lease:
            lease.live = lambda: {"workers": []}
            until(lambda: reader.live("1"))
            (file,) = (tmp_path / "store" / "leases").iterdir()
            left = file.read_bytes()
        file.write_bytes(left)

        assert reader.live("1") is None
        with saver.lease("1"):
            assert reader.live("1") is None


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_what_a_run_shows_is_sealed_as_the_store_is(
    tmp_path: Path, key: bytes | None
) -> None:
    """Encrypted, if that is; and what was changed is not believed."""
    if key is not None:
        pytest.importorskip("cryptography")
    options = StoreOptions(encryption_key=key)
    with (
        LMDBSaver(tmp_path / "store", options=options) as saver,
        reading(saver) as reader,
        saver.lease("1") as lease,
    ):
        lease.live = lambda: {"workers": [], "secret": "plain to see"}
        until(lambda: reader.live("1"))
        (file,) = (tmp_path / "store" / "leases").iterdir()
        data = file.read_bytes()
        lease.live = None

        def changed() -> bool:
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            return reader.live("1") is None

        assert (key is None) == (b"plain to see" in data)
        assert until(changed)


def test_watching_takes_no_more_than_a_hundredth_of_the_time(tmp_path: Path) -> None:
    """Where it takes long to tell what a run does, it is told less often."""

    def state() -> dict[str, Any]:
        began = time.thread_time()
        while time.thread_time() < began + 0.01:
            pass
        return {}

    lease = Lease(5)
    lease.live = state
    with LMDBSaver(tmp_path / "store") as saver:
        store, _ = saver.opened_to_look(PythonCodec())
        live = LiveState(lease, store.table(b"live"), b"1")
        before = time.monotonic()
        data = live.sealed()
        store.close()

    assert data is not None
    assert live.due >= before + 1.0
