"""A store with a record of every kind, and all that can be read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowpregel._core.records import Address, Batch, Delta, TaskWrites
from flowpregel.cache.lmdb import LMDBCache
from flowpregel.checkpoint.lmdb import StoreOptions
from flowpregel.plugins.sqlite import SQLiteCache, SQLiteStore
from flowpregel.store.lmdb import LMDBStore
from tests.runs.stores import id_of, saver_at, step

LARGE = bytes(range(256)) * 4_200
"""Two chunks."""
PLAIN: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1.5,
    2 + 1j,
    "text \ud800 ü",
    b"\0\xff",
    (1, (2,)),
    [3, []],
    {"a": {1, 2}, "b": frozenset({3})},
    ValueError("an error"),
    range(3),
    Ellipsis,
]


def store_at(path: Path, options: StoreOptions | None) -> LMDBStore | SQLiteStore:
    """Return the long-term store in the store at *path*."""
    make = SQLiteStore if path.suffix == ".db" else LMDBStore
    return make(path, options=options)


def cache_at(path: Path, options: StoreOptions | None) -> LMDBCache | SQLiteCache:
    """Return the cache in the store at *path*."""
    make = SQLiteCache if path.suffix == ".db" else LMDBCache
    return make(path, options=options)


def fill(path: Path, options: StoreOptions | None = None) -> None:
    """Put a record of every kind into a new store."""
    with saver_at(path, options=options) as saver:
        first = step(0, {"n": 0, "plain": PLAIN, "large": LARGE, "d": ["seed"]})
        saver.commit([Batch(address=Address("t"), checkpoint=first)])
        for number in range(1, 4):
            deltas = {"d": Delta(number, (f"more {number}",))}
            also = {"plain": 1, "large": 1, "d": number + 1}
            made = step(number, {"n": number}, deltas=deltas, also=also)
            pairs = (("n", number), ("__interrupt__", "?"))
            writes = TaskWrites(id_of(number - 1), "task", "path", pairs)
            saver.commit(
                [Batch(address=Address("t"), checkpoint=made, writes=(writes,))]
            )
        nested = Address("t \u00fc " + "long " * 200, "child:1")
        saver.commit([Batch(address=nested, checkpoint=step(0, {"n": "nested"}))])
        saver.pin(Address("t", "", id_of(1)))
    with store_at(path, options) as store:
        store.put(("people", "old"), "ada", {"born": 1815})
    with cache_at(path, options) as cache:
        cache.set({(("squares",), "3"): ("nine", None)})


def everything(path: Path, options: StoreOptions | None = None) -> dict[str, Any]:
    """Return all that is in a store, which holds."""
    with saver_at(path, options=options) as saver:
        assert saver.verify().ok
        found: dict[str, Any] = {
            f"{place.thread_id} {place.namespace}": [
                (each.checkpoint, each.deltas, each.writes)
                for each in saver.history(place)
            ]
            for place in saver.namespaces()
        }
    with store_at(path, options) as store:
        item = store.get(("people", "old"), "ada")
        found["store"] = item and item.value
    with cache_at(path, options) as cache:
        found["cache"] = cache.get([(("squares",), "3")])
    return found
