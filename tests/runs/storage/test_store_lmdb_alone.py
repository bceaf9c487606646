"""LMDB alone keeps the data: what one process was told, every other reads and copies.

Real second processes, killed with SIGKILL; other programs touch the store with LMDB
itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.storage.lmdb import files
from tests.runs.stores import commit, newest, start

pytestmark = pytest.mark.slow

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
WRITER = """
saver = LMDBSaver(path)
for number in range(int(sys.argv[2]), 1_000_000):
    commit(saver, number)
    print(number, flush=True)
"""
FOREIGN = """
import lmdb, sys
with lmdb.open(sys.argv[1], max_dbs=16, lib_version=0) as env:
    with env.begin(write=True, db=env.open_db(b"another program's")) as transaction:
        transaction.put(b"key", b"value")
"""
COPY = """
import lmdb, os, sys
os.mkdir(sys.argv[2])
with lmdb.open(sys.argv[1], max_dbs=16, lib_version=0, readonly=True) as env:
    env.copy(sys.argv[2])
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


def killed(path: Path, first: int, lines: int) -> int:
    """Let a process commit and be killed on its way; return what it acknowledged
    last.
    """
    process = start(WRITER, path, first)
    for _ in range(lines):
        told(process)
    process.kill()
    assert process.stdout is not None
    with process.stdout as out:
        rest = out.read()  # `communicate` would miss the lines that `told` read ahead
    assert -signal.SIGKILL == process.wait(timeout=60)
    return int(
        (rest.rpartition("\n")[0].split("\n")[-1:] or [""])[0] or first + lines - 1
    )


def plainly(code: str, *arguments: Path) -> None:
    """Run a program that has never heard of flowpregel."""
    subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, timeout=60
    )


def holds(path: Path, acknowledged: int) -> None:
    """See that a store has every superstep up to the last that was acknowledged, or one
    more.
    """
    with LMDBSaver(path) as saver:
        assert saver.verify().ok
        steps = [saved.checkpoint.step for saved in saver.history(Address("t"))]
    assert steps[0] in (acknowledged, acknowledged + 1)
    assert steps == [*range(steps[0], -1, -1)]


@pytest.mark.parametrize("readonly", [False, True], ids=["writing", "only reading"])
def test_no_process_reads_an_older_state_than_was_acknowledged(
    path: Path, readonly: bool
) -> None:
    """It is asked after each commit, and has had the store open all the time."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        follower = start(FOLLOWER, path, *["readonly"] * readonly, stdin=-1)
        assert told(follower) == "open"
        for number in range(1, 150):
            commit(saver, number)
            assert str(number) == asked(follower, "read -")
        follower.communicate(timeout=60)


def test_nor_does_it_while_the_writer_goes_on(path: Path) -> None:
    """What it reads was acknowledged before it began to read, or comes after that."""
    writer = start(WRITER, path, 0)
    acknowledged = int(told(writer))
    with LMDBSaver(path) as saver:
        for _ in range(300):
            found = saver.load(Address("t"))
            assert found is not None
            assert found.checkpoint.step >= acknowledged
            acknowledged = max(int(told(writer)), found.checkpoint.step)
    writer.kill()
    writer.communicate(timeout=60)


def test_processes_that_take_turns_lose_nothing_of_each_other(path: Path) -> None:
    """Each sees what the other has just committed."""
    with LMDBSaver(path) as saver:
        follower = start(FOLLOWER, path, stdin=-1)
        assert told(follower) == "open"
        for number in range(100):
            commit(saver, number)
            assert asked(follower, f"commit {number}") == "committed"
            assert asked(follower, "read -") == str(number)
            found = saver.load(Address("other"))
            assert found is not None
            assert number == found.checkpoint.step
        follower.communicate(timeout=60)
        assert saver.verify().ok
        for thread in ("t", "other"):
            steps = [saved.checkpoint.step for saved in saver.history(Address(thread))]
            assert [*range(99, -1, -1)] == steps


def test_a_write_of_another_lmdb_program_voids_nothing(path: Path) -> None:
    """Between two processes that are killed, and while this one has the store open."""
    acknowledged = killed(path, 0, 5)
    plainly(FOREIGN, path)
    holds(path, acknowledged)
    acknowledged = killed(path, (newest(path) or 0) + 1, 5)
    with LMDBSaver(path) as saver:
        plainly(FOREIGN, path)
        found = saver.load(Address("t"))
        assert found is not None
        assert found.checkpoint.step >= acknowledged
        commit(saver, found.checkpoint.step + 1)
        acknowledged = found.checkpoint.step + 1
    holds(path, acknowledged)


@pytest.mark.parametrize("lines", [1, 5, 64, 70])
def test_what_lmdb_copies_of_a_store_after_a_kill_is_whole(
    path: Path, tmp_path: Path, lines: int
) -> None:
    """As ``mdb_copy`` does; the file copied by itself has everything too."""
    acknowledged = killed(path, 0, lines)
    plainly(COPY, path, tmp_path / "copy")
    (tmp_path / "file").mkdir()
    shutil.copy(path / "data.mdb", tmp_path / "file")

    for copy in (tmp_path / "copy", tmp_path / "file", path):
        holds(copy, acknowledged)


def test_a_copy_of_a_store_in_use_is_a_state_that_was_committed(
    path: Path, tmp_path: Path
) -> None:
    """It has all that had been acknowledged when it began."""
    writer = start(WRITER, path, 0)
    for number in range(3):
        acknowledged = int(told(writer))
        plainly(COPY, path, tmp_path / f"{number}")
        with LMDBSaver(tmp_path / f"{number}") as saver:
            steps = [saved.checkpoint.step for saved in saver.history(Address("t"))]
            assert saver.verify().ok
        assert steps[0] >= acknowledged
        assert steps == [*range(steps[0], -1, -1)]
    writer.kill()
    writer.communicate(timeout=60)


def test_nothing_beside_the_file_counts(path: Path) -> None:
    """Whatever else lies in the folder can be removed while the store is closed."""
    acknowledged = killed(path, 0, 5)
    for name in os.listdir(path):
        if name != "data.mdb":
            place = path / name
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    holds(path, acknowledged)


def test_values_that_are_a_stores_own_bytes_are_values(path: Path) -> None:
    """Its header, its pages and its records, as a user's bytes and texts; after a kill
    too.
    """
    acknowledged = killed(path, 0, 5)
    raw = (path / "data.mdb").read_bytes()
    with lmdb.open(str(path), max_dbs=16, readonly=True, lib_version=0) as env:
        tables = [env.open_db(name, create=False) for name in files.TABLE_NAMES]
        with env.begin() as transaction:
            records = [
                part
                for each in tables
                for pair in transaction.cursor(each)
                for part in pair
            ]
    hostile = [*records, raw[:8192], raw, raw[-4096:]]
    values = {f"v{number}": each for number, each in enumerate(hostile)}
    values |= {
        f"t{number}": each.decode("latin-1") for number, each in enumerate(hostile)
    }
    with LMDBSaver(path) as saver:
        newest = saver.load(Address("t"))
        assert newest is not None
        assert newest.checkpoint.step >= acknowledged
        commit(saver, newest.checkpoint.step + 1, values)

    acknowledged = killed(path, newest.checkpoint.step + 2, 5)

    with LMDBSaver(path) as saver:
        steps = {saved.checkpoint.step: saved for saved in saver.history(Address("t"))}
        assert steps[newest.checkpoint.step + 1].checkpoint.values == values
        assert saver.verify().ok
    holds(path, acknowledged)


def test_every_store_has_an_id_of_its_own_which_a_backup_keeps(
    path: Path, tmp_path: Path
) -> None:
    """Two that were made alike are two."""
    LMDBSaver(tmp_path / "other").close()
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        saver.backup(tmp_path / "backup")
        saver.compact()

    headers = []
    for place in (path, tmp_path / "backup", tmp_path / "other"):
        with lmdb.open(str(place), max_dbs=16, readonly=True, lib_version=0) as env:
            meta = env.open_db(b"meta", create=False)
            with env.begin(db=meta) as transaction:
                headers.append(transaction.get(b"header"))
    assert headers[0] == headers[1] != headers[2]
