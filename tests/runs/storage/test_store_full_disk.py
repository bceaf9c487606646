"""A full disk, and a disk that fails: named, nothing half-written, goes on when there
is room.
"""

import os
import shutil
import subprocess
import textwrap
from contextlib import suppress

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.func import entrypoint, task
from flowpregel.plugins.sqlite import SQLiteSaver
from tests.runs.stores import commit, finish, newest, start

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=False
        ).returncode
    )
    if not mounted:
        pytest.skip(
            "a small file system cannot be mounted here: not root, or not allowed"
        )
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


FILL = """
    import shutil
    saver = LMDBSaver(path)
    commit(saver, 0)
    number, full = 1, 0
    while full < 3:
        try:
            commit(saver, number, {"n": os.urandom(int(sys.argv[2]))})
            number += 1
        except StoreFullError as error:
            full += 1
            step = saver.load(Address("t")).checkpoint.step
            assert step == number - 1, "half-written"
            assert "make room" in str(error)
    print(number, flush=True)
    MAKE_ROOM
    commit(saver, number)
    saver.close()
    print("went on", flush=True)
"""


@pytest.mark.parametrize("size", [100, 5_000, 300_000])
def test_a_full_disk_is_named_and_what_was_committed_stays(small_disk, size):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    code = FILL.replace("MAKE_ROOM", "os.unlink(sys.argv[3])")
    number, went_on = finish(start(code, small_disk / "store", size, ballast)).split(
        "\n"
    )[:2]

    assert went_on == "went on"
    with LMDBSaver(small_disk / "store", readonly=True) as saver:
        steps = [saved.checkpoint.step for saved in saver.history(Address("t"))]
    assert steps == [*range(int(number), -1, -1)]


def test_a_quota_is_named_as_a_full_disk_is(tmp_path):
    """Without a file system of our own: a limit on how large files may get."""
    limit = """
    import resource
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    """
    room = "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))"
    code = limit + FILL.replace("MAKE_ROOM", room)

    assert finish(start(code, tmp_path / "store", 5_000)).endswith("went on\n")
    with LMDBSaver(tmp_path / "store") as saver:
        assert saver.verify().ok


def test_a_store_cannot_be_made_on_a_full_disk_and_leaves_nothing(small_disk):
    (small_disk / "ballast").write_bytes(bytes((2 << 20) - 8192))
    code = """
        try:
            LMDBSaver(path)
        except StoreFullError:
            print("named")
    """
    assert finish(start(code, small_disk / "store")) == "named\n"
    assert [each.name for each in small_disk.iterdir()] == ["ballast"]


def test_deleting_makes_room_on_a_full_disk(small_disk):
    code = """
        saver = LMDBSaver(path)
        number = 0
        try:
            while True:
                commit(saver, number, {"n": os.urandom(5_000)}, thread=f"t{number}", )
                number += 1
        except StoreFullError:
            pass
        freed = 0
        for thread in range(number):
            try:
                saver.delete_thread(f"t{thread}")
                freed += 1
            except StoreFullError:
                pass
        commit(saver, 0, thread="new")
        print("went on", freed > 0)
    """
    assert finish(start(code, small_disk / "store")) == "went on True\n"


FULL = """
    saver = LMDBSaver(path)
    number = 0
    try:
        while True:
            commit(saver, number, {"n": os.urandom(900)}, thread="t")
            number += 1
    except StoreFullError:
        pass
    for name in sys.argv[2:]:
        os.unlink(os.path.join(path, name))
    with open(path + ".rest", "wb", buffering=0) as rest:  # what is left of the disk
        for size in (4096, 1):
            try:
                while True:
                    rest.write(bytes(size))
            except OSError:
                pass
    try:
        saver.delete_thread("t")
    except StoreFullError:
        print("full")
        sys.exit()
    assert saver.load(Address("t")) is None
    commit(saver, 0, thread="new")
    print("went on", os.path.exists(os.path.join(path, "ballast")))
    saver.close()
"""


def test_the_ballast_gives_a_deletion_its_room(small_disk):
    """A thread of which every page has to be written anew, on a disk without a byte
    left.
    """
    assert finish(start(FULL, small_disk / "store")) == "went on False\n"
    with LMDBSaver(small_disk / "store") as saver:
        assert [info.thread_id for info in saver.threads()] == ["new"]


def test_without_the_ballast_the_deletion_fails(small_disk):
    assert finish(start(FULL, small_disk / "store", "ballast")) == "full\n"


SQLITE_FULL = "from flowpregel.plugins.sqlite import SQLiteSaver\n" + textwrap.dedent(
    FULL
).replace("LMDBSaver(path)", "SQLiteSaver(path)").replace(
    'os.path.join(path, "ballast")', 'path + "-locks/ballast"'
).replace("os.path.join(path, name)", 'path + "-locks/" + name')


def test_the_ballast_gives_a_deletion_its_room_in_sqlite(small_disk):
    """Its log of commits has to grow even for a deletion."""
    assert finish(start(SQLITE_FULL, small_disk / "store.db")) == "went on False\n"
    with SQLiteSaver(small_disk / "store.db") as saver:
        assert [info.thread_id for info in saver.threads()] == ["new"]


def test_without_the_ballast_the_deletion_fails_in_sqlite(small_disk):
    path = small_disk / "store.db"

    assert finish(start(SQLITE_FULL, path, "ballast")) == "full\n"


def fill(disk):
    """Write a file that leaves no block of a disk free."""
    with (
        suppress(OSError),
        open(disk / "rest", "wb", buffering=0) as rest,
    ):
        while True:
            rest.write(bytes(4096))


def test_rm_deletes_a_thread_on_a_full_disk(small_disk):
    """Its lease needs a file, for which there is no room either."""
    store = small_disk / "store"
    with LMDBSaver(store) as saver:
        commit(saver, 0, thread="t")
    fill(small_disk)

    result = CliRunner().invoke(app, ["rm", "t", "--yes", "--store", str(store)])

    assert (0, "deleted: t\n") == (result.exit_code, result.output)
    with LMDBSaver(store, readonly=True) as saver:
        assert [] == [*saver.threads()]


@pytest.mark.parametrize("has_ballast", [True, False])
def test_redo_takes_a_call_back_on_a_full_disk(small_disk, has_ballast):
    """Both its lease and the deletion need room, which the ballast has."""
    store = small_disk / "store"
    with LMDBSaver(store) as saver:

        @task(executor="inline")
        def double(number):
            return 2 * number

        @entrypoint(checkpointer=saver)
        def flow(number):
            return double(number).result()

        flow.run(4, id="t")
    if not has_ballast:
        (store / "ballast").unlink()
    fill(small_disk)

    words = ["redo", "t", "double(4)", "--store", str(store)]
    result = CliRunner().invoke(app, words)

    if has_ballast:
        assert (0, "taken back: double(4)\n") == (result.exit_code, result.stdout)
    else:
        assert Code.STORE == result.exit_code
        assert "make room" in result.stderr


def test_the_ballast_is_made_anew_when_there_is_room(tmp_path):
    LMDBSaver(tmp_path / "store").close()
    ballast = tmp_path / "store" / "ballast"
    assert ballast.stat().st_blocks * 512 >= 128 << 10
    ballast.unlink()

    LMDBSaver(tmp_path / "store").close()

    assert ballast.stat().st_blocks * 512 >= 128 << 10
    assert ballast.stat().st_mode & 0o777 == 0o600


FULL_FROM_THE_START = """
    def open_with(left):
        with open(path + ".rest", "wb", buffering=0) as rest:  # all but these bytes
            rest.write(os.urandom(1024))
            room = os.statvfs(os.path.dirname(path))
            os.posix_fallocate(rest.fileno(), 0, room.f_bavail * room.f_bsize - left)
        try:
            LMDBSaver(path).close()
            return 0
        except StoreFullError as error:
            return 3

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(open_with(int(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "open", 3: "named"}.get(status, status), flush=True)
"""
"""For each line a process opens the store, with so many bytes left on the disk."""


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "restored"])
def test_a_store_that_has_no_room_to_be_opened_is_named(small_disk, is_there):
    """LMDB maps its lock file: where that is a hole, writing to it ends the
    interpreter.
    """
    if is_there:
        with LMDBSaver(small_disk / "first") as saver:
            commit(saver, 0)
            saver.backup(small_disk / "backup")
    before = {each.name for each in small_disk.iterdir()}
    outcomes = []
    opening = start(FULL_FROM_THE_START, small_disk / "store", stdin=subprocess.PIPE)
    for room in range(0, 200_000, 8192):
        store = small_disk / "store"
        if is_there:
            shutil.copytree(small_disk / "backup", store)
        opening.stdin.write(f"{room}\n")
        opening.stdin.flush()
        outcomes.append(opening.stdout.readline().strip())
        (small_disk / "store.rest").unlink()
        left = {each.name for each in small_disk.iterdir()} - before
        assert left <= {"store"}
        if left:  # made whole, and perhaps not opened
            assert newest(store) == (0 if is_there else None)
            shutil.rmtree(store)
    finish(opening)

    assert outcomes[0] == "named", outcomes
    assert outcomes[-1] == "open", outcomes
    assert outcomes == sorted(outcomes), outcomes
