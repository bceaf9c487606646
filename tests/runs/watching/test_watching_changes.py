"""What a reader remembers of the calls that it has told of: little, and enough to tell
the rest.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing, nullcontext
from itertools import chain, count

import pytest

from flowpregel import entrypoint, task
from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import ERROR, Address, Batch, Checkpoint, TaskWrites
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.cursors import CheckpointView
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.layout import digest
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.plugins.page.pages import Pages
from tests.runs.watched import reading, until


@task(executor="inline")
def work(n: int) -> int:
    return n


def runs_of(store: LMDBSaver, *threads: str, calls: int = 3) -> None:
    @entrypoint(checkpointer=store)
    def flow(count: int) -> int:
        return sum(work(n).result() for n in range(count))

    for thread in threads:
        flow.invoke(calls, thread_id=thread)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_failed_call_that_was_not_made_again_is_taken_back(store: LMDBSaver) -> None:
    """A reader that has told of it tells all anew when the run has ended."""

    @task(executor="inline")
    def divide(n: int) -> int:
        return 6 // n

    @entrypoint(checkpointer=store)
    def flow(numbers: list[int]) -> int:
        return sum([divide(number).result() for number in numbers])

    with reading(store) as reader:
        with pytest.raises(ZeroDivisionError):
            flow.run([1, 0], id="1")
        mark, failed = states(reader, 0)
        flow.run([1, 2], id="1", adopt=True)
        _, ended = states(reader, mark)
        first = next(reader.changes("1", mark))
        summary = reader.summary("1", "all")

    assert ["done", "failed", "failed"] == sorted(state for _, state in failed)
    assert ["done"] * 3 == [state for _, state in ended]
    assert first.is_whole
    assert summary is not None
    assert 0 == summary.failed


def begin(store: LMDBSaver) -> None:
    first = Checkpoint("1", None, 1, -1, "input", {}, {}, ())
    store.commit([Batch(Address("1"), checkpoint=first)])


def end(store: LMDBSaver, ids: Iterable[str], *, channel: str = "n") -> None:
    """Keep what tasks have left: done, or, if *channel* is a control write's, as that
    says.
    """
    ran = AttemptRecord("node", 1, 0.5, 1, "inline", 1)
    tasks = [
        TaskWrites("1", id_, f"path of {id_}", ((channel, 1),), ran) for id_ in ids
    ]
    store.commit([Batch(Address("1"), tuple(tasks))])


def neighbours(groups: int, size: int) -> list[str]:
    """Return the ids of tasks whose digests begin alike, *size* of them in each
    group.
    """
    found = defaultdict[int, list[str]](list)
    for number in count():
        found[digest(f"task {number}")[0]].append(f"task {number}")
        full = [ids[:size] for ids in found.values() if len(ids) >= size]
        if len(full) == groups:
            return [*chain.from_iterable(full)]
    raise AssertionError


def states(reader: StoreReader, since: int) -> tuple[int, list[tuple[str, str]]]:
    """Return the mark after all that is new since another, and how the tasks stand that
    are.
    """
    found: list[tuple[str, str]] = []
    for changes in reader.changes("1", since):
        since = changes.mark
        found += [(row.id, row.state) for row in changes.rows]
    return since, sorted(found)


# ---------------------------------------------------------------- nothing is missed


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 50])
@pytest.mark.parametrize("is_held", [True, False])
def test_each_task_is_told_once_however_many_are_read_at_a_time(
    store: LMDBSaver, most: int, is_held: bool
) -> None:
    """Also where one comes between those that were told, which begin alike."""
    ids = neighbours(3, 6)
    begin(store)
    lease = store.lease("1") if is_held else nullcontext()
    with reading(store, most=most) as reader, lease:
        mark = reader.calls("1").mark
        for first in range(6):
            new = ids[first::6]
            end(store, new)
            mark, found = until(lambda since=mark: _some(states(reader, since)))

            assert sorted((id_, "done") for id_ in new) == found
        row = reader.run("1")

    assert row is not None
    assert {"done": 18} == row.states


def _some(
    found: tuple[int, list[tuple[str, str]]],
) -> tuple[int, list[tuple[str, str]]] | None:
    return found if found[1] else None


@pytest.mark.parametrize("most", [1, 4, 50])
def test_a_task_that_did_not_end_well_is_told_again_when_it_has(
    store: LMDBSaver, most: int
) -> None:
    """Those that still fail are not."""
    ids = neighbours(2, 4)
    begin(store)
    with reading(store, most=most) as reader, store.lease("1"):
        end(store, ids, channel=ERROR)
        mark, failed = states(reader, 0)
        end(store, ids[::2])
        _, done = states(reader, mark)
        row = reader.run("1")

    assert sorted((id_, "failed") for id_ in ids) == failed
    assert sorted((id_, "done") for id_ in ids[::2]) == done
    assert row is not None
    assert {"done": 4, "failed": 4} == row.states


def test_a_call_with_a_large_result_is_told_once(store: LMDBSaver) -> None:
    """Its record is kept in several parts."""

    @task(executor="inline")
    def large(size: int) -> bytes:
        return bytes(size)

    @entrypoint(checkpointer=store)
    def flow(size: int) -> int:
        return len(large(size).result())

    flow.invoke(3 << 20, thread_id="1")
    with reading(store) as reader:
        rows = [row.text or row.name for row in reader.calls("1").rows]

    assert ["flow", f"large({3 << 20})"] == sorted(rows)


# ---------------------------------------------------------------- little is remembered


def test_no_row_is_remembered(store: LMDBSaver) -> None:
    """Each is read where it lies, by whoever asks for it."""
    runs_of(store, "1", calls=50)
    # Other tests of this process may have rows of their own.
    before = {id(row) for row in rows_in_memory()}
    with reading(store) as reader:
        first, again = reader.calls("1"), reader.calls("1")
        same = first.rows == again.rows and first.mark == again.mark
        del first, again
        left = [row for row in rows_in_memory() if id(row) not in before]

    assert same
    assert [] == left


def rows_in_memory() -> list[CallRow]:
    """Return the rows that this process has."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is CallRow]


def test_a_run_that_nobody_has_asked_for_long_is_told_anew(store: LMDBSaver) -> None:
    """What changed is noted of the last few that were asked for."""
    runs_of(store, *map(str, range(40)))
    with reading(store) as reader:
        first = reader.calls("0")
        for thread in range(1, 40):
            reader.calls(str(thread))
        again, newest = reader.calls("0", first.mark), reader.calls("39")
        latest = reader.calls("39", newest.mark)

    assert again.is_whole
    assert {*first.rows} == {*again.rows}
    assert not latest.is_whole


def test_the_mark_of_another_reader_is_not_taken_for_ones_own(store: LMDBSaver) -> None:
    """As when the page's server was started again, and a page is still open."""
    runs_of(store, "1")
    with reading(store) as before:
        mark = before.calls("1").mark
    with reading(store) as reader:
        changes = reader.calls("1", mark - 1)

    assert changes.is_whole
    assert 4 == len(changes.rows)


def test_nothing_is_remembered_of_a_thread_that_was_deleted(store: LMDBSaver) -> None:
    with reading(store) as reader:
        for turn in range(3):
            runs_of(store, f"a {turn}", f"b {turn}")
            reader.runs()
            store.delete_thread(f"a {turn}")
        rows = reader.runs()
        gc.collect()
        seen = [each for each in gc.get_objects() if type(each) is CheckpointView]

    assert 3 == len(rows)
    assert 3 == len(
        [each for each in seen if each.tasks.location.address.thread_id[0] in "ab"]
    )


def test_what_the_channels_held_is_read_without_what_tasks_have_left(
    store: LMDBSaver,
) -> None:
    """Of very many calls that is much, and no superstep is shown with it."""
    runs_of(store, "1")
    for saved in store.history(Address("1")):
        channels = store.load_channels(saved.address)

        assert channels is not None
        assert saved.checkpoint == channels.checkpoint
        assert ((), (), None) == (channels.writes, channels.ran, channels.lazy_results)
    assert saved.writes


# ---------------------------------------------------------------- one call


def test_a_calls_output_is_that_of_this_call(store: LMDBSaver) -> None:
    """Empty if it has printed nothing."""
    runs_of(store, "1")
    with closing(Pages(store)) as pages, reading(store) as reader:
        rows = {row.text: row for row in reader.calls("1").rows}
        for n in (1, 2):
            row, text = rows[f"work({n})"], f"worked {n}".encode()
            output = CallOutput(
                row.checkpoint_id, row.id, row.text, 1, text, b"", len(text)
            )
            store.keep_output(Address("1", "", row.checkpoint_id), output)
        runs_of(store, "2")  # with the next commit it is written
        printed = [pages.logs("1", rows[f"work({n})"].id) for n in range(3)]

    assert ["", "worked 1", "worked 2"] == printed


def test_a_call_is_told_before_all_others_were_read(store: LMDBSaver) -> None:
    """Though there are very many."""
    runs_of(store, "1", calls=20)
    with reading(store) as reader:
        rows = {row.text: row.id for row in reader.calls("1").rows}
    with reading(store, most=1) as reader:
        details = [reader.call("1", rows[f"work({n})"]) for n in range(20)]
        none = reader.call("1", "no such")

    assert [*range(20)] == [detail and detail["result"] for detail in details]
    assert none is None
