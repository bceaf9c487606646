"""joblib: a parallel map, nothing kept."""

from __future__ import annotations

import contextlib
from typing import Any

import joblib

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a map over values; its memory maps are made anew each time."""
    called = getattr(work, function)

    def turn() -> float:
        items = work.values(*given)
        with joblib.Parallel(n_jobs=work.CORES) as parallel:
            parallel(joblib.delayed(work.pause)(0.1) for _ in range(work.CORES))
            return work.seconds_of(
                lambda: parallel(joblib.delayed(called)(each) for each in items)
            )

    yield turn
