"""U1: what it costs to watch a run. ``python -m tests.benchmarks.watching [CALLS]``
prints it.

Four figures: a poll for changes, by who watches and by the run that is not watched; a
refresh with very many calls, a hundred of them new; what a run takes to show what it
does; and how long after its first commit the run of another process is seen by who
looks as often as the page. All but the last are seconds of CPU of the OS thread that
does it, which other work on the machine does not stretch as much as the time on the
clock.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from flowpregel import entrypoint, task
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.base import Lease
from flowpregel.checkpoint.leases import LeaseWatch, LiveState
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.storage.codec import PythonCodec
from flowpregel.storage.locks import FileLock
from tests.benchmarks.work import folder
from tests.runs.watched import job, until

_PERIOD = 0.2
"""Seconds between two looks of the page's server."""
_POLLS = 10_000
_NEW = 100
_TURNS = 5


@task(executor="inline")
def same(number: int) -> int:
    """Return it."""
    return number


def cpu_of(work: Callable[[], Any]) -> float:
    """Return the seconds of CPU that this OS thread took for *work*."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def poll(saver: LMDBSaver, path: str) -> tuple[float, float]:
    """Return the seconds of a poll: by who watches, and by a run that nobody
    watches.
    """
    file = FileLock(os.path.join(path, "lease"))
    file.acquire(0)
    lease = Lease(1)
    lease.live = dict
    store, _ = saver.opened_to_look(PythonCodec())
    watch = LeaseWatch()
    watch.add(file, LiveState(lease, store.table(b"live"), b"lease"))
    with closing(StoreReader(saver)) as reader:
        ours = cpu_of(lambda: [reader.mark() for _ in range(_POLLS)]) / _POLLS
    its = cpu_of(lambda: [watch.look() for _ in range(_POLLS)]) / _POLLS
    watch.drop(file)
    store.close()
    file.close()
    return ours, its


def refresh(saver: LMDBSaver, count: int) -> tuple[float, float, float, float]:
    """Return the seconds of the first look at *count* calls, of its first page, and of
    the next.

    Of the next looks it is the median, and the most.
    """
    seconds: list[float] = []
    pages: list[float] = []
    with closing(StoreReader(saver)) as reader:

        @entrypoint(checkpointer=saver)
        def flow(count: int) -> None:
            for future in same.map(range(count)):
                future.result()
            mark = 0
            for turn in range(_TURNS + 1):
                begun, seen = time.thread_time(), 0
                for changes in reader.changes("refresh", mark):
                    pages.append(time.thread_time() - begun)
                    mark, seen = changes.mark, seen + len(changes.rows)
                seconds.append(time.thread_time() - begun)
                assert seen >= (_NEW if turn else count)
                first = count + turn * _NEW
                for future in same.map(range(first, first + _NEW)):
                    future.result()

        flow.invoke(count, thread_id="refresh", durability="sync")
    first, *others = seconds
    return first, pages[0], statistics.median(others), max(others)


def cost(saver: LMDBSaver, count: int) -> tuple[float, float]:
    """Return the seconds that a watched run of *count* calls took, and its CPU to show
    itself.

    The rest of the engine takes no part in it, so no run that nobody watches is
    compared.
    """
    shown: list[float] = []
    look = LeaseWatch.look

    def measured(watch: LeaseWatch) -> None:
        shown.append(cpu_of(lambda: look(watch)))

    @entrypoint(checkpointer=saver)
    def flow(count: int) -> int:
        return sum(future.result() for future in same.map(range(count)))

    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(saver, over))
    LeaseWatch.look = measured
    watcher.start()
    begun = time.monotonic()
    flow.invoke(count, thread_id="cost")
    seconds = time.monotonic() - begun
    over.set()
    watcher.join()
    LeaseWatch.look = look
    return seconds, sum(shown)


def _watch(saver: LMDBSaver, over: threading.Event) -> None:
    with closing(StoreReader(saver)) as reader:
        while not over.wait(0.2):
            reader.live("cost")


def visible() -> list[float]:
    """Return the seconds from the first commit of another process's run until it is
    seen.
    """
    seconds = []
    for _ in range(_TURNS):
        with folder() as path, LMDBSaver(path / "store") as saver, job(path):
            with closing(StoreReader(saver)) as reader:
                while not reader.runs():
                    time.sleep(_PERIOD)
            seen = time.time_ns()
            until((path / "go.begun").exists)
            begun = (path / "go.begun").stat().st_mtime_ns
            seconds.append(max(0, seen - begun) / 1e9)
    return seconds


def main(arguments: list[str]) -> None:
    """Print the figures."""
    count = int(arguments[0]) if arguments else 100_000
    with folder() as path, LMDBSaver(path / "runs.lmdb") as saver:
        ours, its = poll(saver, str(path))
        print(
            f"U1 change poll: {ours * 1e6:.1f} us; of a run that nobody watches: "
            f"{its * 1e6:.1f} us"
        )
        seconds, spent = cost(saver, count // 5)
        share = 100 * spent / seconds
        print(
            f"U1 cost: {spent * 1e3:.0f} ms of CPU in a run of {seconds:.1f} s "
            f"({share:.2f} %)"
        )
        first, page, median, most = refresh(saver, count)
        print(
            f"U1 refresh with {count:,} calls: first {first:.2f} s (of which the first "
            "page "
            f"{page * 1e3:.0f} ms), then {median * 1e3:.0f} ms (at most "
            f"{most * 1e3:.0f})"
        )
    seconds = visible()
    print(
        f"U1 another process's run is seen {statistics.median(seconds) * 1e3:.0f} ms "
        "after its "
        f"first commit (at most {max(seconds) * 1e3:.0f})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
