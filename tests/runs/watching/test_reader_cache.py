"""A reader that begins from what an earlier one has read, and trusts no other file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._core.records import Address
from flowpregel._inspection import reader_cache, run_cursor
from flowpregel._inspection.cache_files import cache_root
from flowpregel._inspection.call_graph import CallGraph, call_graph
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.error_kinds import FailedCalls
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.situations import StatusText
from flowpregel._inspection.tasks import RunRow
from flowpregel.storage.options import StoreOptions
from tests.runs.watched import counted_records

CALLS = 40
QUERIES = [
    CallQuery(),
    CallQuery(text="n:>30", order="-took"),
    CallQuery(text="division", states={"failed"}),
    CallQuery(task="invert", order="n", offset=3, count=7),
]


class Seen(NamedTuple):
    """What a reader tells of a run."""

    row: RunRow | None
    status: StatusText | None
    rows: set[CallRow]
    pages: list[list[CallRow]]
    counts: dict[str, int]
    kinds: list[object]
    graph: CallGraph


@task(executor="inline")
def invert(n: int) -> float:
    return 1 / n


@pytest.fixture(autouse=True)
def small_runs_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reader_cache, "LEAST_CALLS", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LMDBSaver]:
    with LMDBSaver(tmp_path / "store") as saver:
        run_to_an_error(saver)
        yield saver


def run_to_an_error(saver: LMDBSaver, thread: str = "1", calls: int = CALLS) -> None:
    """Run or resume a flow whose last call fails."""

    @entrypoint(checkpointer=saver)
    def flow(count: int) -> float:
        numbers = [*range(1, calls), 0]
        return sum(invert(n).result() for n in numbers)

    with pytest.raises(ZeroDivisionError):
        flow.invoke(None if any(saver.threads()) else 1, thread_id=thread)


def look(saver: LMDBSaver, *, is_cached: bool = True) -> Seen:
    """Read a run to its end, and keep it if *is_cached*."""
    with closing(StoreReader(saver, is_cached=is_cached)) as reader:
        row = reader.run("1")
        index = reader.index("1")
        failed = FailedCalls()
        failed.restore(index)
        for changes in reader.changes("1", index.mark):
            failed.update(changes)
            index.update(changes)
        reader.keep({"1": index})
        status = reader.status("1")
    pages = [list(index.page(query).rows.values()) for query in QUERIES]
    kinds: list[object] = [*failed.kinds()]
    rows = {*index.recorded_rows()}
    graph = call_graph(index)
    return Seen(row, status, rows, pages, dict(+index.counts), kinds, graph)


def files() -> list[Path]:
    return sorted(path for path in cache_root().glob("*/*"))


# ---------------------------------------------------------------- what is kept


def test_the_next_reader_reads_nothing_again(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But tells the same."""
    fresh = look(store, is_cached=False)
    with counted_records(monkeypatch) as decoded:
        first = look(store)
        by_first = len(decoded)
        decoded.clear()
        second = look(store)

    # A failed call is read once more, for the sentence about it.
    assert fresh == first == second
    assert by_first > CALLS
    assert len(decoded) <= 2
    assert fresh.rows
    assert fresh.kinds


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_the_next_reader_reads_what_was_added(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(store)
    run_to_an_error(store, calls=CALLS + 5)
    with counted_records(monkeypatch) as decoded:
        second = look(store)

    assert look(store, is_cached=False) == second
    assert 0 < len(decoded) < CALLS
    assert CALLS + 5 + 1 == len(second.rows)


def test_the_next_reader_sees_what_was_undone(store: LMDBSaver) -> None:
    first = look(store)
    row = next(row for row in first.rows if row.text == "invert(3)")
    store.redo(Address("1", "", row.checkpoint_id), [row.id])
    second = look(store)

    assert look(store, is_cached=False) == second
    assert first.counts["done"] - 1 == second.counts["done"]


def test_a_run_that_holds_the_thread_does_not_hide_what_was_undone(
    store: LMDBSaver,
) -> None:
    """While a run holds it, results are otherwise taken as they were."""
    first = look(store)
    row = next(row for row in first.rows if row.text == "invert(3)")
    store.redo(Address("1", "", row.checkpoint_id), [row.id])
    with store.lease("1"):
        second = look(store)
        fresh = look(store, is_cached=False)

    assert fresh == second
    assert row not in second.rows


def test_another_run_of_the_same_name_begins_anew(store: LMDBSaver) -> None:
    look(store)
    store.delete_thread("1")
    run_to_an_error(store, calls=5)
    second = look(store)

    assert look(store, is_cached=False) == second
    assert 6 == len(second.rows)


def test_the_files_of_a_deleted_run_are_removed(store: LMDBSaver) -> None:
    look(store)
    kept = files()
    store.delete_thread("1")
    with closing(StoreReader(store, is_cached=True)) as reader:
        reader.keep({})

    assert 2 == len(kept)
    assert [] == files()


def test_a_run_that_is_running_is_not_kept(store: LMDBSaver) -> None:
    with store.lease("1"):
        look(store)

    assert [] == files()


def test_a_small_run_is_not_kept(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_cache, "LEAST_CALLS", 1_000)
    look(store)

    assert [] == files()


def test_an_index_has_another_epoch_after_each_start(store: LMDBSaver) -> None:
    """A page may know rows that the former server has sent after it kept them."""
    look(store)
    epochs: list[int] = []
    for _ in range(2):
        with closing(StoreReader(store, is_cached=True)) as reader:
            index = reader.index("1")
            epochs.append(index.epoch)

    assert len(index.table) > CALLS
    assert epochs[0] != epochs[1]
    assert CallIndex().epoch not in epochs


# ---------------------------------------------------------------- what is trusted


def test_only_the_user_may_read_the_files(store: LMDBSaver) -> None:
    look(store)

    assert {0o600} == {path.stat().st_mode & 0o777 for path in files()}
    assert 0o700 == files()[0].parent.stat().st_mode & 0o777


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("position", [0, 20, -1])
def test_a_damaged_file_is_not_read(
    store: LMDBSaver, which: int, position: int
) -> None:
    fresh = look(store)
    path = files()[which]
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)

    assert fresh == look(store)


@pytest.mark.parametrize("size", [0, 1, 17, 100])
def test_a_file_that_was_cut_off_is_not_read(store: LMDBSaver, size: int) -> None:
    fresh = look(store)
    for path in files():
        os.truncate(path, size)

    assert fresh == look(store)


def test_files_that_were_exchanged_are_not_read(store: LMDBSaver) -> None:
    fresh = look(store)
    first, second = files()
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)

    assert fresh == look(store)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_may_use_is_not_read(
    store: LMDBSaver, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(store)
    for path in files():
        path.chmod(mode)
    with counted_records(monkeypatch) as decoded:
        look(store)

    assert len(decoded) > CALLS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_read(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(store)
    for path in files():
        os.chown(path, 12_345, -1)
    with counted_records(monkeypatch) as decoded:
        look(store)

    assert len(decoded) > CALLS


def test_a_link_is_not_followed(
    store: LMDBSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(store)
    for path in files():
        target = tmp_path / path.name
        path.rename(target)
        path.symlink_to(target)
    with counted_records(monkeypatch) as decoded:
        look(store)

    assert len(decoded) > CALLS


def test_the_files_of_another_store_are_not_read(
    store: LMDBSaver, tmp_path: Path
) -> None:
    """Even if that store was at the same path."""
    look(store)
    with LMDBSaver(tmp_path / "other") as other:
        run_to_an_error(other, calls=5)
    aside = store.path + ".aside"
    store.close()
    os.rename(store.path, aside)
    os.rename(tmp_path / "other", store.path)
    with LMDBSaver(store.path) as other:
        assert look(other, is_cached=False) == look(other)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_files_of_two_snapshots_do_not_mix(store: LMDBSaver) -> None:
    """Another server may replace one of them between two reads."""
    look(store)
    old = {path: path.read_bytes() for path in files()}
    run_to_an_error(store, calls=CALLS + 5)
    fresh = look(store)
    for path, data in old.items():
        new = path.read_bytes()
        path.write_bytes(data)

        assert fresh == look(store)
        path.write_bytes(new)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_files_of_two_snapshots_with_equal_marks_do_not_mix(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the id of the snapshot differs, if two servers began in the same moment."""
    clock = SimpleNamespace(time_ns=lambda: 10**18)
    monkeypatch.setattr(run_cursor, "time", clock)
    first = look(store)
    old = {path: path.read_bytes() for path in files()}
    for path in old:
        path.unlink()
    row = next(row for row in first.rows if row.text == "invert(3)")
    store.redo(Address("1", "", row.checkpoint_id), [row.id])
    run_to_an_error(store)
    fresh = look(store)
    for path, data in old.items():
        new = path.read_bytes()
        path.write_bytes(data)

        assert fresh == look(store)
        path.write_bytes(new)


def test_the_files_of_an_encrypted_store_are_encrypted(tmp_path: Path) -> None:
    options = StoreOptions(encryption_key=b"k" * 32)
    contents: list[bytes] = []
    for name in ("plain", "encrypted"):
        chosen = options if name == "encrypted" else StoreOptions()
        with LMDBSaver(tmp_path / name, options=chosen) as saver:
            run_to_an_error(saver)
            before = {*files()}
            fresh = look(saver)
            contents.append(b"".join(p.read_bytes() for p in {*files()} - before))
            assert fresh == look(saver)

    assert b"invert(3)" in contents[0]
    assert b"invert(3)" not in contents[1]
    assert contents[1]


def test_a_cache_directory_that_cannot_be_written_is_no_error(
    store: LMDBSaver, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")

    assert look(store, is_cached=False) == look(store)
