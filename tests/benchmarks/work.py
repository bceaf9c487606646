"""What the sides have done, and with which values: plain functions that any process can
import.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CORES = (
    len(os.sched_getaffinity(0))
    if hasattr(os, "sched_getaffinity")
    else os.cpu_count() or 1
)
ITEM = "x" * 200


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder on the disk that ``FLOWPREGEL_BENCH_FOLDER`` names, for a while."""
    where = os.environ.get("FLOWPREGEL_BENCH_FOLDER")
    path = Path(tempfile.mkdtemp(prefix="flowpregel-bench-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def bytes_in(path: Path) -> int:
    """Return the bytes of all files below *path*."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def seconds_of(work: Callable[[], Any], units: float = 1) -> float:
    """Return the seconds that one of *units* took."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) / units


# ---------------------------------------------------------------- functions


def same(value: Any) -> Any:
    """Do nothing."""
    return value


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def spin(seconds: float) -> float:
    """Compute for that long, not counting what others compute meanwhile."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


def total(array: Any) -> float:
    """Read all of an array."""
    return float(array.sum())


def make(size: int) -> Any:
    """Return an array."""
    import numpy

    return numpy.ones(size)


def length(value: bytes) -> int:
    """Return how long *value* is."""
    return len(value)


class UpTo:
    """Counts, and returns None after the last: the trivial node of a cycle."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self, value: int) -> int | None:
        return value + 1 if value < self.last else None


def extend(state: list[str], writes: list[list[str]]) -> list[str]:
    """Append everything that was written."""
    return [*state, *(item for write in writes for item in write)]


def item(_: int) -> list[str]:
    """Return one item of 200 bytes, not the same object as any other."""
    return [ITEM[:-8] + f"{time.perf_counter_ns() % 100_000_000:08}"]


# ---------------------------------------------------------------- values


def values(kind: str, count: int, of: Any) -> list[Any]:
    """Return what the calls of a map get.

    Args:
        kind: ``each`` the value *of*, ``own`` a new array of *of* numbers for each,
            ``shared`` one array for all, ``bytes`` a new string of *of* bytes for each.
        count: How many.
        of: A value or a size.
    """
    if kind == "each":
        return [of] * count
    if kind == "bytes":
        return [bytes([n % 256]) * of for n in range(count)]
    if kind == "shared":
        return [make(of)] * count
    return [make(of) for _ in range(count)]
