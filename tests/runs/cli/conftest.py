"""A store and a queue in it, for the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.queues import Enqueue, enqueue_on


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The folder of a store."""
    return str(tmp_path / "store")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The file to which the flows append lines."""
    return tmp_path / "notes"


@pytest.fixture
def enqueue(store: str) -> Iterator[Enqueue]:
    """A function that enqueues a run of a flow in the store."""
    with LMDBSaver(store) as saver:
        yield enqueue_on(saver)
