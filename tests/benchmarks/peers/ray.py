"""Ray: a local cluster with a worker process a core, nothing kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import ray

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Start Ray, with its workers, for a while."""
    with work.folder() as folder:
        ray.init(
            "local",  # and not a cluster that runs on this machine already
            num_cpus=work.CORES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
        try:
            ray.get([ray.remote(work.pause).remote(0.2) for _ in range(work.CORES)])
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial tasks at once; the time is that of one."""
    with cluster():
        called = ray.remote(work.same)
        yield lambda: work.seconds_of(
            lambda: ray.get([called.remote(n) for n in range(count)]), count
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
    kind, count, of = given
    with cluster():
        called = ray.remote(getattr(work, function))

        def all_of(items: list[Any]) -> None:
            if kind == "shared":  # as its guide says: what many tasks take is put once
                items = [ray.put(items[0])] * len(items)
            ray.get([called.remote(each) for each in items])

        def turn() -> float:
            items = work.values(kind, count // share, of)
            return work.seconds_of(lambda: all_of(items)) * share

        yield turn
