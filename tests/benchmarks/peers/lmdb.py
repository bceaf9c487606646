"""LMDB by itself: what a commit costs at least, and what a log of commits takes on
disk.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import lmdb

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def commits(count: int, sync: bool = True, group: int = 1) -> Working:
    """Yield *count* small records, a commit for each *group*; the time is that of a
    record.
    """
    numbers = itertools.count()
    with work.folder() as folder:
        options: Any = {"map_size": 1 << 30, "sync": sync, "lib_version": 0}
        with contextlib.closing(lmdb.open(str(folder), **options)) as environment:

            def turn() -> None:
                for _ in range(0, count, group):
                    with environment.begin(write=True) as transaction:
                        for _ in range(group):
                            transaction.put(
                                next(numbers).to_bytes(8, "big"), bytes(300)
                            )

            yield lambda: work.seconds_of(turn, count)


@contextlib.contextmanager
def appended(count: int) -> Working:
    """Yield a log of *count* items and their steps, a commit for each."""

    def write(environment: Any, steps: Any, items: Any) -> None:
        for number in range(count):
            key = number.to_bytes(16, "big")
            with environment.begin(write=True) as transaction:
                transaction.put(key, bytes(100), append=True, db=steps)
                transaction.put(key, work.item(0)[0].encode(), append=True, db=items)

    def read(environment: Any, items: Any) -> None:
        with environment.begin(db=items) as transaction:
            assert len([bytes(value) for _, value in transaction.cursor()]) == count

    def turn() -> dict[str, float]:
        with work.folder() as folder:
            options: Any = {"map_size": 1 << 30, "max_dbs": 2, "lib_version": 0}
            with contextlib.closing(lmdb.open(str(folder), **options)) as environment:
                steps, items = (
                    environment.open_db(b"steps"),
                    environment.open_db(b"items"),
                )
                return {
                    "seconds": work.seconds_of(
                        lambda: write(environment, steps, items), count
                    ),
                    "state": work.seconds_of(lambda: read(environment, items)),
                    "bytes": work.bytes_in(folder) / count,
                }

    yield turn
