"""A snapshot of a run counts each call once, whenever its parts were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.situations import RunFacts, StatusText, describe_status
from flowpregel._inspection.tasks import RunRow
from flowpregel.cli.snapshots import RunSnapshot, RunWatcher, cpus_used
from flowpregel.errors import ConfigurationError
from tests.unit.test_call_counts import SECOND, row, running

BODY = row("body", "unfinished", name="flow", text="", caller="", path="body")


class FakeReader:
    """Stands for a reader: one run with these rows, and what its process publishes."""

    def __init__(self, *rows: CallRow, status: Any = "running", **live: Any) -> None:
        self.rows = rows
        self.status_of_run = status
        self.activity = {"at": 0, "started": 0, "waiting": {}, "workers": [], **live}

    def live(self, _: str) -> dict[str, Any] | None:
        return self.activity if self.status_of_run == "running" else None

    def changes(self, _: str, since: int) -> Iterator[CallChanges]:
        yield CallChanges(
            mark=since + 1, is_whole=since == 0, is_more=False, rows=self.rows
        )

    def run(self, thread_id: str) -> RunRow:
        return RunRow(thread_id, self.status_of_run, None, 0, 0, 0, 1, {})

    def status(self, thread_id: str, activity: Any) -> StatusText:
        facts = RunFacts(
            thread_id=thread_id, status=self.status_of_run, activity=activity
        )
        return describe_status(facts)


def watcher_of(reader: FakeReader) -> RunWatcher:
    return RunWatcher(cast(StoreReader, reader), "r")


def taken(reader: FakeReader) -> RunSnapshot:
    return watcher_of(reader).snapshot(now=21.0)


def numbers(snapshot: RunSnapshot) -> dict[str, int]:
    return {name: count for name, count in snapshot.total.items() if count}


def test_a_call_that_has_just_ended_is_done_and_not_running() -> None:
    """Its process had published that it runs before that."""
    reader = FakeReader(
        row("a"),
        at=11 * SECOND,
        running=[running("a"), running("b", 20)],
        waiting={"work": 3},
    )

    found = taken(reader)

    assert {"done": 1, "running": 1, "waiting": 3} == numbers(found)
    assert ["b"] == [task["id"] for task in found.running]
    assert "1 call runs now, 3 more wait" in found.text.sentence


def test_a_call_that_is_tried_again_has_not_failed() -> None:
    reader = FakeReader(
        row("a", "failed", error="E"), at=15 * SECOND, running=[running("a", 14)]
    )

    assert {"running": 1} == numbers(taken(reader))


def test_a_call_that_was_done_before_the_run_resumed_is_counted_apart() -> None:
    reader = FakeReader(
        row("a"), row("b", began=19 * SECOND), started=15 * SECOND, running=[]
    )

    found = taken(reader)

    assert {"before": 1, "done": 1} == numbers(found)
    assert 15.0 == found.began


def test_a_body_is_not_counted() -> None:
    """Nor listed among the calls that run."""
    body = {**running("body", name="flow"), "role": "body", "done": 1, "total": 2}
    reader = FakeReader(BODY, row("a"), running=[body])

    found = taken(reader)

    assert {"work": {"done": 1}} == {
        name: dict(count) for name, count in found.counts.items()
    }
    assert [body] == [*found.reports]


@pytest.mark.parametrize("status", ["done", "stopped"])
def test_nothing_runs_in_a_run_that_has_ended(status: str) -> None:
    """Although its process published that something did."""
    reader = FakeReader(running=[running("a")], waiting={"work": 2})
    watcher = watcher_of(reader)
    watcher.snapshot(now=20.0)
    reader.status_of_run = status

    found = watcher.snapshot(now=21.0)

    assert {} == numbers(found)
    assert () == tuple(found.running)


def test_a_run_that_is_deleted_is_an_error() -> None:
    reader = FakeReader(running=[])
    reader.run = lambda _: None  # type: ignore[assignment,method-assign,return-value]

    with pytest.raises(ConfigurationError, match="no thread 'r'"):
        taken(reader)


def test_the_cpus_in_use_are_those_of_the_workers_known_before() -> None:
    """A new worker, and one on another machine, are left out."""
    earlier = {"at": 10**9, "workers": [{"pid": 1, "cpu": 4.0}, {"pid": 2}]}
    workers = [{"pid": 1, "cpu": 5.5}, {"pid": 2}, {"pid": 3, "cpu": 9.0}]

    assert 0.75 == cpus_used(earlier, {"at": 3 * 10**9, "workers": workers})
    assert cpus_used(earlier, {**earlier}) is None
    assert cpus_used(None, earlier) is None
