"""A store that is killed while it is looked after: at each of its calls to the disk.

Each operation is run in a process of its own on a copy of one store, and killed
(SIGKILL) before its n-th call that changes a file, and in the middle of its n-th
write, for every n in turn. The store opens then, `verify` finds nothing, and of each
thread there is what was before or what comes after: nothing that is kept is lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreForeignError
from tests.disk import workloads
from tests.disk.nursery import KEY, KILL, TEAR, Nursery

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
"""Whether operations are killed at every call (tox -e crash), or at some."""
SOME = 3
NEEDS_CRYPTOGRAPHY = pytest.mark.skipif(
    find_spec("cryptography") is None, reason="the extra crypto is not installed"
)
CARE = [
    workloads.prune,
    workloads.sweep,
    workloads.delete,
    workloads.forget,
    workloads.copy,
    workloads.compact,
    workloads.backup,
    workloads.seal_again,
    pytest.param(workloads.encrypt, marks=NEEDS_CRYPTOGRAPHY),
]


@pytest.fixture(scope="module")
def store(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that every test copies."""
    path = tmp_path_factory.mktemp("original") / "store"
    nursery.ok(workloads.fill, str(path))
    return path


def kills(calls: int) -> Iterator[tuple[int, int]]:
    """Yield (call, what is done to it) for a run that makes *calls* calls."""
    numbers = range(1, calls + 1)
    if not ALL and calls > SOME:
        numbers = [1 + index * calls // SOME for index in range(SOME)]
    for number in numbers:
        yield number, KILL
        yield number, TEAR


def can_be_written(path: str) -> bool:
    """Change something in a store; return whether it is so then."""
    with workloads.opened(path) as saver:
        saver.delete_thread("c")
        return saver.thread("c") is None


@pytest.mark.parametrize("care", CARE, ids=lambda care: care.__name__)
def test_what_is_kept_survives_a_kill(
    nursery: Nursery, store: Path, tmp_path: Path, care: Callable[[str], None]
) -> None:
    """Of each thread there is what was, or what was to be."""
    before = workloads.everything(str(store))
    done = tmp_path / "done"
    shutil.copytree(store, done)
    calls = nursery.ok(care, str(done), folder=str(tmp_path)).calls
    after = workloads.everything(str(done))
    count = 0
    for number, act in kills(calls):
        folder = tmp_path / f"{number}-{act}"
        path = folder / "store"
        shutil.copytree(store, path)
        disk = {"folder": str(folder), "act": act, "first": number, "last": number}
        count += nursery.run(care, str(path), **disk).killed

        found = workloads.everything(str(path))

        for thread in {*before, *after}:
            either = [before.get(thread), after.get(thread)]
            assert found.get(thread) in either, (thread, number, act)
        if (backup := Path(f"{path}.backup")).exists():
            assert workloads.everything(str(backup)) == before
        assert can_be_written(str(path))
        shutil.rmtree(folder)
    print(f"{care.__name__}: {calls} calls to the disk, {count} kills")
    assert count >= min(calls, SOME)


@pytest.mark.parametrize(
    "work", [workloads.retain, workloads.grow], ids=lambda work: work.__name__
)
def test_what_was_acknowledged_survives_a_kill(
    nursery: Nursery, store: Path, tmp_path: Path, work: Callable[[str, str], None]
) -> None:
    """While a retention drops history on the way, and while the map grows."""
    log = tmp_path / "log"
    done = tmp_path / "done"
    shutil.copytree(store, done)
    calls = nursery.ok(work, str(done), str(log), folder=str(done)).calls
    last = workloads.acknowledged(log)
    for number, act in kills(calls):
        log.unlink()
        log.touch()
        path = tmp_path / f"{number}-{act}"
        shutil.copytree(store, path)
        disk = {"folder": str(path), "act": act, "first": number, "last": number}
        nursery.run(work, str(path), str(log), **disk)

        steps = [each[0] for each in workloads.everything(str(path))["a"]]

        newest = max(steps)
        told = max(workloads.acknowledged(log), workloads.STEPS - 1)
        assert told <= newest <= min(told + 1, last), (number, act)
        # A sweep may have taken old ones; what is there has no gap.
        assert steps == [*range(newest, newest - len(steps), -1)]
        assert len(steps) >= 3
        shutil.rmtree(path)


def test_a_store_is_made_whole_or_not_at_all(nursery: Nursery, tmp_path: Path) -> None:
    """Killed at each call of its creation and of its first commits, it opens and goes
    on.
    """
    done, log = tmp_path / "done", tmp_path / "log"
    (tmp_path / "0").mkdir()
    calls = nursery.ok(
        workloads.create,
        str(tmp_path / "0" / "store"),
        str(done),
        folder=str(tmp_path / "0"),
    ).calls
    for number, act in kills(calls):
        folder = tmp_path / f"{number}-{act}"
        folder.mkdir()
        log.write_text("")
        path = str(folder / "store")
        disk = {"folder": str(folder), "act": act, "first": number, "last": number}
        assert nursery.run(workloads.create, path, str(log), **disk).status in (0, -9)

        told = workloads.acknowledged(log)
        assert told <= workloads.newest(path) <= told + 1
        nursery.ok(workloads.create, str(folder / "other"), str(log))


def test_what_a_killed_compaction_leaves_is_cleared_by_the_next(
    nursery: Nursery, store: Path, tmp_path: Path
) -> None:
    """Its draft lies in the store's folder."""
    path = tmp_path / "store"
    shutil.copytree(store, path)
    clean = {*os.listdir(path)}
    disk = {"folder": str(path), "act": KILL, "first": 5, "last": 5}
    assert nursery.run(workloads.compact, str(path), **disk).killed
    assert {*os.listdir(path)} > clean

    nursery.ok(workloads.compact, str(path))

    assert {*os.listdir(path)} == clean


def test_what_a_killed_backup_leaves_is_cleared_by_the_next(
    nursery: Nursery, store: Path, tmp_path: Path
) -> None:
    """Unless it is so young that its maker may be about to hold it."""
    path = tmp_path / "store"
    shutil.copytree(store, path)
    disk = {"folder": str(tmp_path), "act": KILL, "first": 5, "last": 5}
    assert nursery.run(workloads.backup, str(path), **disk).killed
    (draft,) = {*os.listdir(tmp_path)} - {"store"}
    os.utime(tmp_path / draft, (0, 0))

    nursery.ok(workloads.backup, str(path))

    assert {"store", "store.backup"} == {*os.listdir(tmp_path)}


def test_the_key_is_not_what_makes_these_tests_pass(store: Path) -> None:
    """The two keys are different, and a store is sealed under one of them."""
    assert KEY != workloads.OTHER_KEY
    with pytest.raises(StoreForeignError):
        LMDBSaver(store, options=StoreOptions(trust=workloads.OTHER_KEY.encode()))
