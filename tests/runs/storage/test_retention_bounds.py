"""Where the bounds of a `Retention` lie, to the byte and to the second; what a redo
leaves.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest

from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention
from flowpregel.context import interrupt
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.storage.records import SIZE, TABLE_NAMES
from flowpregel.types import Command
from tests.runs.crashes import Once
from tests.runs.stores import commit, id_of, step
from tests.runs.watched import reading

T = Address("t")
SEAL = SIZE + 1
"""Bytes before the content of a record."""
PARTS = ("checkpoints", "writes", "values", "deltas")


def steps(saver: LMDBSaver) -> list[int]:
    """Return the supersteps of the thread that are kept, the newest first."""
    return [saved.checkpoint.step for saved in saver.history(T)]


def records_in(path: Path) -> list[bytes]:
    """Return what the store has of checkpoints: all its records, without their
    seals.
    """
    found: list[bytes] = []
    with lmdb.open(str(path), max_dbs=16, readonly=True, lib_version=0) as env:
        names = [name for name in TABLE_NAMES if name.decode() in PARTS]
        databases = [env.open_db(name, create=False) for name in names]
        with env.begin() as transaction:
            for database in databases:
                found += [
                    bytes(value)[SEAL:] for _, value in transaction.cursor(database)
                ]
    return found


@pytest.mark.parametrize(("spare", "kept"), [(0, [1, 0]), (-1, [1])])
def test_a_bound_in_bytes_counts_all_records_of_a_checkpoint(
    spare: int, kept: list[int], path: Path
) -> None:
    """With what its tasks wrote and what changed: it is exact."""
    with LMDBSaver(path) as saver:
        for number in range(2):
            commit(saver, number, {"n": bytes(1_000), "m": "text"})
    size = sum(map(len, records_in(path)))

    with LMDBSaver(path) as saver:
        saver.sweep(Retention(max_bytes=size + spare))
        assert kept == steps(saver)


@pytest.mark.parametrize(("spare", "kept"), [(0, [1, 0]), (-1, [1])])
def test_a_bound_in_bytes_counts_a_value_that_a_task_has_written_once(
    spare: int, kept: list[int], path: Path
) -> None:
    """As it is stored."""
    text = "x" * 1_000
    written = TaskWrites(id_of(0), "task", "path", (("text", text),))
    with LMDBSaver(path) as saver:
        saver.commit([Batch(address=T, checkpoint=step(0))])
        saver.commit([Batch(T, (written,), step(1, {"text": text}))])
    size = sum(map(len, records_in(path)))
    assert 1_000 < size < 2_000

    with LMDBSaver(path) as saver:
        saver.sweep(Retention(max_bytes=size + spare))
        assert kept == steps(saver)


def test_a_bound_in_seconds_keeps_what_is_younger(path: Path) -> None:
    """And drops what is older, except for the newest."""
    ages, now = (7_200, 3_700, 3_500, 60), time.time_ns()
    with LMDBSaver(path) as saver:
        for number, age in enumerate(ages):
            checkpoint = replace(step(number), at=now - age * 1_000_000_000)
            saver.commit([Batch(address=T, checkpoint=checkpoint)])

        assert 2 == saver.sweep(Retention(max_age=3_600))
        assert [3, 2] == steps(saver)
        assert 1 == saver.sweep(Retention(max_age=10))


def test_a_sweep_that_finds_nothing_drops_none(path: Path) -> None:
    """Whether all is to be kept, or nothing is there."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)

        assert 0 == saver.sweep(Retention(keep_last=1))
        assert 0 == saver.sweep(Retention(keep_last=1), ["unknown"])


def test_a_checkpoint_that_is_dropped_leaves_no_record(
    path: Path, tmp_path: Path
) -> None:
    """Neither of its own, nor of what tasks wrote on it, nor that it was pinned."""
    with LMDBSaver(path) as saver:
        for number in range(4):
            commit(saver, number)
        saver.pin(Address("t", "", id_of(0)))
        saver.prune(["t"])
    with LMDBSaver(tmp_path / "other") as saver:
        saver.commit([Batch(address=T, checkpoint=step(3))])

    assert len(records_in(tmp_path / "other")) == len(records_in(path))


@pytest.mark.parametrize(("asked_at", "dropped"), [(2, 3), (0, 2)])
def test_a_question_keeps_a_checkpoint_unless_what_follows_it_is_kept(
    asked_at: int, dropped: int, path: Path
) -> None:
    """That one shows that the question has its answer."""
    with LMDBSaver(path) as saver:
        for number in range(4):
            commit(saver, number)
        asked = TaskWrites(id_of(asked_at), "asks", "", (("__interrupt__", "go on?"),))
        saver.commit([Batch(address=T, checkpoint=None, writes=(asked,))])

        assert dropped == saver.sweep(Retention(keep_last=1))


@task(executor="inline")
def confirmed(name: str) -> str:
    """Ask two questions about *name*; return the answers."""
    first = interrupt(f"first {name}")
    return f"{name}: {first}, {interrupt(f'second {name}')}"


def test_a_call_that_is_taken_back_keeps_its_answers(store: LMDBSaver) -> None:
    """Nobody is asked a second time."""
    crash = Once(OSError("crash"))

    @entrypoint(checkpointer=store, executor="inline")
    def flow(_: int) -> str:
        result = confirmed("deploy").result()
        crash()
        return result

    flow.invoke(0, thread_id="1")
    flow.invoke(Command(resume="yes"), thread_id="1")
    with pytest.raises(OSError, match="crash"):
        flow.invoke(Command(resume="now"), thread_id="1")
    with reading(store) as reader:
        (row,) = [
            row for row in reader.calls("1").rows if row.text == "confirmed('deploy')"
        ]
    store.redo(Address("1", "", row.checkpoint_id), [row.id])

    found: Any = flow.invoke(None, thread_id="1")

    assert "deploy: yes, now" == found


@pytest.mark.parametrize("address", [Address("t"), Address("other", "", id_of(0))])
def test_where_nothing_was_called_nothing_can_be_taken_back(
    address: Address, path: Path
) -> None:
    """The error names the place."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)

        with pytest.raises(ConfigurationError, match="nothing to undo"):
            saver.redo(address, ["call"])
