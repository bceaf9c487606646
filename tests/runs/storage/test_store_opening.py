"""A store is opened whole, by the right one, or refused by name."""

import os
import shutil
import signal
import stat
import struct
import subprocess
import sys

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreReadOnlyError,
    StoreVersionError,
)
from flowpregel.storage import file_systems, headers
from flowpregel.storage.lmdb import files
from flowpregel.watching import StoreReader
from tests.runs.stores import commit, finish, newest, start


@pytest.fixture
def closed(path):
    """A store with two checkpoints, closed."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        commit(saver, 1)
    return path


def test_a_folder_is_made_with_the_folders_around_it(tmp_path):
    with LMDBSaver(tmp_path / "a" / "b" / "store") as saver:
        commit(saver, 0)

    assert newest(tmp_path / "a" / "b" / "store") == 0


def test_an_empty_folder_becomes_a_store(path):
    path.mkdir()

    LMDBSaver(path).close()

    assert (path / "data.mdb").stat().st_size > 0


def test_a_folder_with_other_files_is_left_alone(path):
    path.mkdir()
    (path / "thesis.tex").write_text("precious")

    with pytest.raises(StoreError, match="other files"):
        LMDBSaver(path)
    assert [each.name for each in path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_folder(path):
    path.write_text("a file")

    with pytest.raises(StoreError, match="is a file"):
        LMDBSaver(path)


def test_a_path_through_a_file_is_refused(path):
    path.write_text("a file")

    with pytest.raises(StoreError, match="through a file"):
        LMDBSaver(path / "store")


def test_a_circle_of_links_is_refused(path, tmp_path):
    path.symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(path)

    with pytest.raises(StoreError, match="a loop of symbolic links"):
        LMDBSaver(path)


def test_a_link_and_its_folder_are_one_store(closed, tmp_path):
    (tmp_path / "link").symlink_to(closed)

    with LMDBSaver(closed) as one, LMDBSaver(tmp_path / "link") as other:
        commit(one, 2)
        assert other.load(Address("t")).checkpoint.step == 2


def test_reading_needs_a_store(path):
    with pytest.raises(StoreError, match="no store"):
        LMDBSaver(path, readonly=True)
    assert not path.exists()


def test_a_reader_cannot_write(closed):
    with LMDBSaver(closed, readonly=True) as saver:
        assert saver.load(Address("t")).checkpoint.step == 1
        with pytest.raises(StoreReadOnlyError):
            commit(saver, 2)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a user other than root is needed to be without rights"
)
def test_missing_rights_are_named(closed):
    os.chmod(closed.parent, 0o755)
    for outer in closed.parents:
        if outer.stat().st_mode & 0o005 != 0o005 and len(outer.parts) > 2:
            os.chmod(outer, 0o755)

    program = f"""
import os, sys
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import StoreReadOnlyError
os.setuid(12345)
try:
    LMDBSaver({str(closed)!r})
except StoreReadOnlyError as error:
    print("named", error)
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert out.stdout.startswith("named"), out


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_nobody_else_can_read_a_store_whatever_the_umask(path, umask):
    before = os.umask(umask)
    try:
        with LMDBSaver(path) as saver:
            commit(saver, 0)
            with saver.lease("t"):
                files = [path, *path.rglob("*")]
                modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in files}
    finally:
        os.umask(before)

    folders = {path.name, "leases"}
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}
    assert {modes[name] for name in folders} == {0o700}


def test_nothing_is_left_when_a_store_could_not_be_made(tmp_path):
    def fail(draft):
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError):
        files.create(str(tmp_path / "store"), fail)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_store_that_another_process_makes_first_is_used(path, moment):
    """It was not there when this one looked; whoever makes a backup is told."""
    if moment == "before":
        LMDBSaver(path).close()

    assert files.create(str(path), lambda draft: LMDBSaver(path).close()) is False
    assert [path.name] == [each.name for each in path.parent.iterdir()]
    assert newest(path) is None


# ---------------------------------------------------------------- what is not trusted


def test_a_store_cut_off_at_any_page_is_refused(closed):
    data = closed / "data.mdb"
    whole = data.read_bytes()
    for size in range(0, len(whole), 4096):
        data.write_bytes(whole[:size])
        with pytest.raises(StoreCorruptError, match="truncated"):
            LMDBSaver(closed)
    data.write_bytes(whole)

    assert newest(closed) == 1


def test_a_file_that_is_no_store_is_refused(closed):
    (closed / "data.mdb").write_bytes(b"something else" * 1000)

    with pytest.raises(StoreCorruptError, match="not a store"):
        LMDBSaver(closed)


def test_an_lmdb_file_of_someone_else_is_refused(path):
    import lmdb

    lmdb.open(str(path), lib_version=0).close()

    with pytest.raises(StoreVersionError, match="not a flowpregel store"):
        LMDBSaver(path)


def test_another_engine_is_refused_and_its_file_untouched(path):
    import lmdb

    lmdb.open(str(path), lib_version=1).close()
    before = (path / "data.mdb").read_bytes()

    with pytest.raises(StoreVersionError, match="another LMDB engine"):
        LMDBSaver(path)
    assert (path / "data.mdb").read_bytes() == before


def test_a_newer_format_is_refused_and_its_file_untouched(path, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr(headers, "FORMAT", headers.FORMAT + 1)
        LMDBSaver(path).close()
    before = (path / "data.mdb").read_bytes()

    with pytest.raises(StoreVersionError, match="the store was not changed"):
        LMDBSaver(path)
    assert (path / "data.mdb").read_bytes() == before


def test_the_size_check_is_what_refuses_a_file_that_is_cut_off(closed):
    """Without it LMDB opens the file; the next read would end the process (SIGBUS)."""
    data = closed / "data.mdb"
    data.write_bytes(data.read_bytes()[: 4096 * 3])
    code = """
        from flowpregel.storage.lmdb import files
        files.check_files = lambda path, **how: None
        with LMDBSaver(path) as saver:
            print(saver.load(Address("t")))
    """
    process = start(code, closed, stderr=subprocess.DEVNULL)
    process.communicate(timeout=60)

    assert -signal.SIGBUS == process.returncode


def test_a_networkfile_system_is_refused_unless_allowed(path, monkeypatch):
    monkeypatch.setattr(file_systems, "file_system", lambda _: "nfs4")

    with pytest.raises(StoreError, match="network"):
        LMDBSaver(path)
    LMDBSaver(path, options=StoreOptions(allow_network=True)).close()


def test_the_file_system_of_a_folder_is_known(tmp_path):
    assert file_systems.file_system(str(tmp_path))
    assert file_systems.file_system("/proc/self") == "proc"


# ---------------------------------------------------------------- closing and forking


def test_savers_of_one_folder_share_it_until_the_last_is_closed(path):
    one, other = LMDBSaver(path), LMDBSaver(path)
    one.close()
    one.close()
    commit(other, 0)
    other.close()

    with pytest.raises(StoreError, match="closed"):
        other.load(Address("t"))


def test_a_store_that_was_deleted_while_it_was_open_begins_again(path):
    """Its old user can store nothing more, and the next one finds it empty."""
    old = LMDBSaver(path)
    commit(old, 0)
    shutil.rmtree(path)

    with pytest.raises(StoreError, match="was deleted while it was open"):
        commit(old, 1)
    with LMDBSaver(path) as new:
        assert [] == [*new.threads()]
        commit(new, 2)
        with pytest.raises(StoreError, match="open it again"):
            commit(old, 3)
        old.close()
        commit(new, 4)

    assert 4 == newest(path)


def test_a_store_that_was_moved_while_it_was_open_leaves_its_path(path, tmp_path):
    """Another store can be made there, and both can be used."""
    moved = tmp_path / "moved"
    with LMDBSaver(path) as old:
        commit(old, 0)
        path.rename(moved)
        commit(old, 1)
        with LMDBSaver(path) as new:
            assert [] == [*new.threads()]
            commit(new, 7)

    assert 1 == newest(moved)
    assert 7 == newest(path)


def test_a_reader_of_a_store_that_is_gone_gets_our_error(path, tmp_path):
    LMDBSaver(path).close()
    with LMDBSaver(path, readonly=True) as saver:
        reader = StoreReader(saver)
        path.rename(tmp_path / "moved")
        with pytest.raises(StoreError, match="cannot be used"):
            reader.mark()
        reader.close()


def test_a_program_that_never_closes_ends_well(path):
    process = start(
        "saver = LMDBSaver(path); commit(saver, 0)", path, stderr=subprocess.STDOUT
    )

    assert finish(process) == ""
    assert newest(path) == 0


def test_a_forked_process_cannot_use_its_parents_store(path):
    code = """
        saver = LMDBSaver(path)
        commit(saver, 0)
        pid = os.fork()
        if not pid:
            try:
                commit(saver, 1)
            except StoreReadOnlyError as error:
                print("refused", "fork" in str(error), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        commit(saver, 1)
        saver.close()
    """
    assert finish(start(code, path)) == "refused True\n"
    assert newest(path) == 1


@pytest.mark.parametrize("forked_in", ["a commit", "a resize", "an opening"])
def test_a_forked_process_never_waits_for_the_locks_of_its_parent(path, forked_in):
    """Though another OS thread of the parent held them during the fork."""
    code = """
        import threading
        from contextlib import contextmanager
        from flowpregel.storage.lmdb import environment

        @contextmanager
        def commit_under_way():
            inside, done = threading.Event(), threading.Event()

            def work(transaction):
                inside.set()
                done.wait()

            thread = threading.Thread(target=saver._write, args=(work,))
            thread.start()
            inside.wait()
            yield
            done.set()
            thread.join()

        saver = LMDBSaver(path)
        commit(saver, 0)
        held = {
            "a commit": commit_under_way,
            "a resize": saver._store.environment._gate.alone,
            "an opening": environment.registry,
        }
        with held[sys.argv[2]]():
            pid = os.fork()
            if not pid:
                for use in (saver.load, lambda _: commit(saver, 1)):
                    try:
                        use(Address("t"))
                    except StoreReadOnlyError as error:
                        print("refused", "fork" in str(error), flush=True)
                with LMDBSaver(path + ".other") as other:
                    commit(other, 0)
                print("opened", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        commit(saver, 1)
        saver.close()
    """
    process = start(code, path, forked_in)
    try:
        assert finish(process, 25) == "refused True\nrefused True\nopened\n"
    finally:
        process.kill()
    assert newest(path) == 1


def test_little_address_space_is_enough(path):
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        with LMDBSaver(path) as saver:
            commit(saver, 0)
    """
    finish(start(code, path))

    assert newest(path) == 0


def test_a_lease_that_cannot_be_had_is_refused_by_name(path):
    """As all else that the file system refuses."""
    with LMDBSaver(path) as saver:
        (path / "leases").write_text("a file")
        with (
            pytest.raises(StoreError, match=r"leases leads through a file"),
            saver.lease("t"),
        ):
            pass


def test_a_map_that_cannot_grow_refuses_a_commit_and_goes_on(path):
    """LMDB closes itself when it is given no more address space: what is there is
    mapped again.
    """
    code = """
        import resource
        saver = LMDBSaver(path, map_size=1)
        commit(saver, 0)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
        try:
            for number in range(1, 100):
                commit(saver, number, {"n": os.urandom(1 << 20)})
        except StoreError as error:
            print("nothing of this commit was stored" in str(error))
        print(saver.load(Address("t")).checkpoint.step == number - 1)
        commit(saver, 100, {"n": b""}, thread="another")
    """
    assert finish(start(code, path)) == "True\nTrue\n"
    assert newest(path, "another") == 100


def test_a_header_that_was_changed_is_refused(closed):
    data = (closed / "data.mdb").read_bytes()
    (closed / "data.mdb").write_bytes(data.replace(b'"format": ', b'"former": '))

    with pytest.raises(StoreCorruptError, match="header"):
        LMDBSaver(closed)


def test_a_page_size_that_cannot_be_is_refused(closed):
    data = bytearray((closed / "data.mdb").read_bytes())
    struct.pack_into("<I", data, 40, 77)
    (closed / "data.mdb").write_bytes(data)

    with pytest.raises(StoreCorruptError, match="page size"):
        LMDBSaver(closed)


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="Linux tells what is open"
)
def test_a_store_that_could_not_be_opened_is_held_by_nobody(closed):
    """Its locks were taken before it was looked at."""
    data = closed / "data.mdb"
    data.write_bytes(data.read_bytes()[:4096])
    before = len(os.listdir("/proc/self/fd"))

    for readonly in (False, True):
        with pytest.raises(StoreCorruptError):
            LMDBSaver(closed, readonly=readonly)

    assert len(os.listdir("/proc/self/fd")) == before
