"""A made-up store with a run of a great many calls, which would take long to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._core.ids import call_path, caller_of
from flowpregel.checkpoint.layout import WritesRecord, digest
from flowpregel.checkpoint.tables import Tables
from flowpregel.storage.codec import PythonCodec

THREAD = "big"
MANY = 30_000
"""Calls of a run that has too many to send, show or draw all of them."""
_CALLS_A_TRANSACTION = 20_000
_MILLISECOND = 1_000_000
_AT = {"began": 1, "seconds": 2, "pid": 5, "planned": 8}
"""The fields of an attempt that differ between the calls."""


@task
def train(depth: int) -> float:
    if depth == 12:
        raise FloatingPointError("loss is nan at epoch 3")
    return 1 / depth


@entrypoint(executor="inline")
def sweep(count: int) -> None:
    train(8).result()
    train(12).result()


def big_store(path: Path, count: int) -> str:
    """Make a store with a run of *count* calls, of which each 97th failed.

    Two calls are executed, and their records are copied under other ids and times.
    """
    with LMDBSaver(path) as saver:
        with pytest.raises(FloatingPointError):
            sweep.copy({"checkpointer": saver}).run(count, id=THREAD)
        store, _ = saver.opened_to_look(PythonCodec())
        tables = Tables(store)
        originals = _originals(store, tables)
        for begin in range(0, count, _CALLS_A_TRANSACTION):
            numbers = range(begin, min(begin + _CALLS_A_TRANSACTION, count))

            def put(transaction: Any, numbers: range = numbers) -> None:
                for number in numbers:
                    prefix, record = originals[number % 97 == 0]
                    copied = _copy(record, number)
                    tables.writes.put(
                        transaction,
                        prefix + digest(copied.task_id),
                        tables.record_of(tuple(copied)),
                    )

            store.write(put)
        store.close()
    return str(path)


def _originals(store: Any, tables: Tables) -> dict[bool, tuple[bytes, WritesRecord]]:
    """Return the key's prefix and the record of a call, by whether it failed."""
    originals: dict[bool, tuple[bytes, WritesRecord]] = {}

    def read(transaction: Any) -> None:
        for key, data in tables.writes.scan(transaction, b""):
            fields = tables.fields_of(data)
            if len(fields) != len(WritesRecord._fields):
                continue  # such as the arguments of a call
            record = WritesRecord(*fields)
            if record.ran and record.ran[0] == "train":
                has_failed = bool(record.ran[6])
                originals[has_failed] = (key[:-16], record)

    store.read(read)
    return originals


def _copy(record: WritesRecord, number: int) -> WritesRecord:
    """Return the record of another call that went the same way."""
    assert record.ran is not None
    ran = list(record.ran)
    ran[_AT["began"]] += number * _MILLISECOND
    ran[_AT["planned"]] += number * _MILLISECOND
    ran[_AT["seconds"]] = 0.008 + (number * 7919 % 1_000) / 1_000_000
    ran[_AT["pid"]] = 1_000 + number % 9
    return record._replace(
        task_id=f"{number:032x}",
        path=call_path(caller_of(record.path), 10 + number),
        ran=tuple(ran),
    )
