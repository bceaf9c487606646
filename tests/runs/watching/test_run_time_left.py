"""The estimated time left of a run, for dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.watching import RunTimeLeft, StoreReader


@task(executor="inline")
def double(number: int) -> int:
    return 2 * number


def activity(began: float, **waiting: int) -> dict[str, Any]:
    """Return the activity of a run with one running call."""
    running = {"id": "a", "name": "double", "role": "leaf", "began": int(began * 1e9)}
    body = {"id": "b", "name": "study", "role": "body", "began": 0}
    return {"running": [running, body], "waiting": waiting}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StoreReader]:
    """The store of two runs of a flow: a finished one, and one with a single call."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def study(count: int) -> int:
            return sum(double(number).result() for number in range(count))

        study.run(20, id="before")
        study.run(1, id="now")
        with closing(StoreReader(saver)) as reader:
            yield reader


def updated(reader: StoreReader, thread: str) -> RunTimeLeft:
    """Return the estimate of a run, with the durations of its calls."""
    left = RunTimeLeft(reader, thread)
    for changes in reader.changes(thread):
        left.update(changes)
    return left


def test_the_calls_of_the_run_and_of_earlier_runs_count(reader: StoreReader) -> None:
    """For the calls that run, and those that wait."""
    left = updated(reader, "now")

    few = left.estimate(activity(100.0, double=1), now=100.0)
    many = left.estimate(activity(100.0, double=100_000), now=100.0)

    assert few is not None
    assert many is not None
    assert few.high < many.high


def test_nothing_is_estimated_while_too_little_is_known(reader: StoreReader) -> None:
    """Without a running call, and for a task of which no call has ended."""
    left = updated(reader, "now")
    idle = {"running": [], "waiting": {"double": 3}}

    assert left.estimate(None, now=100.0) is None
    assert left.estimate(idle, now=100.0) is None
    assert left.estimate(activity(100.0, other=3), now=100.0) is None


def test_the_durations_of_an_index_are_restored(reader: StoreReader) -> None:
    """A server that begins with an index reads only what has changed since then."""
    index = reader.index("before")
    for changes in reader.changes("before"):
        index.update(changes)
    left = RunTimeLeft(reader, "before")

    nothing = left.estimate(activity(100.0, double=3), now=100.0)
    left.restore(index)

    assert nothing is None
    assert left.estimate(activity(100.0, double=3), now=100.0) is not None
