"""Append 200 bytes to a DeltaChannel 10,000 times, beside a bare LMDB log of the same items.

Run it with ``python tests/benchmarks/store_deltas.py [folder]``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid

import lmdb

from flowpregel._core.records import Address, Batch, Checkpoint, Delta
from flowpregel.checkpoint.lmdb import LMDBSaver

STEPS = 10_000
ITEM = "x" * 200


def step(number: int, parent: Checkpoint | None, snapshot: bool) -> Checkpoint:
    """Return the checkpoint of a superstep in which one node appended one item."""
    now = time.time_ns()
    previous = parent.channel_versions["items"] if parent else None
    return Checkpoint(
        id=f"{number:08x}-0000-6000-8000-{uuid.uuid4().hex[:12]}",
        parent_id=parent.id if parent else None,
        at=now,
        step=number,
        source="loop",
        channel_versions={"items": now},
        versions_seen={"append": {"items": now}},
        changed=("items",),
        updated_channels=("items",),
        values={"items": [ITEM] * number} if snapshot else {},
        deltas={} if snapshot else {"items": Delta(previous, (ITEM,))},
        metadata={"run_id": "a run", "parents": {}},
    )


def ours(folder: str, snapshots: int | None) -> tuple[list[float], float, float, int]:
    """Return seconds per step, of opening and reading, of a history of 10, and the bytes."""
    path = os.path.join(folder, f"ours-{snapshots}")
    times, parent, address = [], None, Address("t")
    with LMDBSaver(path) as saver:
        for number in range(STEPS):
            taken = bool(snapshots and number and number % snapshots == 0)
            parent = step(number, parent, taken)
            begun = time.perf_counter()
            saver.commit([Batch(address=address, checkpoint=parent)])
            times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        assert len([*saver.history(address, limit=10)]) == 10
        history = time.perf_counter() - begun
        size = saver.size()
    begun = time.perf_counter()
    with LMDBSaver(path) as saver:
        assert saver.load(address) is not None
    return times, time.perf_counter() - begun, history, size


def bare(folder: str) -> tuple[list[float], int]:
    """Return seconds per step of a bare log, a checkpoint and its item each, and the bytes."""
    times = []
    env = lmdb.open(os.path.join(folder, "bare"), map_size=1 << 30, max_dbs=2, lib_version=0)
    steps, items = env.open_db(b"steps"), env.open_db(b"items")
    for number in range(STEPS):
        key = number.to_bytes(16, "big")
        begun = time.perf_counter()
        with env.begin(write=True) as transaction:
            transaction.put(key, bytes(100), append=True, db=steps)
            transaction.put(key, ITEM.encode(), append=True, db=items)
        times.append(time.perf_counter() - begun)
    pages = env.info()["last_pgno"] + 1
    env.close()
    return times, pages * 4096


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "benchmark")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        peer, peer_size = bare(folder)
        print(f"bare: {statistics.median(peer) * 1e6:.0f} us a step, {peer_size / STEPS:.0f} bytes")
        for snapshots in (None, 100):
            times, load, history, size = ours(folder, snapshots)
            first, last = (statistics.median(part) for part in (times[:1000], times[-1000:]))
            print(
                f"ours, snapshots every {snapshots}: {statistics.median(times) * 1e6:.0f} us "
                f"a step ({statistics.median(times) / statistics.median(peer):.2f} x), "
                f"last/first 1,000: {last / first:.2f}, {size / STEPS:.0f} bytes "
                f"({size / peer_size:.2f} x), open and read {load * 1e3:.1f} ms, "
                f"history(10) {history * 1e3:.1f} ms"
            )


if __name__ == "__main__":
    main()
