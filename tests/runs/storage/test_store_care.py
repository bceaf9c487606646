"""Looking after a store: bounded history, pins, threads, figures, backups, a smaller
file.
"""

import threading

import lmdb
import pytest

from flowpregel._core.records import Address, Batch, Delta, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention
from flowpregel.checkpoint.retention import RetentionCollector
from flowpregel.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from flowpregel.storage.records import TABLE_NAMES
from tests.runs.stores import commit, finish, id_of, newest, start, step

T = Address("t")


def steps(saver, address=T):
    return [saved.checkpoint.step for saved in saver.history(address)]


# ---------------------------------------------------------------- retention


def test_history_is_bounded_while_a_run_goes_on(path):
    with LMDBSaver(path, retention=Retention(keep_last=10)) as saver:
        for number in range(200):
            commit(saver, number)
        found = steps(saver)

    assert found == [*range(199, 199 - len(found), -1)]
    assert 10 <= len(found) < 10 + 33


def test_history_is_bounded_though_no_process_commits_much(path):
    """A store that is opened for a few commits at a time is swept as any other."""
    for number in range(60):
        with LMDBSaver(path, retention=Retention(keep_last=10)) as saver:
            commit(saver, 2 * number)
            commit(saver, 2 * number + 1)
            found = steps(saver)

    assert found == [*range(119, 119 - len(found), -1)]
    assert 10 <= len(found) < 10 + 33


def test_a_sweep_that_finds_no_room_costs_no_run_its_superstep(path, monkeypatch):
    """What was committed is kept, and no error says that it was not; the next sweep
    makes good.
    """

    def full(*_, **__):
        raise StoreFullError("there is no room")

    with LMDBSaver(path, retention=Retention(keep_last=10)) as saver:
        with monkeypatch.context() as patched:
            patched.setattr(RetentionCollector, "sweep", full)
            for number in range(40):
                commit(saver, number)
        assert len(steps(saver)) == 40
        commit(saver, 40)

        assert len(steps(saver)) == 10


def test_what_is_kept_reads_as_before_when_its_base_and_deltas_are_dropped(path):
    with (
        LMDBSaver(path, retention=Retention(keep_last=3)) as bounded,
        LMDBSaver(path.with_name("all")) as complete,
    ):
        version = None
        for number in range(100):
            delta = {"d": Delta(version, (number,))}
            version = number + 1
            also = {"d": version, "once": 1}
            values = {"n": number, "once": "kept"} if not number else {"n": number}
            checkpoint = step(number, values, deltas=delta, also=also)
            for saver in (bounded, complete):
                saver.commit([Batch(address=T, checkpoint=checkpoint)])
        kept = [*bounded.history(T)]

        assert kept == [*complete.history(T, limit=len(kept))]
        assert kept[0].checkpoint.values["once"] == "kept"
        assert kept[0].deltas["d"].writes == tuple((n,) for n in range(100))
        assert bounded.verify().ok


def test_the_file_stays_small_under_retention(path):
    with LMDBSaver(path, retention=Retention(keep_last=5)) as saver:
        for number in range(300):
            commit(saver, number, {"n": bytes(20_000)})

        assert saver.size() < 3_000_000


def test_old_checkpoints_go_and_the_newest_stays_whatever_its_age(path):
    with LMDBSaver(path, retention=Retention(max_age=60.0)) as saver:
        for number in range(32):  # made, by their own account, in 1970
            commit(saver, number)

        assert steps(saver) == [31]


def test_history_is_bounded_in_bytes(path):
    with LMDBSaver(path, retention=Retention(max_bytes=100_000)) as saver:
        for number in range(64):
            commit(saver, number, {"n": bytes(10_000)})

        assert len(steps(saver)) == 9


def test_a_pinned_checkpoint_stays_until_it_is_let_go(path):
    with LMDBSaver(path, retention=Retention(keep_last=1)) as saver:
        commit(saver, 0)
        saver.pin(Address("t", "", id_of(0)))
        for number in range(1, 65):
            commit(saver, number)
        assert 0 in steps(saver)
        saver.pin(Address("t", "", id_of(0)), pinned=False)
        for number in range(65, 129):
            commit(saver, number)

        assert 0 not in steps(saver)


def test_a_pin_goes_with_its_thread_and_its_checkpoint_and_is_copied_with_them(path):
    """It is a record of the thread's, as all others are."""
    with LMDBSaver(path, retention=Retention(keep_last=1)) as saver:
        commit(saver, 0)
        saver.pin(Address("t", "", id_of(0)))
        saver.copy_thread("t", "twin")
        for number in range(1, 65):
            commit(saver, number, thread="twin")
        pinned = [found.checkpoint.step for found in saver.history(Address("twin"))]
        saver.prune(["twin"])
        saver.delete_thread("t")
        saver.delete_thread("twin")

    assert 0 in pinned
    with lmdb.open(str(path), max_dbs=16, readonly=True, lib_version=0) as env:
        left = {name: env.open_db(name, create=False) for name in TABLE_NAMES}
        with env.begin() as transaction:
            entries = {
                name: transaction.stat(db)["entries"] for name, db in left.items()
            }
    assert {b"meta": 2} == {name: many for name, many in entries.items() if many}


def test_a_question_that_waits_for_its_answer_stays(path):
    with LMDBSaver(path, retention=Retention(keep_last=1)) as saver:
        commit(saver, 0)
        asked = step(1, parent=False)  # a branch of its own, which nobody went on with
        asked_write = TaskWrites(id_of(1), "task", "", (("__interrupt__", "go on?"),))
        saver.commit([Batch(address=T, checkpoint=asked, writes=(asked_write,))])
        for number in range(2, 66):
            saver.commit([Batch(address=T, checkpoint=step(number, parent=number > 2))])

        assert steps(saver)[-1] == 1


@pytest.mark.parametrize("bound", ["keep_last", "max_age", "max_bytes"])
def test_a_bound_that_keeps_nothing_is_refused(bound):
    with pytest.raises(ConfigurationError, match=bound):
        Retention(**{bound: 0})


# ---------------------------------------------------------------- what is there


def test_threads_tell_their_status(path):
    with LMDBSaver(path) as saver:
        for name in ("done", "asks", "failed", "stopped", "runs"):
            commit(saver, 0, thread=name)
        begun = TaskWrites(id_of(0), "task", "", (("n", 1),))
        saver.commit([Batch(address=Address("stopped"), writes=(begun,))])
        for name, channel in (("asks", "__interrupt__"), ("failed", "__error__")):
            writes = TaskWrites(id_of(0), "task", "", ((channel, "why"),))
            saver.commit([Batch(address=Address(name), writes=(writes,))])
        with saver.lease("runs"):
            found = {each.thread_id: each for each in saver.threads()}

    assert {name: each.status for name, each in found.items()} == {
        "done": "done",
        "asks": "waiting",
        "failed": "failed",
        "stopped": "stopped",
        "runs": "running",
    }
    assert found["done"].step == 0
    assert found["done"].updated == 1_000_000_000


def test_stats_tell_what_takes_up_room(path):
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"small": 1, "large": bytes(100_000)})
        commit(saver, 0, thread="u")
        found = saver.stats()

    assert (found.threads, found.namespaces, found.checkpoints) == (2, 2, 2)
    assert 100_000 < found.bytes_of_channels["large"] < 101_000
    assert found.bytes_of_channels["small"] < 100
    assert found.bytes > 100_000


# ---------------------------------------------------------------- copies


@pytest.mark.slow
def test_each_live_backup_under_load_is_a_state_that_was_committed(path, tmp_path):
    with LMDBSaver(path) as saver:
        stop = threading.Event()

        def work():
            number = 0
            while not stop.is_set():
                commit(saver, number, {"n": bytes(3_000)})
                number += 1

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for number in range(30):
                saver.backup(tmp_path / f"backup{number}")
        finally:
            stop.set()
            worker.join()

    for number in range(30):
        with LMDBSaver(tmp_path / f"backup{number}") as copy:
            assert copy.verify().ok
            found = steps(copy)
            assert found == [*range(len(found) - 1, -1, -1)]


def test_a_backup_is_private_and_replaces_nothing(path, tmp_path):
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        saver.backup(tmp_path / "backup")
        with pytest.raises(StoreError, match="already"):
            saver.backup(tmp_path / "backup")

    files = [tmp_path / "backup", *(tmp_path / "backup").iterdir()]
    assert all(not each.stat().st_mode & 0o077 for each in files)
    assert newest(tmp_path / "backup") == 0


def test_a_store_may_be_moved(path, tmp_path):
    with LMDBSaver(path) as saver:
        commit(saver, 0)
    path.rename(tmp_path / "elsewhere")

    assert newest(tmp_path / "elsewhere") == 0


def test_compacting_gives_the_room_back(path):
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"n": bytes(3_000_000)})
        commit(saver, 0, thread="u")
        saver.delete_thread("t")
        before = (path / "data.mdb").stat().st_size
        saver.compact()
        assert (path / "data.mdb").stat().st_size < before / 10
        commit(saver, 1, thread="u")

    assert newest(path, "u") == 1
    assert not [each for each in path.iterdir() if each.name.startswith(".compact")]


def test_a_store_that_others_have_open_is_not_compacted(path):
    code = """
        saver = LMDBSaver(path)
        print("open", flush=True)
        sys.stdin.readline()
        commit(saver, 1)
    """
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        process = start(code, path, stdin=-1)
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreBusyError, match="has it open"):
            saver.compact()
        process.communicate("go on\n", timeout=20)
        saver.compact()
        assert steps(saver) == [1, 0]


@pytest.mark.slow
def test_others_that_open_a_store_while_it_is_compacted_wait(path):
    code = """
        for number in range(20):
            with LMDBSaver(path) as saver:
                commit(saver, number, thread="child")
        print("done")
    """
    process = None
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"n": bytes(1_000_000)})
        process = start(code, path)
        compacted = 0
        while process.poll() is None:
            try:
                saver.compact()
                compacted += 1
            except StoreBusyError:
                pass
        assert finish(process) == "done\n"
        assert steps(saver, Address("child")) == [*range(19, -1, -1)]
        assert saver.verify().ok
    assert compacted


def test_one_thread_can_be_looked_at_without_the_others(tmp_path):
    """It is told of as `threads` would; one that is not there is None."""
    with LMDBSaver(tmp_path / "store") as saver:
        commit(saver, 0, thread="a")
        commit(saver, 0, thread="b")

        assert [saver.thread("a")] == [
            each for each in saver.threads() if each.thread_id == "a"
        ]
        assert saver.thread("c") is None


def test_a_sweep_applies_a_retention_at_once(tmp_path):
    """To the threads that are named; it tells how many checkpoints it dropped."""
    with LMDBSaver(tmp_path / "store") as saver:
        for number in range(5):
            commit(saver, number, thread="a")
            commit(saver, number, thread="b")

        assert 3 == saver.sweep(Retention(keep_last=2), ["a"])
        assert [2, 5] == [len([*saver.history(Address(name))]) for name in ("a", "b")]
        assert 3 == saver.sweep(Retention(keep_last=2))
