"""Stores that earlier releases wrote open, and hold what they held; newer ones are refused."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel._lmdb.seal import FORMAT
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreBusyError, StoreVersionError
from tests.releases.contents import KEY, everything, fill
from tests.runs.stores import commit, newest, start

HERE = Path(__file__).parent
KEPT = sorted(HERE.glob("format-*.mdb.xz"))

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _store_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)


def unpacked(kept: Path, folder: Path) -> Path:
    """Return a store with the file that a release wrote."""
    path = folder / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(lzma.decompress(kept.read_bytes()))
    return path


def shown(found: object) -> str:
    """Return what is compared: an error is not equal to another one like it."""
    return repr(found)


def test_there_is_a_store_of_a_release() -> None:
    """Small enough for the repository."""
    assert KEPT
    assert all(kept.stat().st_size < 64_000 for kept in KEPT)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_a_store_of_an_earlier_release_opens_and_goes_on(kept: Path, tmp_path: Path) -> None:
    """What is in it is what this release would put there; and it can be written."""
    fill(tmp_path / "new")

    path = unpacked(kept, tmp_path)

    assert shown(everything(tmp_path / "new")) == shown(everything(path))
    with LMDBSaver(path) as saver:
        commit(saver, 4)
    assert 4 == newest(path)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_supersteps_of_both_releases_are_one_history(kept: Path, tmp_path: Path) -> None:
    """Whatever is dropped of the older ones, which the newer build on."""
    path = unpacked(kept, tmp_path)
    with LMDBSaver(path) as saver:
        commit(saver, 4)
        commit(saver, 5)
        steps = [each.checkpoint.step for each in saver.history(Address("t"))]
        before = shown(saver.load(Address("t")))
        saver.prune(["t"])

        assert [5, 4, 3, 2, 1, 0] == steps
        assert before == shown(saver.load(Address("t")))
        assert saver.verify().ok


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_a_store_is_marked_once_it_can_be_written(kept: Path, tmp_path: Path) -> None:
    """An earlier release refuses it from then on; one that was read only is as it was."""
    path = unpacked(kept, tmp_path)
    before = (path / "data.mdb").read_bytes()
    with LMDBSaver(path, readonly=True, lock=False):
        pass
    after_reading = (path / "data.mdb").read_bytes()
    with LMDBSaver(path):
        pass

    assert before == after_reading
    assert b'{"format": %d,' % FORMAT in (path / "data.mdb").read_bytes()


EARLIER = """
    from flowpregel._lmdb import seal
    seal.FORMAT = 2
    saver = LMDBSaver(path)
    print("open", flush=True)
    sys.stdin.readline()
    commit(saver, 4)
    saver.close()
"""
"""A program of an earlier release, as far as others can see."""


def test_a_store_that_an_earlier_release_has_open_is_not_marked(tmp_path: Path) -> None:
    """It would not see that what it reads and writes has another format now."""
    path = unpacked(HERE / "format-2-0.1.0.mdb.xz", tmp_path)
    earlier = start(EARLIER, path, key=KEY, stdin=-1)
    assert "open\n" == earlier.stdout.readline()

    with pytest.raises(StoreBusyError, match=f"to become format {FORMAT}"):
        LMDBSaver(path, options=StoreOptions(lock_timeout=0.1))
    with LMDBSaver(path, readonly=True) as saver:
        assert 3 == saver.load(Address("t")).checkpoint.step

    assert b'{"format": 2,' in (path / "data.mdb").read_bytes()
    earlier.communicate("go on\n", timeout=60)
    assert 0 == earlier.returncode
    assert 4 == newest(path)


def test_an_earlier_release_does_not_open_a_store_that_was_marked(tmp_path: Path) -> None:
    """However long the one that marked it has it open."""
    path = unpacked(HERE / "format-2-0.1.0.mdb.xz", tmp_path)
    with LMDBSaver(path):
        earlier = start(EARLIER, path, key=KEY, stdin=-1, stderr=-1)
        _, told = earlier.communicate("go on\n", timeout=60)

    assert "StoreVersionError" in told


def test_programs_that_open_an_older_store_at_once_mark_it_once(tmp_path: Path) -> None:
    """Each of them wants to be alone with it for a moment, and then has it open."""
    path = unpacked(HERE / "format-2-0.1.0.mdb.xz", tmp_path)
    code = """
        sys.stdin.readline()
        saver = LMDBSaver(path)
        commit(saver, 0, thread=sys.argv[2])
        print("open", flush=True)
        sys.stdin.readline()
    """
    programs = [start(code, path, name, key=KEY, stdin=-1) for name in "abcd"]
    for program in programs:
        program.stdin.write("go on\n")
        program.stdin.flush()

    assert ["open\n"] * 4 == [program.stdout.readline() for program in programs]

    for program in programs:
        program.communicate("end\n", timeout=60)
    assert [0] * 4 == [newest(path, name) for name in "abcd"]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_it_can_be_encrypted(kept: Path, tmp_path: Path) -> None:
    """What earlier releases wrote goes over as it is."""
    pytest.importorskip("cryptography")
    fill(tmp_path / "new")
    path = unpacked(kept, tmp_path)
    options = StoreOptions(encryption_key=b"k" * 32)
    LMDBSaver(path).change_keys(encryption_key=options.encryption_key)

    assert shown(everything(tmp_path / "new")) == shown(everything(path, options))


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_it_can_be_read_only(kept: Path, tmp_path: Path) -> None:
    """Without a file of locks beside it."""
    path = unpacked(kept, tmp_path)

    with LMDBSaver(path, readonly=True, lock=False) as saver:
        assert 2 == len([*saver.namespaces()])


def test_a_store_of_a_later_release_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, whether it is opened to be read or to be written."""
    from flowpregel._lmdb import seal

    with monkeypatch.context() as future:
        future.setattr(seal, "FORMAT", seal.FORMAT + 1)
        fill(tmp_path / "later")
    before = (tmp_path / "later" / "data.mdb").read_bytes()

    for readonly in (False, True):
        with pytest.raises(StoreVersionError, match=f"has format {seal.FORMAT + 1}"):
            LMDBSaver(tmp_path / "later", readonly=readonly)

    assert before == (tmp_path / "later" / "data.mdb").read_bytes()
