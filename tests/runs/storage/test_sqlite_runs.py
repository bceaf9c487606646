"""Runs, commands and care on a SQLite database, and the databases that are refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address
from flowpregel.checkpoint.durable import Retention
from flowpregel.cli.app import app
from flowpregel.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreReadOnlyError,
    StoreVersionError,
    ThreadBusyError,
)
from flowpregel.func import entrypoint, task
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.plugins.sqlite.database import SQLiteDatabase
from flowpregel.plugins.sqlite.tables import SQLiteTable
from flowpregel.storage import Seal, StoreOptions
from tests.runs.stores import commit

ROOT = Path(__file__).parents[3]
CALLS: list[int] = []
BROKEN = [False]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a database that is not there."""
    return tmp_path / "runs.db"


@task
def double(n: int) -> int:
    """Return *n* twice, or fail."""
    CALLS.append(n)
    if BROKEN[0] and n == 2:
        raise ValueError("broken")
    return 2 * n


def flow_on(location: str) -> Any:
    """Return a workflow on the store at *location*."""

    @entrypoint(checkpointer=location, executor="inline")
    def flow(numbers: list[int]) -> list[int]:
        return [double(n).result() for n in numbers]

    return flow


def newest(saver: SQLiteSaver) -> int:
    """Return the newest superstep of the thread that `commit` writes."""
    saved = saver.load(Address("t"))
    assert saved is not None
    return saved.checkpoint.step


def python(code: str, path: Path) -> subprocess.Popen[str]:
    """Start a program that uses the database at *path*."""
    head = f"""
        import os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from flowpregel.plugins.sqlite import SQLiteSaver
        from tests.runs.stores import commit
        saver = SQLiteSaver({str(path)!r})
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )


# ---------------------------------------------------------------- runs


def test_a_run_that_failed_repeats_only_what_failed(path: Path) -> None:
    url = f"sqlite:///{path}"
    CALLS.clear()
    BROKEN[0] = True
    with pytest.raises(ValueError, match="broken"):
        flow_on(url).run([1, 2, 3], id="a")
    BROKEN[0] = False

    assert [2, 4, 6] == flow_on(url).run([1, 2, 3], id="a")
    assert [1, 2, 2, 3] == CALLS
    assert 0o600 == path.stat().st_mode & 0o777


def test_three_slashes_are_a_path_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    flow_on("sqlite:///runs.db").run([1], id="a")

    assert (tmp_path / "runs.db").is_file()


@pytest.mark.parametrize(
    "location",
    ["sqlite://runs.db", "sqlite:///", "sqlite:///:memory:", "sqlite:runs.db"],
)
def test_a_url_that_names_no_file_is_refused_with_what_to_write(location: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///runs\.db"):
        flow_on(location).run([1], id="a")


def test_a_killed_run_gives_its_thread_back_at_once(path: Path) -> None:
    code = """
        with saver.lease("t"):
            commit(saver, 0)
            print("held", flush=True)
            signal.pause()
    """
    process = python(code, path)
    assert process.stdout is not None
    assert "held\n" == process.stdout.readline()
    with SQLiteSaver(path) as saver:
        with pytest.raises(ThreadBusyError, match=f"process {process.pid}"):
            saver.lease("t").__enter__()

        process.kill()
        process.communicate()

        with saver.lease("t") as lease:
            assert lease.is_inherited
        assert 0 == newest(saver)


def test_a_writer_that_is_stopped_is_named(path: Path) -> None:
    code = """
        def hang(transaction):
            print("writes", flush=True)
            signal.pause()
        saver._store.write(hang)
    """
    SQLiteSaver(path).close()
    process = python(code, path)
    assert process.stdout is not None
    assert "writes\n" == process.stdout.readline()
    try:
        with (
            SQLiteSaver(path, options=StoreOptions(lock_timeout=0.1)) as saver,
            pytest.raises(StoreBusyError, match=f"process {process.pid}"),
        ):
            commit(saver, 0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_a_forked_child_cannot_use_the_connections_of_its_parent(path: Path) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                saver.load(Address("t"))
            except StoreReadOnlyError:
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        commit(saver, 1)

        assert 0 == os.waitstatus_to_exitcode(status)
        assert 1 == newest(saver)


# ---------------------------------------------------------------- care


def command(*words: str) -> str:
    """Return the output of a command that succeeds."""
    result = CliRunner().invoke(app, [*words])
    assert 0 == result.exit_code, result.output
    return result.output


def test_the_commands_take_the_url_of_a_database(path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{path}"
    copy = f"sqlite:///{tmp_path}/copy.db"
    flow_on(url).run([1], id="a")

    assert "done" in command("ls", "--store", url)
    assert "done" in command("show", "a", "--store", url)
    assert "all is well" in command("verify", "--store", url)
    command("backup", "--store", url, copy)
    assert "done" in command("show", "a", "--store", copy)


def test_a_command_on_a_database_that_is_not_there_makes_none(path: Path) -> None:
    result = CliRunner().invoke(app, ["ls", "--store", f"sqlite:///{path}"])

    assert 0 != result.exit_code
    assert "no store" in result.output
    assert not path.exists()


def test_a_backup_is_a_store_by_itself_and_replaces_no_file(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
        saver.backup(copy)
        commit(saver, 1)

        with SQLiteSaver(copy) as copied:
            assert 0 == newest(copied)
        with pytest.raises(StoreError, match="already"):
            saver.backup(copy)
        assert 1 == newest(saver)


def test_compact_gives_the_room_of_deleted_threads_back(path: Path) -> None:
    with SQLiteSaver(path, retention=Retention(keep_last=1)) as saver:
        for number in range(4):
            commit(saver, number, {"large": os.urandom(1 << 20)}, thread="large")
        commit(saver, 0)
        saver.delete_thread("large")

        saver.compact()

        assert saver.size() < 1 << 20
        assert 0 == newest(saver)
        assert saver.verify().ok


def test_a_database_that_was_deleted_while_it_was_open_begins_again(
    path: Path,
) -> None:
    """Its old user can store nothing more, and the next one finds it empty."""
    with SQLiteSaver(path) as old:
        commit(old, 0)
        for file in path.parent.glob(f"{path.name}*"):
            if file.is_file():
                file.unlink()

        with pytest.raises(StoreError, match="deleted or moved while it was open"):
            commit(old, 1)
        with SQLiteSaver(path) as new:
            assert [] == [*new.threads()]
            commit(new, 2)
            with pytest.raises(StoreError, match="replaced it"):
                commit(old, 3)

    with SQLiteSaver(path) as last:
        assert 2 == newest(last)


def test_compact_says_that_a_reader_holds_the_old_pages(path: Path) -> None:
    """Once the reader has gone, the space is given back."""
    options = StoreOptions(lock_timeout=0.1)
    with SQLiteSaver(path, options=options) as saver:
        commit(saver, 0, {"large": os.urandom(1 << 20)}, thread="large")
        saver.delete_thread("large")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

            with pytest.raises(StoreBusyError, match="reads the database"):
                saver.compact()

        saver.compact()
        assert saver.size() < 1 << 20


def test_a_database_in_a_read_only_folder_is_read(path: Path) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
    path.parent.chmod(0o500)
    try:
        with SQLiteSaver(path, readonly=True) as saver:
            assert 0 == newest(saver)
            with pytest.raises(StoreReadOnlyError):
                commit(saver, 1)
    finally:
        path.parent.chmod(0o700)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become a user without rights"
)
@pytest.mark.parametrize("left", [{"-wal", "-shm"}, {"-wal"}])
def test_no_commit_of_a_killed_process_is_missing_in_a_read_only_folder(
    path: Path, left: set[str]
) -> None:
    """Its newest commits are in SQLite's log alone, which needs an index."""
    program = """
import os, sys
from flowpregel.errors import StoreReadOnlyError
from flowpregel.plugins.sqlite import SQLiteSaver
from tests.runs.storage.test_sqlite_runs import commit, newest
with SQLiteSaver(sys.argv[1] + ".other") as other:  # loads all that is needed
    commit(other, 0)
    newest(other)
os.setuid(12345)
try:
    with SQLiteSaver(sys.argv[1], readonly=True) as saver:
        print("newest", newest(saver))
except StoreReadOnlyError as error:
    print("refused", "-wal" in str(error))
"""
    saver = SQLiteSaver(path)
    commit(saver, 0)
    folder = path.parent / "copy"
    folder.mkdir()
    for suffix in ("", *left):
        copy = folder / (path.name + suffix)
        copy.write_bytes(Path(f"{path}{suffix}").read_bytes())
        os.chown(copy, 12345, 12345)
    saver.close()
    for outer in (folder, *folder.parents):
        if outer.stat().st_mode & 0o005 != 0o005 and len(outer.parts) > 2:
            os.chmod(outer, 0o755)

    run = [sys.executable, "-c", program, str(folder / path.name)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True)

    whole = "-shm" in left
    assert ("newest 0\n" if whole else "refused True\n") == done.stdout


def test_the_counter_changes_with_each_commit_of_another_opening(path: Path) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
        store = SQLiteDatabase(path, readonly=True)
        before = store.change_counter()
        commit(saver, 1)

        assert before != store.change_counter()
        store.close()


def test_the_counter_of_a_database_that_is_gone_is_our_error(path: Path) -> None:
    SQLiteSaver(path).close()
    store = SQLiteDatabase(path, readonly=True)
    path.rename(path.with_suffix(".away"))

    with pytest.raises(StoreError, match="cannot be used"):
        store.change_counter()
    store.close()


# ---------------------------------------------------------------- refusals


def test_a_database_of_another_program_is_refused_and_not_touched(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE birds (name TEXT)")
    connection.close()
    before = path.read_bytes()
    path.chmod(0o600)

    with pytest.raises(StoreVersionError, match="not a flowpregel store"):
        SQLiteSaver(path)

    assert before == path.read_bytes()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"a picture of a bird" * 1_000)
    path.chmod(0o600)

    with pytest.raises(StoreCorruptError):
        SQLiteSaver(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a regular file"):
        SQLiteSaver(tmp_path)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_others_may_write_is_refused(path: Path, suffix: str) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
        Path(f"{path}{suffix}").chmod(0o666)

        with pytest.raises(StoreForeignError, match="written by other users"):
            SQLiteSaver(path)
        with SQLiteSaver(path, options=StoreOptions(trust=True)) as trusted:
            assert 0 == newest(trusted)


def test_a_log_that_another_process_deletes_meanwhile_is_not_missed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite deletes the log when another process closes the database: here, between
    two looks at it.
    """
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
    log = Path(f"{path}-wal")
    log.touch(0o600)
    look_up = os.lstat
    looks = []

    def delete_at_the_second(file: Any, **options: Any) -> os.stat_result:
        if os.fspath(file) == str(log):
            looks.append(file)
            if len(looks) == 2:
                log.unlink()
        return look_up(file, **options)

    monkeypatch.setattr(os, "lstat", delete_at_the_second)
    with SQLiteSaver(path) as saver:
        assert 0 == saver.load(Address("t")).checkpoint.step
    assert len(looks) >= 2


def test_a_store_under_another_key_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "one key")
    SQLiteSaver(path).close()
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another key")

    with pytest.raises(StoreForeignError, match="another key"):
        SQLiteSaver(path)


def damage_record(path: Path) -> None:
    """Change a byte in the record of a checkpoint."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE checkpoints SET record = CAST(record || x'00' AS BLOB)"
        )
    connection.close()


def test_a_header_of_another_type_is_a_damage(path: Path) -> None:
    """It is not taken for the size of something."""
    SQLiteSaver(path).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE meta SET record = {1 << 62}")
    connection.close()

    with pytest.raises(StoreError):
        SQLiteSaver(path)


def move_record(path: Path) -> None:
    """Put the record of a checkpoint at another key."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE checkpoints SET key = CAST(key || x'00' AS BLOB)")
    connection.close()


def record_as_number(path: Path) -> None:
    """Change the type of the record of a checkpoint, which is in the page."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE checkpoints SET record = 7")
    connection.close()


@pytest.mark.parametrize("damage", [damage_record, move_record, record_as_number])
def test_a_record_that_was_changed_or_moved_is_refused(
    path: Path, damage: Callable[[Path], None]
) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
    damage(path)

    with SQLiteSaver(path) as saver:
        with pytest.raises(StoreCorruptError):
            saver.load(Address("t"))
        assert not saver.verify().ok
    with pytest.raises(StoreCorruptError):
        SQLiteSaver(path, options=StoreOptions(check_pages=True))


class DamagedPage:
    """A cursor over one row whose types are wrong, as those of a damaged page."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._rows = [row]

    def execute(self, statement: str, values: Any) -> DamagedPage:
        """Return the cursor."""
        return self

    def fetchone(self) -> Any:
        """Return the row."""
        return self._rows.pop() if self._rows else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchone, None)

    def close(self) -> None:
        """Do nothing."""


def test_a_key_of_another_type_is_a_damage() -> None:
    """SQLite itself looks neither for a type nor for NOT NULL when it reads a row."""
    table = SQLiteTable(b"meta", "runs.db", Seal(b""))

    with pytest.raises(StoreCorruptError, match="NoneType"):
        table.keys(DamagedPage((None,)), b"")
    with pytest.raises(StoreCorruptError, match="NoneType"):
        [*table.records(DamagedPage((None, b"record")), b"")]
    with pytest.raises(StoreCorruptError, match="float"):
        [*table.records(DamagedPage((b"key", 1.0)), b"")]


def test_an_iteration_that_has_failed_may_end_after_the_store_is_closed(
    path: Path,
) -> None:
    """As the frames of an error that is kept longer than its saver do."""
    store = SQLiteDatabase(path)

    def begin(transaction: Any) -> Any:
        """Return an iteration that is not at its end."""
        records = store.table(b"meta").records(transaction, b"")
        next(records)
        return records

    records = store.read(begin)
    store.close()

    records.close()


def test_nothing_is_written_to_a_file_that_took_the_place_of_the_open_one(
    path: Path, tmp_path: Path
) -> None:
    with SQLiteSaver(path) as saver:
        commit(saver, 0)
        saver.backup(tmp_path / "copy.db")
        os.replace(tmp_path / "copy.db", path)

        with pytest.raises(StoreError, match="replaced it"):
            commit(saver, 1)
