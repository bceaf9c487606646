"""Several processes use one store: killed, stopped, all at once, closing in any
order.
"""

import os
import shutil
import signal
import sys
import threading
import time

import pytest

from flowpregel._core.records import Address, Batch
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import LeaseLostError, StoreBusyError, ThreadBusyError
from tests.runs.stores import (
    KEEP_OPEN,
    commit,
    environment_of,
    finish,
    id_of,
    newest,
    start,
    step,
)

pytestmark = pytest.mark.slow


def wait_for_line(process):
    return process.stdout.readline().strip()


def stop(process):
    """Stop a process, and wait until it is."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


# ---------------------------------------------------------------- kills


def test_what_was_acknowledged_is_there_after_kill_9_at_any_moment(path):
    code = """
        saver = LMDBSaver(path, map_size=1)
        first = int(sys.argv[2])
        for number in range(first, first + 100_000):
            commit(saver, number)
            print(number, flush=True)
    """
    done = -1
    for moment in (0.0, 0.01, 0.05, 0.1, 0.2):
        process = start(code, path, done + 1)
        acknowledged = int(wait_for_line(process))
        time.sleep(moment)
        process.kill()
        # With a timeout it would not give what `readline` has read too much.
        lines = process.communicate()[0].split("\n")[:-1]
        acknowledged = max([acknowledged, *map(int, lines)])
        with LMDBSaver(path) as saver:
            numbers = [saved.checkpoint.step for saved in saver.history(Address("t"))]
            assert saver.verify().ok
        # What was on its way may be there too, but whole, and nothing is missing before
        # it.
        assert numbers[0] in (acknowledged, acknowledged + 1)
        assert numbers == [*range(numbers[0], -1, -1)]
        done = numbers[0]


HANG = """
    saver = LMDBSaver(path)
    def hang(transaction):
        print("inside", flush=True)
        time.sleep(60)
    environment_of(path).commits.write(hang, timeout=1)
"""


def test_a_killed_writer_keeps_nobody_waiting(path):
    process = start(HANG, path)
    assert wait_for_line(process) == "inside"
    process.kill()
    process.communicate()

    with LMDBSaver(path, options=StoreOptions(lock_timeout=5)) as saver:
        commit(saver, 0)


def test_a_stopped_writer_is_named_after_the_timeout(path):
    with LMDBSaver(path, options=StoreOptions(lock_timeout=0.3)) as saver:
        commit(saver, 0)
        process = start(HANG, path)
        assert wait_for_line(process) == "inside"
        stop(process)

        with pytest.raises(StoreBusyError, match=f"process {process.pid} .*stopped"):
            commit(saver, 1)
        assert saver.load(Address("t")).checkpoint.step == 0
        process.kill()
        process.communicate()
        commit(saver, 1)


def test_ctrl_c_ends_the_wait_for_a_writer(path):
    waiting = """
        import threading, _thread
        saver = LMDBSaver(path)
        print("open", flush=True)
        sys.stdin.readline()
        threading.Timer(0.2, _thread.interrupt_main).start()
        try:
            commit(saver, 0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        commit(saver, 0)
    """
    with LMDBSaver(path):
        process = start(waiting, path, stdin=-1)
        assert wait_for_line(process) == "open"

        def hang(transaction):
            process.stdin.write("try\n")
            process.stdin.flush()
            assert wait_for_line(process) == "interrupted"

        environment = environment_of(path)
        environment.commits.write(hang, timeout=1)
        environment.close()
        process.communicate(timeout=20)

    assert process.returncode == 0
    assert newest(path) == 0


# ---------------------------------------------------------------- all at once


def test_eight_processes_write_while_the_map_grows(path):
    code = """
        with LMDBSaver(path, map_size=1) as saver:
            for number in range(30):
                commit(saver, number, {"n": os.urandom(30_000)}, thread=sys.argv[2])
            print(saver.load(Address(sys.argv[2])).checkpoint.step)
    """
    processes = [start(code, path, f"t{number}") for number in range(8)]

    assert [finish(each) for each in processes] == ["29\n"] * 8
    with LMDBSaver(path) as saver:
        assert {each.thread_id for each in saver.namespaces()} == {
            f"t{n}" for n in range(8)
        }
        assert len([*saver.history(Address("t3"))]) == 30
        assert saver.verify().ok


def test_processes_that_make_one_store_at_once_share_it(path):
    code = (
        "with LMDBSaver(path) as saver: commit(saver, 0, thread=sys.argv[2]); "
        'print("made")'
    )
    processes = [start(code, path, f"t{number}") for number in range(6)]

    assert [finish(each) for each in processes] == ["made\n"] * 6
    with LMDBSaver(path) as saver:
        assert len([*saver.namespaces()]) == 6
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_copy_of_the_folder_costs_no_lock(path, tmp_path):
    """`copytree` opens and closes lock.mdb, which drops LMDB's own lock in this
    process.
    """
    code = """
        with LMDBSaver(path) as saver:
            for number in range(300):
                commit(saver, number, thread="child")
            print("done")
    """
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        shutil.copytree(path, tmp_path / "copy")
        process = start(code, path)
        for number in range(1, 300):
            commit(saver, number)
        assert finish(process) == "done\n"
        for thread in ("t", "child"):
            steps = [saved.checkpoint.step for saved in saver.history(Address(thread))]
            assert steps == [*range(299, -1, -1)]
        assert saver.verify().ok


@pytest.mark.parametrize("first", ["parent", "child"])
def test_two_processes_may_close_in_any_order(path, first):
    saver = LMDBSaver(path)
    commit(saver, 0)
    process = start(KEEP_OPEN, path, stdin=-1)
    assert wait_for_line(process) == "open"
    if first == "parent":
        saver.close()
    process.communicate("go on\n", timeout=20)
    if first == "child":
        commit(saver, 2)
        saver.close()

    assert process.returncode == 0
    assert newest(path) == (1 if first == "parent" else 2)


def test_a_store_does_not_grow_because_a_reader_was_killed(path):
    """Though no other process opens the store after that."""
    code = """
        saver = LMDBSaver(path, readonly=True)
        saver._read(lambda transaction: (print("reads", flush=True), time.sleep(60)))
    """

    def overwrite(saver):
        for _ in range(100):
            saver.change_rate("name", lambda _: (os.urandom(100_000), None))
        return saver.size()

    with LMDBSaver(path) as saver:
        before = overwrite(saver)
        reader = start(code, path)
        assert "reads" == wait_for_line(reader)
        reader.kill()
        reader.communicate()

        assert overwrite(saver) < before + (3 << 20)


def test_readers_that_died_are_cleared_away(path):
    code = """
        import contextlib, lmdb
        env = lmdb.open(path, lib_version=0, max_readers=1024)
        readers = []
        with contextlib.suppress(lmdb.ReadersFullError):
            while True:
                readers.append(env.begin())
        print("full", flush=True)
        time.sleep(60)
    """
    with LMDBSaver(path) as saver:
        commit(saver, 0)
        process = start(code, path)
        assert wait_for_line(process) == "full"
        with pytest.raises(StoreBusyError, match="live readers"):
            saver.load(Address("t"))
        process.kill()
        process.communicate()

        assert saver.load(Address("t")).checkpoint.step == 0


# ---------------------------------------------------------------- leases

HOLD = """
    saver = LMDBSaver(path)
    with saver.lease("t") as lease:
        commit(saver, 0, fence=lease.fence)
        print("held", flush=True)
        sys.stdin.readline()
        try:
            commit(saver, 1, fence=lease.fence)
            print("committed", flush=True)
        except LeaseLostError:
            print("lost", flush=True)
"""


def test_a_second_run_of_a_thread_is_refused_while_the_first_goes_on(path):
    """It does not wait: the first one is told to go on only after that."""
    process = start(HOLD, path, stdin=-1)
    assert wait_for_line(process) == "held"
    with LMDBSaver(path) as saver:
        with (
            pytest.raises(ThreadBusyError, match=f"process {process.pid}"),
            saver.lease("t"),
        ):
            raise AssertionError("two runs hold one thread")
        with saver.lease("another thread"):
            pass
    assert "committed" in process.communicate("go on\n", timeout=20)[0]


def test_a_dead_owner_is_replaced_at_once(path):
    process = start(HOLD, path, stdin=-1)
    assert wait_for_line(process) == "held"
    process.kill()
    process.communicate()

    # Without `on_conflict="wait"`: its lease is free at the first try.
    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="raise") as lease:
        commit(saver, 1, fence=lease.fence)


def test_a_dead_owner_is_replaced_though_a_child_it_forked_lives_on(path):
    code = """
        saver = LMDBSaver(path)
        with saver.lease("t") as lease:
            if not os.fork():
                print("held", flush=True)  # it runs; before, it held its parent's
                time.sleep(30)
                os._exit(0)
            os.kill(os.getpid(), 9)
    """
    process = start(code, path, start_new_session=True)
    assert wait_for_line(process) == "held"
    process.wait()
    try:
        with LMDBSaver(path) as saver, saver.lease("t") as lease:
            commit(saver, 0, fence=lease.fence)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.skipif(
    sys.platform != "linux", reason="looks for the lease's file in /proc"
)
def test_a_dead_owner_is_replaced_when_what_it_was_starting_has_let_go(path):
    """A program that is being started has the lease's file too, until it is that
    program.
    """
    code = """
        import subprocess
        saver = LMDBSaver(path)
        with saver.lease("t"):
            kept, at = [], "/proc/self/fd"
            for fd in os.listdir(at):
                path = f"{at}/{fd}"
                if os.path.exists(path) and "/leases/" in os.readlink(path):
                    kept.append(int(fd))
            subprocess.Popen(["sh", "-c", "read line"], pass_fds=kept)
            print(len(kept), flush=True)
            os.kill(os.getpid(), 9)
    """
    process = start(code, path, stdin=-1)
    assert wait_for_line(process) == "1"
    process.wait()
    letting_go = threading.Timer(0.5, process.stdin.close)
    letting_go.start()

    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="raise") as lease:
        commit(saver, 0, fence=lease.fence)
    letting_go.join()
    process.stdout.close()


def test_a_stopped_owner_is_reported_and_fenced_off_by_a_takeover(path):
    process = start(HOLD, path, stdin=-1)
    assert wait_for_line(process) == "held"
    stop(process)
    with LMDBSaver(path) as saver:
        with (
            pytest.raises(ThreadBusyError, match=f"process {process.pid}.*stopped"),
            saver.lease("t"),
        ):
            raise AssertionError("two runs hold one thread")
        with saver.lease("t", on_conflict="takeover") as lease:
            os.kill(process.pid, signal.SIGCONT)
            assert process.communicate("go on\n", timeout=20)[0].endswith("lost\n")
            commit(saver, 1, {"n": "ours"}, fence=lease.fence)
        assert saver.load(Address("t")).checkpoint.values == {"n": "ours"}


def test_without_the_fence_the_late_commit_would_be_kept(path):
    """What fencing is worth: the same, but the late commit does not name its lease."""
    process = start(HOLD.replace("1, fence=lease.fence", "1"), path, stdin=-1)
    assert wait_for_line(process) == "held"
    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="takeover"):
        assert process.communicate("go on\n", timeout=20)[0].endswith("committed\n")


ENDS_SLOWLY = """
    from flowpregel import _fault
    os.environ[_fault.FAULT] = sys.argv[2] + ":1:stop"
    _fault.arm()
    with LMDBSaver(path) as saver, saver.lease("t"):
        print("held", flush=True)
        sys.stdin.readline()
    print("ended", flush=True)
"""
"""For `start`: gives a lease back, and is stopped at a point on the way."""


def is_stopped_while_it_ends(path, point):
    """Return a process that was stopped while it was giving a lease back."""
    process = start(ENDS_SLOWLY, path, point, stdin=-1)
    assert wait_for_line(process) == "held"
    process.stdin.write("end\n")
    process.stdin.flush()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_a_run_that_ends_leaves_the_lease_of_one_that_has_taken_over(path):
    """Whenever the takeover was: a third run must not start beside the second."""
    process = is_stopped_while_it_ends(path, "lease.release")
    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="takeover") as lease:
        os.kill(process.pid, signal.SIGCONT)
        assert "ended" in process.communicate(timeout=20)[0]

        with (
            pytest.raises(ThreadBusyError, match=f"process {os.getpid()}"),
            saver.lease("t"),
        ):
            raise AssertionError("two runs hold one thread")
        commit(saver, 0, fence=lease.fence)
    assert [*(path / "leases").iterdir()] == []


def test_a_takeover_waits_for_a_run_that_is_removing_its_lease(path):
    """Else that would remove the new one's file; a run that is stopped there is
    named.
    """
    process = is_stopped_while_it_ends(path, "lease.remove")
    with LMDBSaver(path, options=StoreOptions(lock_timeout=0.2)) as saver:
        with (
            pytest.raises(StoreBusyError, match=f"process {process.pid}.*stopped"),
            saver.lease("t", on_conflict="takeover"),
        ):
            raise AssertionError("two runs hold one thread")
        os.kill(process.pid, signal.SIGCONT)
        assert "ended" in process.communicate(timeout=20)[0]
        with (
            saver.lease("t", on_conflict="takeover"),
            pytest.raises(ThreadBusyError),
            saver.lease("t"),
        ):
            raise AssertionError("two runs hold one thread")


TAKES_OVER_SLOWLY = """
    from flowpregel import _fault
    os.environ[_fault.FAULT] = "lease.replaced:1:stop"
    _fault.arm()
    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="takeover"):
        pass
"""
"""For `start`: takes a lease over, and is stopped before it has a file of its own."""


def test_a_takeover_that_is_overtaken_has_ended_the_owner_all_the_same(path):
    """A third run may get the lease first: it must not commit beside the old owner."""
    with LMDBSaver(path) as saver, saver.lease("t") as old:
        commit(saver, 0, fence=old.fence)
        process = start(TAKES_OVER_SLOWLY, path)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with saver.lease("t") as third:
                with pytest.raises(LeaseLostError):
                    commit(saver, 1, fence=old.fence)
                commit(saver, 1, fence=third.fence)
        finally:
            process.kill()
            process.communicate()


TAKES_LEASE = """
    from flowpregel import _fault
    mode, at = sys.argv[2:]
    os.environ[_fault.FAULT] = at
    _fault.arm()
    options = StoreOptions(lock_timeout=0.2)
    with LMDBSaver(path, options=options) as saver:
        try:
            with saver.lease("t", on_conflict=mode) as lease:
                print("held", lease.is_inherited, flush=True)
                sys.stdin.readline()
        except FlowPregelError as error:
            print(error, flush=True)
"""
"""For `start`: asks for a lease in a mode, and meets a fault at a point on the way."""


def is_stopped_on_the_way(path, mode, point):
    """Return a process that was stopped while it was acquiring a lease."""
    process = start(TAKES_LEASE, path, mode, f"{point}:1:stop", stdin=-1)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_a_run_without_its_fence_yet_detects_the_takeover_that_missed_it(path):
    """The takeover has told the store of the fence before: it must not own too."""
    run = is_stopped_on_the_way(path, "raise", "lease.locked")
    taker = is_stopped_on_the_way(path, "takeover", "lease.remove")

    os.kill(run.pid, signal.SIGCONT)
    said = wait_for_line(run)
    os.kill(taker.pid, signal.SIGCONT)

    assert f"process {taker.pid}" in said
    assert wait_for_line(taker) == "held False"
    for process in (run, taker):
        process.communicate("end\n", timeout=20)
    assert [*(path / "leases").iterdir()] == []


def test_a_takeover_that_died_is_cleared_away_by_the_next_run(path):
    """The next run still learns that the owner died."""
    owner = start(TAKES_LEASE, path, "raise", "-:1:kill", stdin=-1)
    assert wait_for_line(owner) == "held False"
    taker = start(TAKES_LEASE, path, "takeover", "lease.remove:1:kill")
    assert taker.wait(timeout=20) == -signal.SIGKILL
    owner.kill()
    for process in (owner, taker):
        process.communicate()

    with LMDBSaver(path) as saver, saver.lease("t") as lease:
        assert lease.is_inherited
        commit(saver, 0, fence=lease.fence)
        with pytest.raises(ThreadBusyError), saver.lease("t"):
            raise AssertionError("two runs hold one thread")
    assert [*(path / "leases").iterdir()] == []


def test_an_owner_outlives_a_takeover_that_died_before_the_store_knew(path):
    """It goes on, and its file is gone when it ends."""
    with LMDBSaver(path) as saver, saver.lease("t") as lease:
        taker = start(TAKES_LEASE, path, "takeover", "lease.taken_over:1:kill")
        assert taker.wait(timeout=20) == -signal.SIGKILL
        taker.communicate()
        commit(saver, 0, fence=lease.fence)
    assert [*(path / "leases").iterdir()] == []


def test_a_run_that_cannot_remove_its_lease_gives_it_back_all_the_same(path):
    """The next run gets it at once, and does not take the one before for dead."""
    process = is_stopped_while_it_ends(path, "lease.remove")
    with LMDBSaver(path) as saver:
        with saver.lease("another thread"):
            pass
        with saver.lease("another thread") as lease:
            assert not lease.is_inherited
    process.kill()
    process.communicate()


def test_waiting_for_a_thread_ends_when_its_run_does(path):
    process = start(HOLD, path, stdin=-1)
    assert wait_for_line(process) == "held"
    process.stdin.write("go on\n")
    process.stdin.flush()
    with LMDBSaver(path) as saver, saver.lease("t", on_conflict="wait") as lease:
        assert saver.load(Address("t")).checkpoint.step == 1
        commit(saver, 2, fence=lease.fence)
    process.communicate()


def test_a_lease_that_was_given_back_cannot_be_used(path):
    with LMDBSaver(path) as saver:
        with saver.lease("t") as lease:
            pass
        with pytest.raises(LeaseLostError):
            commit(saver, 0, fence=lease.fence)
        assert saver.load(Address("t")) is None
        assert [*(path / "leases").iterdir()] == []


def test_a_clock_that_goes_back_an_hour_gives_no_smaller_fence(path, monkeypatch):
    with LMDBSaver(path) as saver:
        with saver.lease("t") as first:
            commit(saver, 0, fence=first.fence)
        now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now - 3_600 * 10**9)
        with saver.lease("t") as second:
            commit(saver, 1, fence=second.fence)

    assert second.fence > first.fence


def test_a_batch_of_a_lost_lease_takes_the_others_of_its_commit_with_it(path):
    with LMDBSaver(path) as saver:
        lost = Batch(address=Address("u"), checkpoint=step(0), fence=17)
        with pytest.raises(LeaseLostError):
            saver.commit([Batch(address=Address("t"), checkpoint=step(0)), lost])
        assert saver.load(Address("t", "", id_of(0))) is None
