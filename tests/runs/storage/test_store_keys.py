"""The keys of a store changed: encryption turned on and off, other keys, the wrong
ones. In each engine that can change them.
"""

from __future__ import annotations

import os
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import StoreOptions
from flowpregel.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreCorruptError,
    StoreForeignError,
    StoreReadOnlyError,
)
from flowpregel.storage.lmdb import store as stores
from tests.runs.contents import cache_at, everything, fill, store_at
from tests.runs.stores import (
    KEEP_OPEN,
    KEY,
    commit,
    environment_of,
    finish,
    id_of,
    newest,
    saver_at,
    start,
)

pytest.importorskip("cryptography")

PLAIN = StoreOptions()
ONE = StoreOptions(encryption_key=b"1" * 32)
TWO = StoreOptions(encryption_key=b"2" * 16)
NAMES = b"plain", b"long long", b"__interrupt__", b"people", b"born", b"nine"
"""What is in a store that must not be read in its file: names and values."""


@pytest.fixture(params=["lmdb", "db"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The path of a store of each engine in turn."""
    return tmp_path / f"store.{request.param}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The path of a store in LMDB."""
    return tmp_path / "store.lmdb"


def change(path: Path, before: StoreOptions, after: StoreOptions) -> None:
    """Change the key that a store is encrypted under."""
    saver_at(path, options=before).change_keys(encryption_key=after.encryption_key)


def opened_saver(path: Path, options: StoreOptions) -> DurableSaver:
    """Return the saver of a store."""
    return saver_at(path, options=options)


def contents(path: Path, options: StoreOptions) -> str:
    """Return all that is in a store, to be compared: an error is not equal to another
    like it.
    """
    return repr(everything(path, options))


def data(path: Path) -> bytes:
    """Return the file of a store that is closed."""
    if path.suffix == ".db":
        assert {path.name, f"{path.name}-locks"} >= {*os.listdir(path.parent)}
        return path.read_bytes()
    return (path / "data.mdb").read_bytes()


def drafts(path: Path) -> list[str]:
    """Return the drafts that are left of the changes of a store's keys."""
    folder = path.parent if path.suffix == ".db" else path
    return [name for name in os.listdir(folder) if name.startswith(".")]


def delete_records(path: Path) -> None:
    """Delete the records of the thread that `commit` writes, but not their pages."""
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as connection, connection:
            # In some builds of SQLite, deleted content is overwritten by default.
            connection.execute("PRAGMA secure_delete = OFF")
            connection.execute('DELETE FROM "values"')
            connection.execute("DELETE FROM checkpoints")
        return
    with saver_at(path) as saver:
        saver.delete_thread("t")


def damage(path: Path) -> None:
    """Change the last byte of a checkpoint's record."""
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as connection, connection:
            (key,) = connection.execute("SELECT max(key) FROM checkpoints").fetchone()
            connection.execute(
                "UPDATE checkpoints SET record = "
                "CAST(substr(record, 1, length(record) - 1) || x'ff' AS BLOB) "
                "WHERE key = ?",
                (key,),
            )
        return
    environment = environment_of(path)
    log = environment.databases[b"checkpoints"]

    def change_byte(transaction: Any) -> None:
        with transaction.cursor(db=log) as cursor:
            cursor.last()
            key, record = cursor.item()
        transaction.put(key, record[:-1] + bytes((record[-1] ^ 1,)), db=log)

    environment.commits.write(change_byte, timeout=5)
    environment.close()


@pytest.mark.parametrize("before", [PLAIN, ONE], ids=["plain", "encrypted"])
@pytest.mark.parametrize(
    "after", [PLAIN, ONE, TWO], ids=["plain", "the same", "another"]
)
def test_all_that_is_in_a_store_is_there_under_the_new_key(
    path: Path, before: StoreOptions, after: StoreOptions
) -> None:
    """Checkpoints, deltas, large values, pins, items and results."""
    fill(path, before)
    right = contents(path, before)
    change(path, before, after)

    assert right == contents(path, after)
    assert all((name in data(path)) == (after is PLAIN) for name in NAMES)
    assert not drafts(path)
    with saver_at(path, options=after) as saver:
        commit(saver, 4)
        assert [4, 3, 2, 1, 0] == [
            s.checkpoint.step for s in saver.history(Address("t"))
        ]


def test_what_could_be_read_is_not_left_in_pages_that_are_free(path: Path) -> None:
    with saver_at(path) as saver:
        commit(saver, 0, {"n": "a secret " * 5_000})
    delete_records(path)
    assert b"a secret" in data(path)

    change(path, PLAIN, ONE)

    assert b"a secret" not in data(path)


def test_output_that_is_not_in_the_store_yet_is_written_first(path: Path) -> None:
    with saver_at(path) as saver:
        commit(saver, 0)
        saver.keep_output(
            Address("t"), CallOutput(id_of(0), "task", "f(1)", 1, b"printed", b"", 7)
        )
        saver.change_keys(encryption_key=ONE.encryption_key)

    with saver_at(path, options=ONE) as saver:
        (output,) = saver.kept_output(Address("t", "", id_of(0)))
        assert b"printed" == output.head


def test_a_store_that_was_encrypted_in_part_is_so_as_a_whole(path: Path) -> None:
    """The key stays the same; what was written before it was given is encrypted too."""
    fill(path)
    with saver_at(path, options=ONE) as saver:
        commit(saver, 4, {"n": "later"})
    right = contents(path, ONE)
    change(path, ONE, ONE)

    assert right == contents(path, ONE)
    assert not any(name in data(path) for name in NAMES)


@pytest.mark.parametrize(
    ("now", "given"),
    [(ONE, PLAIN), (ONE, TWO), (PLAIN, ONE)],
    ids=["no key", "another key", "a key that is not needed"],
)
def test_nobody_writes_to_a_store_under_another_key_than_its_own(
    path: Path, now: StoreOptions, given: StoreOptions
) -> None:
    """Else a store would have records under two keys; it is refused when it is
    opened.
    """
    fill(path)
    change(path, PLAIN, TWO)
    change(path, TWO, now)
    before = data(path)

    for opened in (opened_saver, store_at, cache_at):
        with pytest.raises(StoreForeignError, match="encrypt"):
            opened(path, given)

    assert before == data(path)


def test_a_store_made_with_a_key_is_written_with_that_one_alone(path: Path) -> None:
    fill(path, ONE)

    with pytest.raises(
        StoreForeignError, match="but the encryption_key that you passed is"
    ):
        saver_at(path, options=TWO)


def test_a_backup_is_made_without_the_key(path: Path, tmp_path: Path) -> None:
    """To read only, the store may be opened by who cannot read it."""
    fill(path, ONE)
    backup = tmp_path / f"backup{path.suffix}"
    with saver_at(path, readonly=True) as saver:
        saver.backup(backup)
        with pytest.raises(StoreForeignError, match="is encrypted"):
            saver.load(Address("t"))

    assert contents(path, ONE) == contents(backup, ONE)


def test_the_key_of_the_checksums_is_changed_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, ONE)
    right = contents(path, ONE)
    saver_at(path, options=ONE).change_keys(
        encryption_key=ONE.encryption_key, key=b"another secret"
    )

    with pytest.raises(StoreForeignError, match="another key"):
        saver_at(path, options=ONE)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another secret")
    assert right == contents(path, ONE)


@pytest.mark.parametrize("given", [PLAIN, TWO], ids=["no key", "another key"])
def test_with_the_wrong_key_nothing_is_changed(path: Path, given: StoreOptions) -> None:
    """Of a store whose header does not tell: it was not encrypted from the first record
    on.
    """
    saver_at(path).close()
    with saver_at(path, options=ONE) as saver:
        commit(saver, 0)
    before = data(path)

    with pytest.raises(StoreForeignError, match="encrypt"):
        change(path, given, PLAIN)

    assert before == data(path)
    assert not drafts(path)
    with saver_at(path, options=ONE) as saver:
        assert saver.verify().ok


def test_a_damaged_record_stops_it_and_the_store_is_as_it_was(path: Path) -> None:
    """Damage is not sealed anew, as if it were right."""
    fill(path)
    damage(path)
    before = data(path)

    with pytest.raises(StoreCorruptError, match="is damaged"):
        change(path, PLAIN, ONE)

    assert before == data(path)


@pytest.mark.parametrize(
    "keys",
    [{"encryption_key": b"short"}, {"encryption_key": None, "key": b""}],
    ids=str,
)
def test_what_is_no_key_is_refused_and_the_saver_goes_on(path: Path, keys: Any) -> None:
    with saver_at(path) as saver:
        with pytest.raises(ConfigurationError, match="key"):
            saver.change_keys(**keys)
        commit(saver, 0)


def test_a_store_that_is_read_only_keeps_its_keys(path: Path) -> None:
    fill(path)
    with (
        saver_at(path, readonly=True) as saver,
        pytest.raises(StoreReadOnlyError, match="its keys cannot be changed"),
    ):
        saver.change_keys(encryption_key=None)


def test_the_keys_of_a_store_that_this_process_has_open_stay(path: Path) -> None:
    """What else has it open would write under the old ones."""
    fill(path)
    with store_at(path, None) as store:
        with pytest.raises(StoreBusyError, match="has it open"):
            change(path, PLAIN, ONE)
        store.put(("people",), "grace", {"born": 1906})
    change(path, PLAIN, ONE)
    with store_at(path, ONE) as store:
        assert {"born": 1906} == store.get(("people",), "grace").value


@pytest.mark.slow
def test_the_keys_of_a_store_that_another_process_has_open_stay(path: Path) -> None:
    with saver_at(path) as saver:
        commit(saver, 0)
    process = start(KEEP_OPEN, path, stdin=-1)
    assert "open\n" == process.stdout.readline()
    with pytest.raises(StoreBusyError, match="has it open"):
        change(path, PLAIN, ONE)
    process.communicate("go on\n", timeout=60)
    assert 1 == newest(path)
    change(path, PLAIN, ONE)


@pytest.mark.slow
def test_others_that_open_a_store_meanwhile_write_before_or_not_at_all(
    path: Path,
) -> None:
    """Whatever they were told was kept is there under the new key."""
    code = """
        kept = 0
        try:
            while True:
                with saver_at(path) as saver:
                    commit(saver, kept)
                kept += 1
                if kept == 1:
                    print("goes on", flush=True)
        except StoreForeignError:
            print(kept)
    """
    with saver_at(path) as saver:
        commit(saver, 0, {"n": os.urandom(5_000_000)}, thread="large")
    process = start(code, path)
    assert "goes on\n" == process.stdout.readline()
    while True:
        try:
            change(path, PLAIN, ONE)
            break
        except StoreBusyError:
            continue
    kept = int(finish(process))

    with saver_at(path, options=ONE) as saver:
        assert kept - 1 == saver.load(Address("t")).checkpoint.step
        assert saver.verify().ok


@pytest.mark.slow
def test_a_large_value_goes_over_in_parts(folder: Path) -> None:
    """Its memory is that of some chunks: a value of 3 GiB takes no more than one of 40
    MiB.
    """
    large = os.urandom(1 << 20) * 40
    with saver_at(folder) as saver:
        commit(saver, 0, {"n": large})
    tracemalloc.start()
    try:
        change(folder, PLAIN, ONE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 10 << 20
    with saver_at(folder, options=ONE) as saver:
        assert large == saver.load(Address("t")).checkpoint.values["n"]


@pytest.mark.slow
def test_where_there_is_no_room_for_both_the_store_is_as_it_was(path: Path) -> None:
    """Told by a limit on the size of files."""
    with saver_at(path) as saver:
        commit(saver, 0, {"n": os.urandom(3_000_000)})
    before = data(path)
    code = """
        import resource
        saver = saver_at(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        try:
            saver.change_keys(encryption_key=b"1" * 32)
        except StoreFullError as error:
            print("full")
    """
    assert "full\n" == finish(start(code, path))
    assert before == data(path)
    assert 0 == newest(path)


def test_a_store_goes_over_in_as_many_transactions_as_it_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one for each record; nothing is left out where one ends and the next
    begins.
    """
    fill(folder)
    right = contents(folder, PLAIN)
    monkeypatch.setattr(stores, "_PART", 0)
    change(folder, PLAIN, ONE)

    assert right == contents(folder, ONE)


# ---------------------------------------------------------------- what is trusted


def test_an_encrypted_store_of_someone_else_is_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sealed under the other key is sealed under ours."""
    fill(path, ONE)
    right = contents(path, ONE)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "our key")
    trusting = StoreOptions(trust=True, encryption_key=ONE.encryption_key)

    assert right == contents(path, trusting)


def test_an_encrypted_store_of_someone_else_is_not_taken_over_without_its_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, ONE)
    before = data(path)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "our key")

    with pytest.raises(StoreForeignError, match="is encrypted"):
        saver_at(path, options=StoreOptions(trust=True))

    assert before == data(path)


def test_a_store_that_is_open_under_its_key_is_not_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has it open would write under the key that it had."""
    fill(path)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "our key")
    with saver_at(path, options=StoreOptions(trust=KEY.encode())) as saver:
        with pytest.raises(StoreBusyError, match="has it open"):
            saver_at(path, options=StoreOptions(trust=True, lock_timeout=0.1))
        assert saver.verify().ok
