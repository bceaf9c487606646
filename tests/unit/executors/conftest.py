"""Fixtures for the tests of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.executors.driven_workers import (
    DrivenWorker,
    WorkerMaker,
    driven_workers,
)


@pytest.fixture
def worker_of() -> Iterator[WorkerMaker]:
    """Return what starts workers that the test drives."""
    yield from driven_workers()


@pytest.fixture
def worker(worker_of: WorkerMaker) -> DrivenWorker:
    """Return a worker that is ready."""
    return worker_of()
