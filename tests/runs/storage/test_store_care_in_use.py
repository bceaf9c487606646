"""Compacting, changing keys and restoring while others read and write, here and
elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreBusyError, StoreError
from flowpregel.storage.locks import FileLock
from tests.runs.stores import KEEP_OPEN, commit, finish, newest, start, until

pytestmark = pytest.mark.slow

OTHER = StoreOptions(encryption_key=bytes(32))
READERS = 3


class Load:
    """OS threads that write and read one store; each acknowledged commit is seen by
    later reads.

    Args:
        saver: The store.
    """

    def __init__(self, saver: LMDBSaver) -> None:
        self.saver = saver
        self.acknowledged = -1
        self.reads = 0
        self.wrong: list[str] = []
        self.ended: list[StoreError] = []
        self._stop = threading.Event()

    def _write(self) -> None:
        while not self._stop.is_set():
            commit(self.saver, self.acknowledged + 1)
            self.acknowledged += 1

    def _read(self) -> None:
        while not self._stop.is_set():
            least = self.acknowledged
            found = self.saver.load(Address("t"))
            if least >= 0 and (found is None or found.checkpoint.step < least):
                self.wrong.append(f"{found and found.checkpoint.step} after {least}")
            self.reads += 1

    def went_on(self, acknowledged: int, reads: int) -> bool:
        """Return whether there were more commits and more reads than these."""
        return self.acknowledged > acknowledged and self.reads > reads

    def _until_closed(self, work) -> None:
        try:
            work()
        except StoreError as error:
            self.ended.append(error)

    @contextmanager
    def going_on(self) -> Iterator[Load]:
        """Write and read meanwhile."""
        threads = [
            threading.Thread(target=self._until_closed, args=(work,))
            for work in (self._write, *[self._read] * READERS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "it waits for ever"


def test_compacting_beside_readers_and_writers_of_the_same_process(path: Path) -> None:
    """They go on, and see every commit that was acknowledged."""
    with LMDBSaver(path) as saver, LMDBSaver(path) as other:
        with Load(saver).going_on() as load:
            until(lambda: load.acknowledged > 3)
            for _ in range(20):
                before = load.acknowledged, load.reads
                other.compact()
                until(partial(load.went_on, *before))
        assert not load.wrong
        assert not load.ended
        assert saver.verify().ok
    assert newest(path) == load.acknowledged


@pytest.mark.parametrize("readonly", [False, True])
def test_compacting_is_refused_while_another_process_reads(
    path: Path, readonly: bool
) -> None:
    """One that only reads would go on in a file that is gone."""
    code = f"""
        saver = LMDBSaver(path, readonly={readonly})
        print(saver.thread("t").step, flush=True)
        sys.stdin.readline()
        print(saver.thread("t").step, flush=True)
    """
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        other = start(code, path, stdin=-1)
        assert other.stdout.readline() == "0\n"
        with pytest.raises(StoreBusyError, match="has it open"):
            saver.compact()
        commit(saver, 1)
        other.stdin.write("\n")
        other.stdin.flush()
        assert finish(other) == "1\n"
        saver.compact()
    assert newest(path) == 1


def test_two_processes_that_compact_and_write_lose_nothing(path: Path) -> None:
    """Each compacts whenever the other has the store closed."""
    code = """
        from flowpregel.errors import StoreBusyError
        compacted = 0
        for number in range(60):
            with LMDBSaver(path) as saver:
                commit(saver, number, thread=sys.argv[2])
                try:
                    saver.compact()
                    compacted += 1
                except StoreBusyError:
                    pass
                assert saver.thread(sys.argv[2]).step == number
        print(compacted)
    """
    processes = [start(code, path, thread) for thread in ("a", "b")]
    assert sum(int(finish(process)) for process in processes)
    assert newest(path, "a") == newest(path, "b") == 59
    with LMDBSaver(path) as saver:
        assert saver.verify().ok


def test_keys_are_changed_beside_readers_and_writers_of_the_same_saver(
    path: Path,
) -> None:
    """It is closed by that, and they are told so; what was acknowledged is in the new
    file.
    """
    saver = LMDBSaver(path)
    with Load(saver).going_on() as load:
        until(lambda: load.acknowledged > 3)
        saver.change_keys(encryption_key=OTHER.encryption_key)

    assert not load.wrong
    assert len(load.ended) == 1 + READERS
    with LMDBSaver(path, options=OTHER) as saver:
        assert saver.load(Address("t")).checkpoint.step == load.acknowledged
        assert saver.verify().ok


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    """Let OS threads of Python take turns after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_a_lock_that_is_closed_at_any_instant_is_found_closed(tmp_path: Path) -> None:
    """Who uses it is told so, and never meets the file that has got its descriptor
    since.
    """
    for _ in range(300):
        lock, taken = FileLock(str(tmp_path / "lock")), threading.Event()

        def use(lock: FileLock = lock, taken: threading.Event = taken) -> None:
            while lock.acquire(60):
                taken.set()
                lock.release()

        with ThreadPoolExecutor(1) as user:
            used = user.submit(use)
            assert taken.wait(60)
            lock.close()
            with pytest.raises(StoreError, match="is closed; open the store again"):
                used.result(60)


def test_a_backup_is_not_put_over_a_store(path: Path, tmp_path: Path) -> None:
    """In use or not: what is there stays."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
    with LMDBSaver(tmp_path / "first") as first:
        commit(first, 5)
        with pytest.raises(StoreError, match="already"):
            first.backup(path)
        other = start(KEEP_OPEN, path, stdin=-1)
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="already"):
            first.backup(path)
        other.communicate("go on\n", timeout=60)

    assert newest(path) == 1


def restore(backup: Path, path: Path) -> None:
    """Put the file of a backup in the place of a store's, as one does by hand."""
    shutil.copy(backup / "data.mdb", path / "restored")
    os.replace(path / "restored", path / "data.mdb")


@pytest.mark.parametrize("source", ["backup", "another store"])
def test_a_file_put_over_that_of_a_store_in_use_is_not_mixed_with_it(
    path: Path, tmp_path: Path, source: str
) -> None:
    """Who has the old file open commits nothing more; nobody opens the new one
    meanwhile.
    """
    with LMDBSaver(tmp_path / "another store") as another:
        commit(another, 0)
    with LMDBSaver(path) as saver:
        for number in range(3):
            commit(saver, number)
            if not number:
                saver.backup(tmp_path / "backup")
    other = start(
        """
        saver = LMDBSaver(path)
        print("open", flush=True)
        sys.stdin.readline()
        try:
            commit(saver, 3)
        except StoreError as error:
            print(error)
        """,
        path,
        stdin=-1,
    )
    assert other.stdout.readline() == "open\n"
    restore(tmp_path / source, path)

    for readonly in (False, True):
        with pytest.raises(StoreBusyError, match="the replaced file"):
            LMDBSaver(path, readonly=readonly, options=StoreOptions(lock_timeout=0.2))
    other.stdin.write("\n")
    other.stdin.flush()
    assert "another file has replaced it" in finish(other)

    assert newest(path) == 0
    with LMDBSaver(path) as saver:
        commit(saver, 1)
        assert saver.verify().ok


def test_a_backup_restored_over_a_store_that_nobody_has_open_is_it(
    path: Path, tmp_path: Path
) -> None:
    """Also when several open it at once."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        saver.backup(tmp_path / "backup")
        commit(saver, 1)
    code = """
        with LMDBSaver(path, readonly=sys.argv[2] == "r") as saver:
            print(saver.thread("t").step)
    """
    for _ in range(3):
        restore(tmp_path / "backup", path)
        processes = [start(code, path, kind) for kind in "rwrw"]
        assert [finish(process) for process in processes] == ["0\n"] * 4
