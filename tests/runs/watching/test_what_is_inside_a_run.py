"""What is inside a task of a run: the calls it made, the supersteps of the graph that
it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.func import entrypoint, task
from tests.runs.conftest import Drive
from tests.runs.watching.test_what_a_run_did import ask, line, node, told


def test_calls_are_told_inside_the_body_that_made_them(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Also those that a call made."""

    @task
    def inner(value: int) -> int:
        return value

    @task
    def outer(value: int) -> int:
        return inner(value).result() + 1

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(count: int) -> int:
        return sum(outer(each).result() for each in range(count))

    drive.invoke(flow, 2, thread_id="1")

    found = flow.get_run(thread_id="1")
    (body,) = found.tasks
    assert [(0, "outer", "done")] * 2 == told(body.inner)
    assert [(0, "inner", "done")] == told(body.inner[0].inner)
    assert all(each.is_call for each in body.inner)
    assert 2 == str(found).count("✓ outer") == str(found).count("✓ inner")


def test_a_call_that_brought_its_body_down_is_told_as_failed(
    saver: BaseCheckpointSaver,
) -> None:
    """Though its record is taken back, so that a resumed run makes it again."""

    @task
    def bad(value: int) -> int:
        raise ValueError(f"not {value}")

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(value: int) -> int:
        return bad(value).result()

    with pytest.raises(ValueError, match="not 7"):
        flow.invoke(7, thread_id="1")

    (body,) = flow.get_run(thread_id="1").tasks
    assert [("bad", "failed", "ValueError: not 7")] == [
        (each.name, each.status, each.detail) for each in body.inner
    ]


def test_supersteps_of_a_nested_graph_are_told_inside_its_task(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """If one asks to look into it."""
    inner = line(x=node("x"), y=ask).compile()
    app = line(a=node("a"), sub=inner).compile(saver, executor="inline")
    drive.invoke(app, {}, thread_id="1")

    _, hidden = app.get_run(thread_id="1").tasks
    found = app.get_run(thread_id="1", xray=True)

    assert () == hidden.inner
    assert [(1, "x", "done"), (2, "y", "waiting")] == told(found.tasks[1].inner)
    assert ["sub:x", "sub:y"] == [each.node for each in found.tasks[1].inner]
    assert "✓ x" in str(found)


def test_a_nested_graph_with_a_history_of_its_own_tells_this_run(
    saver: BaseCheckpointSaver,
) -> None:
    """Not what it did when it was called before."""
    inner = line(x=node("x")).compile(checkpointer=True)
    app = line(sub=inner, b=node("b")).compile(saver, executor="inline")
    app.invoke({}, thread_id="1")
    app.invoke({}, thread_id="1")

    sub, _ = app.get_run(thread_id="1", xray=True).tasks

    assert ["x"] == [each.name for each in sub.inner]


def test_a_graph_that_a_node_calls_is_told_inside_it(
    saver: BaseCheckpointSaver,
) -> None:
    """And the second one that it calls."""
    inner = line(x=node("x")).compile()

    def both(_: Any) -> Any:
        inner.invoke({})
        return inner.invoke({})

    app = line(both=both).compile(saver, executor="threads")
    app.invoke({}, thread_id="1")

    (found,) = app.get_run(thread_id="1", xray=True).tasks

    assert [True, True] == [each.is_call for each in found.inner]
    assert [["x"], ["x"]] == [
        [deep.name for deep in each.inner] for each in found.inner
    ]


def test_an_encrypted_store_does_not_tell_how_tasks_failed(tmp_path: Path) -> None:
    """What an error says may be a secret: it is encrypted as values are."""
    pytest.importorskip("cryptography")

    def fail(_: Any) -> None:
        raise ValueError("the password is swordfish")

    options = StoreOptions(encryption_key=b"k" * 32)
    with LMDBSaver(tmp_path / "store", options=options) as saver:
        app = line(work=fail).compile(saver, executor="inline")
        with pytest.raises(ValueError, match="swordfish"):
            app.invoke({}, thread_id="1")
        (work,) = app.get_run(thread_id="1").tasks

    assert "ValueError: the password is swordfish" == work.detail
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    assert not any(b"swordfish" in file.read_bytes() for file in files)
