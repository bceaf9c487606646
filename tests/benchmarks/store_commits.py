"""A durable commit of a small superstep beside a bare LMDB commit, and 200 OS threads at once.

Run it with ``python tests/benchmarks/store_commits.py [folder]``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time

import lmdb

from flowpregel._core.records import Address, Batch, Checkpoint
from flowpregel.checkpoint.lmdb import LMDBSaver

ROUNDS, STEPS = 5, 200
THREADS, STEPS_EACH = 200, 20


def step(number: int, parent: str | None, channels: dict[str, int]) -> Checkpoint:
    """Return the checkpoint of a superstep in which one node wrote one channel."""
    now = time.time_ns()
    channels["count"] = now
    return Checkpoint(
        id=f"{now:016x}"[-8:] + f"-0000-6000-8000-{number:012x}",
        parent_id=parent,
        at=now,
        step=number,
        source="loop",
        channel_versions=dict(channels),
        versions_seen={"node": {"count": now}},
        changed=("count",),
        updated_channels=("count",),
        values={"count": number},
        metadata={"run_id": "a run", "parents": {}},
    )


def run(saver: LMDBSaver, thread: str, steps: int, channels: int = 1) -> list[float]:
    """Commit *steps* supersteps of a thread; return the seconds of each."""
    versions = {f"c{number}": 1 for number in range(channels - 1)}
    parent, times = None, []
    for number in range(steps):
        checkpoint = step(number, parent, versions)
        begun = time.perf_counter()
        saver.commit([Batch(address=Address(thread), checkpoint=checkpoint)])
        times.append(time.perf_counter() - begun)
        parent = checkpoint.id
    return times


def bare(env: lmdb.Environment, start: int) -> list[float]:
    """Commit one record of 300 bytes each time; return the seconds of each."""
    times = []
    for number in range(start, start + STEPS):
        begun = time.perf_counter()
        with env.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8, "big"), bytes(300))
        times.append(time.perf_counter() - begun)
    return times


def threads(saver: LMDBSaver) -> float:
    """Return the commits a second of 200 OS threads, each with a thread of its own."""
    runs = [
        threading.Thread(target=run, args=(saver, f"thread {number}", STEPS_EACH))
        for number in range(THREADS)
    ]
    begun = time.perf_counter()
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    return THREADS * STEPS_EACH / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "benchmark")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        env = lmdb.open(os.path.join(folder, "bare"), map_size=1 << 30, lib_version=0)
        with LMDBSaver(os.path.join(folder, "ours")) as saver:
            ratios = []
            for turn in range(ROUNDS):
                peer = statistics.median(bare(env, turn * STEPS))
                mine = statistics.median(run(saver, f"alone {turn}", STEPS))
                ratios.append(mine / peer)
                print(f"bare {peer * 1e6:.0f} us, ours {mine * 1e6:.0f} us: {mine / peer:.2f} x")
            print(f"a durable commit: {statistics.median(ratios):.2f} x (goal 1.35 x)")
            few = statistics.median(run(saver, "10 channels", STEPS, 10))
            many = statistics.median(run(saver, "1,000 channels", STEPS, 1000))
            print(f"1,000 channels: {many / few:.2f} x of 10 (goal 1.5 x)")
            alone = 1 / statistics.median(run(saver, "alone", STEPS))
            together = threads(saver)
            print(
                f"200 OS threads: {together:.0f} commits/s, one: {alone:.0f}: "
                f"{together / alone:.1f} x (goal 5 x)"
            )
        env.close()


if __name__ == "__main__":
    main()
