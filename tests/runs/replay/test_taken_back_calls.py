"""A result that is taken back: what is asked for after it may differ, before it must
not.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ReplayMismatchError
from flowpregel.func import entrypoint, task
from tests.runs.crashes import Once
from tests.runs.watched import reading


@task(executor="inline")
def read(name: str) -> int:
    """Return a number from outside, which may be another one the next time."""
    return int(os.environ[name])


@task(executor="inline")
def double(n: int) -> int:
    return 2 * n


@task(executor="inline")
def double_of(name: str) -> int:
    """Return twice a number from outside, by a call of its own."""
    return double(int(os.environ[name])).result()


def interrupted_flow(store: LMDBSaver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a workflow that stopped behind its last call."""
    crash = Once(OSError("crash"))
    for name in ("FIRST", "SECOND", "THIRD"):
        monkeypatch.setenv(name, "1")

    @entrypoint(checkpointer=store, executor="inline")
    def flow(_: int) -> list[int]:
        first = double(int(os.environ["FIRST"])).result()
        second = read("SECOND").result()
        third = double(10 * second).result()
        results = [first, second, third, double_of("THIRD").result()]
        crash()
        return results

    with pytest.raises(OSError, match="crash"):
        flow.invoke(0, thread_id="1")
    return flow


def take_back(store: LMDBSaver, *calls: str) -> None:
    """Take the results of *calls* back."""
    with reading(store) as reader:
        rows = [row for row in reader.calls("1").rows if row.text in calls]
    assert len(calls) == len(rows)
    store.redo(Address("1", "", rows[0].checkpoint_id), [row.id for row in rows])


def test_a_call_after_one_that_was_taken_back_may_be_another(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It depends on a result that is no longer the same: no sign of chance."""
    flow = interrupted_flow(store, monkeypatch)
    take_back(store, "read('SECOND')")
    monkeypatch.setenv("SECOND", "2")

    assert [2, 2, 40, 2] == flow.invoke(None, thread_id="1")


def test_a_call_between_two_that_were_taken_back_may_be_another(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them decides."""
    flow = interrupted_flow(store, monkeypatch)
    take_back(store, "read('SECOND')", "double_of('THIRD')")
    monkeypatch.setenv("SECOND", "2")

    assert [2, 2, 40, 2] == flow.invoke(None, thread_id="1")


def test_a_call_before_one_that_was_taken_back_must_be_the_same(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it depends on was taken back."""
    flow = interrupted_flow(store, monkeypatch)
    take_back(store, "read('SECOND')")
    monkeypatch.setenv("FIRST", "3")

    with pytest.raises(ReplayMismatchError, match=r"double\(1\).*\n.*double\(3\)"):
        flow.invoke(None, thread_id="1")


def test_a_task_that_was_taken_back_may_make_other_calls(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken back because it is expected to do something else."""
    flow = interrupted_flow(store, monkeypatch)
    take_back(store, "double_of('THIRD')")
    monkeypatch.setenv("THIRD", "3")

    assert [2, 1, 20, 6] == flow.invoke(None, thread_id="1")
