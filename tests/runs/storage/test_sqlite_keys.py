"""The keys of a SQLite store changed in its file: kills, readers, and refused files."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import StoreOptions
from flowpregel.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
)
from flowpregel.plugins.sqlite import SQLiteSaver, connections, keys
from tests.runs.contents import everything, fill
from tests.runs.stores import commit, finish, newest, start

pytest.importorskip("cryptography")

PLAIN = StoreOptions()
ENCRYPTED = StoreOptions(encryption_key=b"1" * 32)
SECRET = b"long long"
"""A part of a thread's name, which is readable in the file of a plain store."""
CHANGE = """
SQLiteSaver(path).change_keys(encryption_key=b"1" * 32)
print("changed")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a store with a record of every kind."""
    path = tmp_path / "runs.db"
    fill(path)
    return path


def change(path: Path) -> None:
    """Encrypt the store at *path*."""
    SQLiteSaver(path).change_keys(encryption_key=ENCRYPTED.encryption_key)


def changing(path: Path, fault: str) -> subprocess.Popen[str]:
    """Start a process that encrypts the store at *path*, with a fault on the way."""
    code = "from flowpregel.plugins.sqlite import SQLiteSaver" + CHANGE
    process: subprocess.Popen[str] = start(code, path, fault=fault)
    return process


def schema(path: Path) -> list[tuple[str, str]]:
    """Return the statements that made the tables of a database."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT name, sql FROM sqlite_schema ORDER BY name"
        ).fetchall()


def execute(path: Path, statement: str) -> None:
    """Execute a statement as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement).fetchall()


# ---------------------------------------------------------------- kills and readers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "options"), [("before", PLAIN), ("after", ENCRYPTED)]
)
def test_a_kill_leaves_the_old_store_or_the_new_one(
    path: Path, point: str, options: StoreOptions
) -> None:
    """Before the commit and after it, when the old pages are still in the file."""
    right = repr(everything(path))
    process = changing(path, f"store.keys.{point}:1:kill")
    assert "" == process.communicate(timeout=60)[0]
    assert -signal.SIGKILL == process.returncode
    assert SECRET in path.read_bytes()

    assert right == repr(everything(path, options))

    # The store was opened and closed, so the log has been copied into the file.
    assert (SECRET in path.read_bytes()) == (options is PLAIN)
    assert not Path(f"{path}-wal").exists()


@pytest.mark.slow
def test_the_draft_of_a_killed_change_is_removed_by_the_next(path: Path) -> None:
    changing(path, "store.keys.before:1:kill").communicate(timeout=60)
    assert [] != [*path.parent.glob(".runs.db.keys.*")]

    change(path)

    assert {"runs.db", "runs.db-locks"} == {*os.listdir(path.parent)}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("readonly", [False, True])
def test_no_reader_sees_a_store_whose_keys_are_being_changed(
    path: Path, point: str, readonly: bool
) -> None:
    """It waits, until the change is complete; then the old keys are refused."""
    process = changing(path, f"store.keys.{point}:1:stop")
    os.waitpid(process.pid, os.WUNTRACED)
    brief = StoreOptions(lock_timeout=0.01)

    with pytest.raises(StoreBusyError):
        SQLiteSaver(path, readonly=readonly, options=brief)

    process.send_signal(signal.SIGCONT)
    assert "changed\n" == finish(process)
    with pytest.raises(StoreForeignError, match="encrypt"):
        SQLiteSaver(path)
    assert everything(path, ENCRYPTED)


@pytest.mark.parametrize("readonly", [False, True])
def test_an_idle_opening_keeps_the_keys(path: Path, readonly: bool) -> None:
    """It reads and writes under the keys that it has in memory."""
    with SQLiteSaver(path, readonly=readonly) as saver:
        with pytest.raises(StoreBusyError, match="has it open"):
            change(path)
        assert saver.verify().ok
    change(path)


def test_another_program_that_has_the_file_open_keeps_the_keys(path: Path) -> None:
    """Its transaction would be on pages that are replaced."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        before = connection.execute("SELECT * FROM checkpoints").fetchall()
        with pytest.raises(StoreBusyError, match="has it open"):
            change(path)
        assert before == connection.execute("SELECT * FROM checkpoints").fetchall()
    assert everything(path)


def test_a_writer_that_is_stopped_is_named_by_the_change(path: Path) -> None:
    code = """
        import signal
        saver = saver_at(path)
        with saver._store._commits.exclusively(1):
            print("locked", flush=True)
            sys.stdin.readline()
    """
    process = start(code, path, stdin=-1)
    assert "locked\n" == process.stdout.readline()

    with pytest.raises(StoreBusyError, match=f"process {process.pid} on"):
        change(path)

    process.communicate("go on\n", timeout=60)


# ---------------------------------------------------------------- the file


def test_the_file_is_the_same_with_other_pages(path: Path) -> None:
    """It keeps its inode, mode, tables and application id."""
    before = path.stat()
    tables = schema(path)

    change(path)

    after = path.stat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert tables == schema(path)
    assert b"flow" == path.read_bytes()[68:72]


def test_the_size_of_the_pages_is_kept(path: Path) -> None:
    """SQLite cannot change it in a database whose log is on."""
    execute(path, "PRAGMA journal_mode = DELETE")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("VACUUM")
    right = repr(everything(path))

    change(path)

    assert right == repr(everything(path, ENCRYPTED))
    assert 8192 == int.from_bytes(path.read_bytes()[16:18], "big")


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE notes (text)", "CREATE VIEW notes AS SELECT key FROM meta"],
)
def test_a_database_with_other_tables_keeps_its_keys(
    path: Path, statement: str
) -> None:
    """The draft would not have them, so they would be lost."""
    execute(path, statement)

    with pytest.raises(StoreError, match="also has notes"):
        change(path)

    assert everything(path)
    execute(path, f"DROP {statement.split()[1]} notes")
    change(path)
    assert everything(path, ENCRYPTED)


def test_a_database_with_a_damaged_page_keeps_its_keys(path: Path) -> None:
    """The records that such a page hides would be lost for good."""
    data = bytearray(path.read_bytes())
    counts = [
        page + 3
        for page in range(0, len(data), 4096)
        if data[page] == 0x0A and data[page + 4] > 1
    ]
    # The number of records in a leaf of an index, which all tables of a store are.
    data[counts[0] + 1] -= 1
    path.write_bytes(data)
    before = path.read_bytes()

    with pytest.raises(StoreCorruptError, match="damaged"):
        change(path)

    assert before == path.read_bytes()


def test_an_error_of_a_copy_between_databases_has_its_code(tmp_path: Path) -> None:
    """This shows which kind of error it is, in every version of `sqlite3`."""
    with (
        closing(sqlite3.connect(tmp_path / "source", isolation_level=None)) as source,
        closing(sqlite3.connect(tmp_path / "target", isolation_level=None)) as target,
    ):
        for name in ("a", "b", "c"):
            source.execute(f"CREATE TABLE {name} (number)")
        target.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as raised:
            source.backup(target)

    assert sqlite3.SQLITE_FULL == connections.result_code(raised.value)


def test_keys_that_another_process_has_just_changed_are_checked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is closed for a moment before its keys are changed."""
    saver = SQLiteSaver(path)
    store = saver._store  # noqa: SLF001 - another process changes the keys in between
    close = store.close

    def close_and_let_another_change_it() -> None:
        close()
        SQLiteSaver(path).change_keys(encryption_key=None, key=b"another")

    monkeypatch.setattr(store, "close", close_and_let_another_change_it)

    with pytest.raises(StoreForeignError, match="another key"):
        saver.change_keys(encryption_key=ENCRYPTED.encryption_key)

    assert everything(path, StoreOptions(trust=b"another"))


# ---------------------------------------------------------------- the key of the seals


def own_keys(path: Path) -> list[bytes]:
    """Return the keys that the file of a store holds itself."""
    return re.findall(rb'"own_key": "(\w{64})"', path.read_bytes())


def test_the_own_key_of_a_store_is_gone_once_the_user_gives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY")
    path = tmp_path / "runs.db"
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
    assert 1 == len(own_keys(path))

    SQLiteSaver(path).change_keys(encryption_key=None, key=b"the user's")

    assert [] == own_keys(path)
    with pytest.raises(StoreForeignError, match="another key"):
        SQLiteSaver(path)
    with SQLiteSaver(path, options=StoreOptions(trust=b"the user's")) as saver:
        assert saver.verify().ok


def test_a_store_whose_key_is_lost_gets_its_own_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is trusted. Read only, it is refused."""
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY")
    trusting = StoreOptions(trust=True)
    with pytest.raises(StoreError, match="read only"):
        SQLiteSaver(path, readonly=True, options=trusting)
    assert [] == own_keys(path)

    SQLiteSaver(path, options=trusting).close()

    assert 1 == len(own_keys(path))
    assert 3 == newest(path)


def test_a_store_that_another_process_has_taken_over_is_not_written_again(
    path: Path,
) -> None:
    """Its records are sealed under our key, so damage to them must not be sealed."""
    before = path.read_bytes()

    keys.seal_as_ours(str(path), StoreOptions(trust=True))

    assert before == path.read_bytes()


def test_all_records_of_a_store_that_is_taken_over_are_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saver that took it over can be used at once."""
    right = repr(everything(path))
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY")

    with SQLiteSaver(path, options=StoreOptions(trust=True)) as saver:
        commit(saver, 0, thread="u")
        assert saver.verify().ok
        saver.delete_thread("u")

    assert right == repr(everything(path))
