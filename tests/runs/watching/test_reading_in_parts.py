"""A reader whose caller asks again: each answer costs little, in any run."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from flowpregel import entrypoint, task
from flowpregel._core.records import Address
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.run_list import RunList, RunQuery
from flowpregel._inspection.tasks import TaskRecords
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.watched import counted_records, reading, until


@task(executor="inline")
def invert(n: int) -> float:
    return 1 / n


def failed_run(store: LMDBSaver, thread: str, calls: int) -> None:
    """Run a flow whose last call fails."""

    @entrypoint(checkpointer=store)
    def flow(count: int) -> float:
        return sum(invert(count - n).result() for n in range(1, count + 1))

    with pytest.raises(ZeroDivisionError):
        flow.run(calls, id=thread)


def impatient(store: LMDBSaver, most: int) -> closing[StoreReader]:
    return closing(StoreReader(store, most, is_patient=False))


def read_on(reader: StoreReader) -> None:
    """Ask for the list until an answer is not postponed."""
    before = -1
    while before != reader.postponed:
        before = reader.postponed
        reader.runs()


def test_a_large_run_is_read_in_parts_and_says_so(store: LMDBSaver) -> None:
    failed_run(store, "1", 60)
    with impatient(store, 10) as reader:
        first = reader.run("1")
        text = reader.status("1", counting="some")
        summary = reader.summary("1", "some")
        was_postponed = reader.postponed
        read_on(reader)
        last, last_text = reader.run("1"), reader.status("1")
        last_summary = reader.summary("1")
    with reading(store) as patient:
        whole, whole_text = patient.run("1"), patient.status("1")

    assert first is not None
    assert first.is_behind
    assert 0 < sum(first.states.values()) <= 10
    assert text is not None
    assert ("reading", "reading") == (text.situation, text.short)
    assert "calls so far" in text.sentence
    assert summary is not None
    assert (None, "") == (summary.failed, summary.error)
    assert was_postponed > 0
    assert (whole, whole_text) == (last, last_text)
    assert "failed" == whole.status if whole else False
    assert last_summary is not None
    assert 1 == last_summary.failed


def test_a_small_run_does_not_wait_for_a_large_one(store: LMDBSaver) -> None:
    """Its status is known at once, also if the large run comes first in the list."""
    failed_run(store, "small", 5)
    failed_run(store, "large", 60)
    with impatient(store, 10) as reader:
        rows = {row.thread_id: row for row in reader.runs()}

    assert rows["large"].is_behind
    assert not rows["small"].is_behind
    assert "failed" == rows["small"].status


def test_a_list_shows_a_run_that_is_not_read_yet_as_such(store: LMDBSaver) -> None:
    failed_run(store, "1", 60)
    with impatient(store, 10) as reader:
        runs = RunList(reader)
        first = runs.page(RunQuery(), 0).runs[0]
        read_on(reader)
        last = runs.page(RunQuery(), 0).runs[0]

    assert ("reading", None) == (first.situation, first.failed)
    assert ("failed", 1) == (last.situation, last.failed)


def test_a_task_that_is_undone_is_noticed_by_an_impatient_reader(
    store: LMDBSaver,
) -> None:
    failed_run(store, "1", 30)
    with impatient(store, 10) as reader:
        read_on(reader)
        rows = {
            row.text: row
            for changes in reader.changes("1")
            for row in changes.rows
            if row.text
        }
        row = rows["invert(3)"]
        store.redo(Address("1", "", row.checkpoint_id), [row.id])

        def fewer() -> bool:
            run = reader.run("1")
            return run is not None and run.states["done"] == 28

        until(fewer)


def test_each_record_is_decoded_once_for_its_state_and_once_for_its_row(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list, the run and the calls share what was read."""
    failed_run(store, "1", 60)
    decoded: Counter[bytes] = Counter()
    original = TaskRecords.record

    def record(self: TaskRecords, data: bytes) -> object:
        decoded[data] += 1
        return original(self, data)

    monkeypatch.setattr(TaskRecords, "record", record)
    with impatient(store, 10) as reader:
        read_on(reader)
        for_states = decoded.total()
        rows = [row for changes in reader.changes("1") for row in changes.rows]

    assert 61 == len(rows)
    assert for_states >= 61
    assert 2 >= max(decoded.values())


def test_many_failed_calls_are_counted_without_their_body(store: LMDBSaver) -> None:
    """And the first of them is named, whatever the order of their records."""

    @task(executor="inline")
    def fail(number: int) -> None:
        raise ValueError(f"no {number}")

    @entrypoint(checkpointer=store)
    def flow(count: int) -> None:
        futures = [fail(number) for number in range(count)]
        for future in reversed(futures):
            future.result()

    with pytest.raises(ValueError, match="no 399"):
        flow.run(400, id="1")
    with reading(store) as reader:
        summary = reader.summary("1")

    assert summary is not None
    assert 400 == summary.failed
    assert "fail(0): ValueError: no 0" == summary.error


def test_the_failed_calls_are_read_once_for_the_list_and_the_head(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read again only after a task of the run has changed."""
    failed_run(store, "1", 60)
    with reading(store) as reader:
        first = reader.summary("1", "no")
        with counted_records(monkeypatch) as decoded:
            second = reader.summary("1", "no")
            text = reader.status("1", counting="no")

    assert first == second
    assert first is not None
    assert first.text == text
    assert [] == decoded
