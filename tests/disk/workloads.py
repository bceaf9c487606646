"""What the processes do whose disk is watched: functions, found by name in a fork."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from flowpregel._core.records import Address, Batch, Delta, TaskWrites
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention, StoreOptions
from flowpregel.errors import StoreError, StoreForeignError
from flowpregel.plugins.sqlite import SQLiteSaver
from tests.disk.nursery import KEY, mark
from tests.runs.stores import commit, id_of, step

LARGE = bytes(range(256)) * 4_500
"""Two chunks."""
OTHER_KEY = "another key"
ENCRYPTED = StoreOptions(trust=OTHER_KEY.encode(), encryption_key=b"k" * 32)
KEYS = StoreOptions(), StoreOptions(trust=OTHER_KEY.encode()), ENCRYPTED
"""All keys that a store of these tests may have."""
STEPS = 12


def acknowledge(log: str, what: Any) -> None:
    """Note that *what* was acknowledged, where no kill and no power cut takes it
    away.
    """
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, f"{what}\n".encode())
    os.close(file)


def acknowledged(log: Path) -> int:
    """Return the last number that was acknowledged, or -1."""
    lines = log.read_text().splitlines() if log.exists() else []
    return int(lines[-1]) if lines else -1


def fill(path: str) -> None:
    """Make a store with three threads, records of every kind, and something to drop."""
    with LMDBSaver(path) as saver:
        for thread in ("a", "b", "c"):
            large = LARGE if thread == "a" else b"little"
            commit(saver, 0, {"n": 0, "large": large, "d": [thread]}, thread=thread)
            for number in range(1, STEPS):
                deltas = {"d": Delta(number, (f"{thread}{number}",))}
                made = step(number, {"n": number}, deltas=deltas, also={"large": 1})
                made.channel_versions["d"] = number + 1
                made.metadata["run_id"] = "odd" if number % 2 else "even"
                saver.commit([Batch(address=Address(thread), checkpoint=made)])


def opened(path: str) -> LMDBSaver:
    """Open a store, whichever keys it has."""
    for options in KEYS:
        with contextlib.suppress(StoreForeignError):
            return LMDBSaver(path, options=options)
    raise AssertionError("there is a store under none of the keys")


def everything(path: str) -> dict[str, list[Any]]:
    """Return all that can be read of a store, by thread; refuse one that does not
    hold.
    """
    with opened(path) as saver:
        found = saver.verify()
        assert found.ok, found.problems
        return {
            place.thread_id: [
                (each.checkpoint.step, each.checkpoint.values, each.deltas, each.writes)
                for each in saver.history(place)
            ]
            for place in saver.namespaces()
        }


def continue_run(path: str) -> None:
    """Commit the next checkpoint of a thread under its lease, as a run does."""
    with LMDBSaver(path) as saver, saver.lease("a") as lease:
        saved = saver.load(Address("a"))
        assert saved is not None
        made = step(saved.checkpoint.step + 1, {"n": b"next"})
        saver.commit([Batch(address=Address("a"), checkpoint=made, fence=lease.fence)])


# ---------------------------------------------------------------- care


def prune(path: str) -> None:
    """Keep the newest checkpoint of two threads."""
    with LMDBSaver(path) as saver:
        saver.prune(["a", "b"])


def sweep(path: str) -> None:
    """Keep the last three checkpoints of each thread."""
    with LMDBSaver(path) as saver:
        saver.sweep(Retention(keep_last=3))


def delete(path: str) -> None:
    """Forget a thread."""
    with LMDBSaver(path) as saver:
        saver.delete_thread("a")


def forget(path: str) -> None:
    """Forget what one run made."""
    with LMDBSaver(path) as saver:
        saver.delete_for_runs(["odd"])


def copy(path: str) -> None:
    """Copy a thread."""
    with LMDBSaver(path) as saver:
        saver.copy_thread("a", "copy")


def compact(path: str) -> None:
    """Write the file anew."""
    with LMDBSaver(path) as saver:
        saver.compact()


def backup(path: str) -> None:
    """Copy the store to a folder beside it."""
    with LMDBSaver(path) as saver:
        saver.backup(f"{path}.backup")


def seal_again(path: str) -> None:
    """Take the store over under another key."""
    os.environ["FLOWPREGEL_STORE_KEY"] = OTHER_KEY
    with LMDBSaver(path, options=StoreOptions(trust=True)):
        pass


def encrypt(path: str) -> None:
    """Turn encryption on, under other keys, and off again."""
    for seal, options in (OTHER_KEY, ENCRYPTED), (KEY, StoreOptions()):
        opened(path).change_keys(
            encryption_key=options.encryption_key, key=seal.encode()
        )


# ---------------------------------------------------------------- commits


def retain(path: str, log: str) -> None:
    """Commit on, with a retention that sweeps on the way."""
    with LMDBSaver(path, retention=Retention(keep_last=3)) as saver:
        for number in range(STEPS, STEPS + 40):
            commit(saver, number, thread="a")
            acknowledge(log, number)


def grow(path: str, log: str) -> None:
    """Commit on in a map that has no room, so that it grows."""
    with LMDBSaver(path, map_size=1) as saver:
        for number in range(STEPS, STEPS + 6):
            commit(saver, number, {"large": LARGE}, thread="a")
            acknowledge(log, number)


def create(path: str, log: str) -> None:
    """Make a store, and commit to it."""
    mark("-1")
    with LMDBSaver(path) as saver:
        for number in range(4):
            commit(saver, number)
            acknowledge(log, number)
            mark(str(number))


def tell(path: str, steps: int, weakness: str = "") -> None:
    """Commit to a store, and mark in the record what was acknowledged.

    Args:
        path: The store.
        steps: How many supersteps.
        weakness: Which of LMDB's flags to leave out, "sync" or "metasync".
    """
    saver = (weak(weakness) if weakness else LMDBSaver)(path)
    with saver:
        for number in range(steps):
            values = {
                "n": number,
                "pad": bytes([number]) * (300 + 1_900 * (number % 3)),
            }
            commit(saver, number, values)
            mark(str(number))


def weak(weakness: str) -> type[LMDBSaver]:
    """Return the saver with a *weakness*: it acknowledges what is not on disk."""
    import lmdb

    from flowpregel.storage.lmdb import files

    def connect(path: str, map_size: int, *, readonly: bool, lock: bool) -> Any:
        return lmdb.open(
            path,
            map_size=map_size,
            max_dbs=16,
            max_readers=files.READERS,
            mode=0o600,
            create=False,
            lock=lock,
            readonly=readonly,
            lib_version=files.ENGINE,
            **{weakness: False},
        )

    files.open_lmdb = connect  # this process is a fork that ends with the workload
    return LMDBSaver


def commit_batches(path: str, batches: list[Batch]) -> None:
    """Commit once."""
    with LMDBSaver(path) as saver:
        saver.commit(batches)


def go_on(path: str, log: str, steps: int) -> int:
    """Commit to a store whose disk may fail; return how many commits did."""
    saver = _opened(path)
    number = 0
    failures = 0
    while number < steps:
        try:
            commit(saver, number, {"n": number, "pad": bytes(500)})
        except StoreError:
            failures += 1
            if failures > 50:
                raise
            # What the error says must be so: nothing of it is there, it can be tried
            # again.
            found = saver.load(Address("t"))
            assert (found.checkpoint.step if found else -1) == number - 1, (
                found,
                number,
            )
            continue
        acknowledge(log, number)
        number += 1
    saver.close()
    return failures


def _opened(path: str) -> LMDBSaver:
    """Open a store; if a call fails meanwhile, again."""
    for _ in range(5):
        try:
            return LMDBSaver(path)
        except StoreError:
            continue
    return LMDBSaver(path)


def newest(path: str) -> int:
    """Return the newest superstep of a store that holds; -1: there is none."""
    with LMDBSaver(path) as saver:
        found = saver.verify()
        assert found.ok, found.problems
        loaded = saver.load(Address("t"))
        if loaded is None:
            return -1
        newest = loaded.checkpoint.step
        assert [each.checkpoint.id for each in saver.history(Address("t"))] == [
            id_of(number) for number in range(newest, -1, -1)
        ]
        return newest


def create_in_place(path: str) -> None:
    """Make a store as LMDB does by itself: not in a draft that is renamed."""
    from flowpregel.storage.headers import Header, seal_for
    from flowpregel.storage.lmdb import files
    from flowpregel.storage.lmdb.store import ENGINES
    from flowpregel.storage.options import StoreOptions

    os.mkdir(path)
    seal = seal_for(StoreOptions())
    files.fill_draft(path, Header.new(seal, ENGINES[0]).to_bytes(seal))
    mark("-1")


def compacted(path: str) -> None:
    """Commit, write the file anew, and commit again."""
    with LMDBSaver(path) as saver:
        for number in range(4):
            commit(saver, number)
            mark(str(number))
            if number == 2:
                saver.compact()
                mark(str(number))


def sealed_anew(path: str) -> None:
    """Commit, write every record anew, and commit again."""
    for number in range(4):
        with LMDBSaver(path) as saver:
            commit(saver, number)
            mark(str(number))
            if number == 2:
                saver.change_keys(encryption_key=None)
                mark(str(number))


def look_at_all(paths: list[str], look: str) -> list[Any]:
    """Return what a function of this module says of each store, or how it failed."""
    found = []
    for path in paths:
        try:
            found.append(globals()[look](path))
        except Exception as error:  # noqa: BLE001 - it is what the test wants to know
            found.append(f"{type(error).__name__}: {error}".replace(path, "the store"))
    return found


# ---------------------------------------------------------------- damage


def store_at(path: str, options: StoreOptions | None = None) -> DurableSaver:
    """Open the store at *path*: a database of SQLite, or a folder of LMDB."""
    if path.endswith(".db"):
        return SQLiteSaver(path, options=options)
    return LMDBSaver(path, options=options)


def file_of(path: Path) -> Path:
    """Return the file that has the records of the store at *path*."""
    return path if path.suffix == ".db" else path / "data.mdb"


def small(path: str) -> None:
    """Make a small store with a record of every kind."""
    with store_at(path) as saver:
        commit(saver, 0, {"n": 0, "text": "seed " * 50, "d": ["seed"]})
        for number in range(1, 5):
            deltas = {"d": Delta(number, (f"more {number}",))}
            made = step(number, {"n": number}, deltas=deltas, also={"text": 1})
            writes = TaskWrites(
                id_of(number - 1), "task", "path", (("n", number), ("x", "y"))
            )
            saver.commit(
                [Batch(address=Address("t"), checkpoint=made, writes=(writes,))]
            )
        commit(saver, 0, {"big": bytes(range(256)) * 40}, thread="u")


def read_all(path: str, *, check_pages: bool = False) -> dict[str, list[Any]]:
    """Return all that can be read of a store, without looking whether it holds."""
    with store_at(path, StoreOptions(check_pages=check_pages)) as saver:
        return {
            place.thread_id: [
                (each.checkpoint.step, each.checkpoint.values, each.deltas, each.writes)
                for each in saver.history(place)
            ]
            for place in saver.namespaces()
        }


RIGHT, NAMED, TOLD, WRONG = "right", "named", "wrong, told by verify", "wrong"


def look_at_damage(
    path: str, damages: list[tuple[int, bytes]], right: Any, check_pages: bool
) -> None:
    """Note what reading a store comes to after each damage to its file, one by one.

    Args:
        path: The store, whose file is put right again each time.
        damages: Where bytes are changed, and to what; b"": the file ends there.
        right: What `read_all` gives of the store undamaged.
        check_pages: How it is opened.
    """
    file = file_of(Path(path))
    whole = file.read_bytes()
    for at, data in damages:
        for suffix in ("-wal", "-shm"):  # of SQLite, after an open that failed
            Path(f"{file}{suffix}").unlink(missing_ok=True)
        # A page that leads LMDB round in a circle costs this process some CPU time.
        signal.setitimer(signal.ITIMER_PROF, 0.5)
        file.write_bytes(whole[:at] + data + (whole[at + len(data) :] if data else b""))
        acknowledge(f"{path}.looked", _judged(path, right, check_pages))
    file.write_bytes(whole)


def _judged(path: str, right: Any, check_pages: bool) -> str:
    try:
        if read_all(path, check_pages=check_pages) == right:
            return RIGHT
    except StoreError:
        return NAMED
    try:
        with store_at(path) as saver:
            return WRONG if saver.verify().ok else TOLD
    except StoreError:
        return TOLD
