"""A store that somebody else has made: looked at first, and nothing of ours is changed
by it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreError, StoreForeignError
from tests.runs.stores import KEEP_OPEN, commit, finish, start

SECRET = b"what the victim wrote"
LINKED = ("write.lock", "lock.mdb", "open.lock", "ballast", "data.mdb")


@pytest.fixture
def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a closed store under another key than ours, as it was unpacked."""
    with monkeypatch.context() as other:
        other.setenv("FLOWPREGEL_STORE_KEY", "somebody else's")
        with LMDBSaver(path) as saver:
            commit(saver, 0)
            saver.backup(path.parent / "unpacked")
    shutil.rmtree(path)
    (path.parent / "unpacked").rename(path)
    return path


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file that is not the store's, with a mode of its own."""
    file = tmp_path / "victim"
    file.write_bytes(SECRET)
    file.chmod(0o640)
    return file


def everything(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return what is in a folder, with the mode, size and time of change of each."""
    found = []
    for place in (folder, *folder.rglob("*")):
        status = place.lstat()
        found.append((str(place), status.st_mode, status.st_size, status.st_ctime_ns))
    return sorted(found)


def is_untouched(victim: Path) -> bool:
    return victim.read_bytes() == SECRET and victim.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_that_is_refused_is_as_it_was(foreign: Path, readonly: bool) -> None:
    """No file is made in it, and no mode is changed."""
    foreign.chmod(0o755)
    before = everything(foreign)

    with pytest.raises(StoreForeignError, match="another key"):
        LMDBSaver(foreign, readonly=readonly)

    assert everything(foreign) == before


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("name", LINKED)
def test_a_refused_store_has_changed_nothing_through_a_link(
    foreign: Path, victim: Path, name: str, readonly: bool
) -> None:
    """A link in the place of each of its files."""
    (foreign / name).unlink(missing_ok=True)
    (foreign / name).symlink_to(victim)

    with pytest.raises(StoreError):
        LMDBSaver(foreign, readonly=readonly)

    assert is_untouched(victim)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("name", LINKED)
def test_nor_has_one_that_is_trusted(
    foreign: Path, victim: Path, name: str, readonly: bool
) -> None:
    """Its key is ours, and its files are still its own, or it is refused."""
    options = StoreOptions(trust=b"somebody else's")
    if name != "data.mdb":
        (foreign / name).symlink_to(victim)
    else:
        (foreign / name).rename(foreign / "moved")
        (foreign / name).symlink_to(foreign / "moved")

    if readonly and name in ("ballast", "write.lock"):  # which a reader does not open
        LMDBSaver(foreign, readonly=readonly, options=options).close()
    else:
        with pytest.raises(StoreError, match=f"{name} is a symbolic link"):
            LMDBSaver(foreign, readonly=readonly, options=options)

    assert is_untouched(victim)


def test_a_link_that_leads_nowhere_makes_no_file(foreign: Path, tmp_path: Path) -> None:
    """Opening through it would make what it names."""
    for name in ("write.lock", "lock.mdb", "open.lock"):
        (foreign / name).unlink(missing_ok=True)
        (foreign / name).symlink_to(tmp_path / f"made-{name}")
        with pytest.raises(StoreError, match="symbolic link"):
            LMDBSaver(foreign, options=StoreOptions(trust=b"somebody else's"))
        (foreign / name).unlink()

    assert not [*tmp_path.glob("made-*")]


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_lease_is_not_written_through_a_link(
    path: Path, tmp_path: Path, victim: Path, linked: str
) -> None:
    """Neither where the lease's file is one, nor where the folder of all leases is."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        with saver.lease("t"):
            (name,) = os.listdir(path / "leases")
        elsewhere = tmp_path / "elsewhere"
        if linked == "file":
            (path / "leases" / name).symlink_to(victim)
        else:
            (path / "leases").rmdir()
            elsewhere.mkdir()
            victim.rename(elsewhere / name)
            (path / "leases").symlink_to(elsewhere)
            victim = elsewhere / name

        with pytest.raises(StoreError, match="symbolic link"), saver.lease("t"):
            pass

    assert is_untouched(victim)


def test_a_pipe_in_the_place_of_a_lock_keeps_nobody_waiting(foreign: Path) -> None:
    """Opening one waits for whoever opens its other end."""
    os.mkfifo(foreign / "open.lock")
    with pytest.raises(StoreError, match="not a regular file"):
        LMDBSaver(foreign)


def test_a_store_that_its_owner_has_open_is_refused_too(foreign: Path) -> None:
    """Then its header is read with LMDB's lock."""
    owner = start(KEEP_OPEN, foreign, key="somebody else's", stdin=-1)
    assert owner.stdout.readline() == "open\n"

    for readonly in (False, True):
        with pytest.raises(StoreForeignError, match="another key"):
            LMDBSaver(foreign, readonly=readonly)

    owner.stdin.write("go on\n")
    owner.stdin.flush()
    finish(owner)


def test_a_blank_key_in_the_environment_is_no_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a file."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", " ")
    with pytest.raises(StoreError, match="FLOWPREGEL_STORE_KEY contains no key"):
        LMDBSaver(path)
