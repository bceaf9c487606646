"""Fixtures for the tests of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.executors.driven_workers import (
    DrivenWorker,
    WorkerMaker,
    driven_workers,
)
from tests.unit.executors.quick_pools import PlayedPool, PoolMaker, quick_pools


@pytest.fixture
def worker_of() -> Iterator[WorkerMaker]:
    """Return what starts workers that the test drives."""
    yield from driven_workers()


@pytest.fixture
def pool_of() -> Iterator[PoolMaker]:
    """Return what makes pools of a size whose workers the test plays."""
    yield from quick_pools(PlayedPool)


@pytest.fixture
def worker(worker_of: WorkerMaker) -> DrivenWorker:
    """Return a worker that is ready."""
    return worker_of()
