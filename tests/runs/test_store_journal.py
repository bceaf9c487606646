"""The journal before LMDB's file: what is in it alone is seen by all, kept, and never half."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel._lmdb import journal
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import StoreCorruptError, StoreError
from tests.runs.stores import commit, newest, start

FOLLOWER = """
saver = LMDBSaver(path, readonly=len(sys.argv) > 2)
print("open", flush=True)
for line in sys.stdin:
    what, number = line.split()
    if what == "commit":
        commit(saver, int(number), thread="other")
        print("committed", flush=True)
    else:
        found = saver.load(Address("t"))
        print(found.checkpoint.step, flush=True)
"""
KILLED = """
saver = LMDBSaver(path)
for number in range(int(sys.argv[2])):
    commit(saver, number)
os.kill(os.getpid(), 9)
"""


def told(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def asked(process: subprocess.Popen[str], what: str) -> str:
    """Return what a follower answers."""
    assert process.stdin is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    return told(process)


def killed(path: Path, steps: int) -> None:
    """Let a process commit *steps* supersteps and be killed."""
    process = start(KILLED, path, str(steps))
    process.communicate(timeout=60)
    assert -signal.SIGKILL == process.returncode


def step_of(saver: LMDBSaver, thread: str = "t") -> int | None:
    """Return the newest superstep that *saver* sees."""
    found = saver.load(Address(thread))
    return None if found is None else found.checkpoint.step


def has_records(path: Path) -> bool:
    """Return whether something was put into the journal since it was cleared."""
    return any((path / "journal").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("readonly", [False, True], ids=["writing", "only reading"])
def test_other_processes_see_each_commit_at_once(path: Path, readonly: bool) -> None:
    """What is in the journal alone, and what has gone on into LMDB's file."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        follower = start(FOLLOWER, path, *["readonly"] * readonly, stdin=-1)
        assert told(follower) == "open"
        for number in range(1, 150):
            commit(saver, number)
            if number % 7 == 0 or number in (63, 64, 65, 66, 128, 129):
                assert str(number) == asked(follower, "read -")
        follower.communicate(timeout=60)


@pytest.mark.slow
def test_processes_that_take_turns_lose_nothing_of_each_other(path: Path) -> None:
    """Each puts its records after those of the other."""
    with LMDBSaver(path) as saver:
        follower = start(FOLLOWER, path, stdin=-1)
        assert told(follower) == "open"
        for number in range(100):
            commit(saver, number)
            assert asked(follower, f"commit {number}") == "committed"
            assert asked(follower, "read -") == str(number)
            assert number == step_of(saver, "other")
        follower.communicate(timeout=60)
        assert saver.verify().ok
    with LMDBSaver(path) as saver:
        for thread in ("t", "other"):
            assert [*range(99, -1, -1)] == [
                s.checkpoint.step for s in saver.history(Address(thread))
            ]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 5, 64, 65, 70])
@pytest.mark.parametrize("readonly", [False, True], ids=["writing", "only reading"])
def test_what_a_killed_process_left_in_the_journal_is_there(
    path: Path, steps: int, readonly: bool
) -> None:
    """For whoever opens the store first, if only to read it."""
    killed(path, steps)

    with LMDBSaver(path, readonly=readonly) as saver:
        assert steps - 1 == step_of(saver)
        assert saver.verify().ok
    assert steps - 1 == newest(path)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_read_with_its_journal(path: Path) -> None:
    """As on a disk that is mounted to be read only: there is no lock, and nobody writes."""
    killed(path, 5)
    for name in ("write.lock", "open.lock", "lock.mdb"):
        (path / name).unlink(missing_ok=True)

    with LMDBSaver(path, readonly=True, lock=False) as saver:
        assert 4 == step_of(saver)
    assert not (path / "write.lock").exists()


def test_the_file_alone_has_everything_once_a_store_is_closed(path: Path, tmp_path: Path) -> None:
    """So that it can be moved by itself."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        commit(saver, 1)
    assert has_records(path)
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(path / "data.mdb", moved)

    assert 1 == newest(moved)


@pytest.mark.slow
@pytest.mark.parametrize("readonly", [False, True], ids=["writing", "only reading"])
def test_a_backup_has_what_is_in_the_journal(path: Path, tmp_path: Path, readonly: bool) -> None:
    """Whoever makes it."""
    killed(path, 3)
    with LMDBSaver(path, readonly=readonly) as saver:
        saver.backup(tmp_path / "copy")

    with LMDBSaver(tmp_path / "copy") as copy:
        assert 2 == step_of(copy)
        assert copy.verify().ok


@pytest.mark.slow
def test_a_compacted_store_does_not_take_old_records_for_new_ones(path: Path) -> None:
    """LMDB counts its transactions anew after that, so their numbers come again."""
    with LMDBSaver(path) as saver:
        for number in range(20):
            commit(saver, number)
            saver.compact()
            assert not has_records(path)
        assert 19 == step_of(saver)
    assert 19 == newest(path)


@pytest.mark.slow
def test_records_on_a_file_that_was_put_back_are_dropped(path: Path, tmp_path: Path) -> None:
    """An older copy of the file in its place: what was recorded on a newer one is not for it."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
    shutil.copy(path / "data.mdb", tmp_path / "old")
    with LMDBSaver(path) as saver:
        for number in range(1, 200):
            commit(saver, number)
    shutil.copy(tmp_path / "old", path / "data.mdb")

    with LMDBSaver(path) as saver:
        assert 0 == step_of(saver)
        for number in range(1, 200):
            commit(saver, number)
            assert number == step_of(saver)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 20, 40, 300])
def test_a_damaged_record_is_refused_and_not_passed_over(path: Path, at: int) -> None:
    """Unless it is the last: that one may have been on its way when the power was cut."""
    killed(path, 3)
    content = bytearray((path / "journal").read_bytes())
    content[at] ^= 1
    (path / "journal").write_bytes(content)

    with pytest.raises(StoreCorruptError, match=r"record 1 of the journal is damaged"):
        LMDBSaver(path)

    (path / "journal").unlink()
    with LMDBSaver(path) as saver:
        assert saver.verify().ok


@pytest.mark.slow
def test_a_record_that_was_cut_off_does_not_count(path: Path) -> None:
    """The state before it does, and the next commit takes its place."""
    killed(path, 3)
    content = (path / "journal").read_bytes()
    end = len(content.rstrip(b"\0"))
    (path / "journal").write_bytes(content[: end - 20].ljust(journal.SIZE, b"\0"))

    with LMDBSaver(path) as saver:
        assert 1 == step_of(saver)
        commit(saver, 2)
    assert 2 == newest(path)


def test_a_flush_that_fails_takes_its_record_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that nothing is kept, and so it is, at once and later."""
    flush = journal._flush  # noqa: SLF001
    calls = 0

    def failing(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(5, "Input/output error")
        flush(file)

    with LMDBSaver(path) as saver:
        commit(saver, 0)
        monkeypatch.setattr(journal, "_flush", failing)

        with pytest.raises(StoreError, match="nothing of this commit was kept"):
            commit(saver, 1)

        assert 0 == step_of(saver)
        commit(saver, 1, {"n": "again"})
    with LMDBSaver(path) as saver:
        found = saver.load(Address("t"))
        assert found is not None
        assert {"n": "again"} == dict(found.checkpoint.values)


def test_a_flush_that_cannot_be_undone_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows then what is on the disk."""

    def failing(file: int) -> None:
        raise OSError(5, "Input/output error")

    with LMDBSaver(path) as saver:
        commit(saver, 0)
        with monkeypatch.context() as broken:
            broken.setattr(journal, "_flush", failing)
            with pytest.raises(StoreError, match="whether this commit was kept is not known"):
                commit(saver, 1)

        assert 0 == step_of(saver)
        commit(saver, 1)
    assert 1 == newest(path)


def test_without_a_journal_commits_go_into_the_file(path: Path) -> None:
    """Where none can be made, on a full disk for example."""
    with LMDBSaver(path) as saver:
        (path / "journal.new").mkdir()
        for number in range(3):
            commit(saver, number)
        assert not (path / "journal").exists()
        assert 2 == step_of(saver)
    assert 2 == newest(path)


def test_a_large_commit_goes_into_the_file_with_all_before_it(path: Path) -> None:
    """In their order, in one transaction."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        commit(saver, 1)
        commit(saver, 2, {"n": os.urandom(200_000)})
        commit(saver, 3)
        assert 3 == step_of(saver)
        assert [3, 2, 1, 0] == [s.checkpoint.step for s in saver.history(Address("t"))]
    assert 3 == newest(path)


def test_a_store_that_is_only_read_makes_no_journal(path: Path) -> None:
    """Nor does one that is only opened."""
    LMDBSaver(path).close()
    with LMDBSaver(path, readonly=True) as saver:
        assert saver.load(Address("t")) is None

    assert not (path / "journal").exists()
