"""Dask: a local cluster of a process a core, nothing kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import dask
from distributed import Client, LocalCluster

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def client() -> Iterator[Any]:
    """Yield a client of a warm cluster."""
    with (
        work.folder() as folder,
        dask.config.set({"temporary-directory": str(folder)}),
        LocalCluster(
            n_workers=work.CORES,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as found,
    ):
        found.gather(found.map(work.pause, [0.1] * work.CORES, pure=False))
        yield found


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial tasks at once; the time is that of one."""
    with client() as found:
        yield lambda: work.seconds_of(
            lambda: found.gather(found.map(work.same, range(count), pure=False)), count
        )


@contextlib.contextmanager
def mapped(function: str, given: list[Any], share: int = 1) -> Working:
    """Yield a map over values; the time is that of all.

    Args:
        function: Of `work`.
        given: The arguments of `work.values`.
        share: Do only one of *share*, and tell the time of all as if it grew in
            proportion.
    """
    called = getattr(work, function)
    kind, count, of = given
    with client() as found:

        def all_of(items: list[Any]) -> None:
            # as its guide says: an array that many tasks take is scattered
            if kind == "shared":
                items = found.scatter(items[:1]) * len(items)
            found.gather(found.map(called, items, pure=False))

        def turn() -> float:
            items = work.values(kind, count // share, of)
            return work.seconds_of(lambda: all_of(items)) * share

        yield turn
