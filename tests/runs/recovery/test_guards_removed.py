"""What guards are worth: each is taken away, and what it guards against happens.

Beside these: the checksum, the size check and the draft of a new store, syncs, pages
and fences are taken away where they are tested (`test_store_damage`,
`test_store_opening`, `tests.disk`, `test_store_processes`), a saver that acknowledges
too early and one that forgets in `test_crash_harness`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core import recorded_calls
from flowpregel.checkpoint.base import Lease
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ReplayMismatchError, ThreadBusyError
from flowpregel.func import entrypoint, task
from tests.runs.pooling import is_alive, wait_until
from tests.runs.stores import start

pytestmark = pytest.mark.slow


# the lock between processes ------------------------------------------------

WRITER = """
    import shutil
    from flowpregel.storage.locks import FileLock
    if sys.argv[2] == "unlocked":
        FileLock.acquire = lambda self, timeout: True
        FileLock.release = lambda self: None
    try:
        if len(sys.argv) > 3:
            with LMDBSaver(path) as saver:
                shutil.copytree(path, sys.argv[3])  # this drops LMDB's own lock
                print("ready", flush=True)
                sys.stdin.readline()
                for number in range(200):
                    commit(saver, number, thread="one")
        else:
            print("ready", flush=True)
            sys.stdin.readline()
            for number in range(40):
                with LMDBSaver(path) as saver:  # finds nobody who has it open
                    commit(saver, number, thread="other")
        print("committed")
    except StoreError as error:
        print("failed", error)
"""
LOOK = """
    with LMDBSaver(path) as saver:
        steps = [len([*saver.history(Address(name))]) for name in ("one", "other")]
        print("whole" if steps == [200, 40] and saver.verify().ok else f"lost: {steps}")
"""


TRIES = 40


def two_writers(folder: Path, how: str) -> bool:
    """Let two processes write at once; return whether all that was acknowledged is
    there.
    """
    path = folder / "store"
    LMDBSaver(path).close()
    writers = [
        start(WRITER, path, how, *copy, stdin=-1) for copy in ([folder / "copy"], [])
    ]
    assert [each.stdout.readline() for each in writers] == ["ready\n"] * 2
    for each in writers:
        each.stdin.write("go\n")
        each.stdin.flush()
    # Without the lock a process may even be ended by what it finds in the file.
    ended = [each.communicate(timeout=60)[0] for each in writers]
    told = start(LOOK, path).communicate(timeout=60)[0]
    print(ended, told)
    return ended == ["committed\n"] * 2 and told == "whole\n"


def test_with_the_lock_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Although one of them has copied the folder, which drops LMDB's lock."""
    assert two_writers(tmp_path, "locked")


def test_without_the_lock_two_writers_lose_commits(tmp_path: Path) -> None:
    """Acknowledged ones; how many is luck."""
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not two_writers(folder, "unlocked"):
            return
    pytest.fail(f"{TRIES} times two writers without a lock did each other no harm")


# ---------------------------------------------------------------- the lease of a thread


class Unleased(LMDBSaver):
    """Lets any number of runs go on with one thread."""

    def lease(self, *_: Any, **__: Any) -> AbstractContextManager[Lease]:
        """Give a lease that nobody checks."""
        return nullcontext(Lease(None))  # type: ignore[arg-type]


def second_run(saver: LMDBSaver) -> Any:
    """Start a run, and in the middle of it another one of the same thread."""
    begun, go_on = threading.Event(), threading.Event()

    @task
    def wait(n: int) -> int:
        begun.set()
        assert go_on.wait(20)
        return n

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(n: int) -> int:
        return wait(n).result() if n == 1 else n

    first = threading.Thread(
        target=lambda: flow.invoke(1, thread_id="t", durability="sync")
    )
    first.start()
    try:
        assert begun.wait(20)
        return flow.invoke(2, thread_id="t", durability="sync")
    finally:
        go_on.set()
        first.join()


def test_with_the_lease_the_second_run_is_refused(tmp_path: Path) -> None:
    """Before it does anything."""
    with LMDBSaver(tmp_path / "store") as saver, pytest.raises(ThreadBusyError):
        second_run(saver)


def test_without_the_lease_two_runs_go_on_with_one_thread(tmp_path: Path) -> None:
    """Both write to it."""
    with Unleased(tmp_path / "store") as saver:
        assert 2 == second_run(saver)


# what a replayed call is ---------------------------------------------------


def replayed(folder: Path) -> Any:
    """Run a body that fails, and go on with the same body, which calls something else
    by chance.
    """
    asked = ["price", "weight"]

    @task
    def look_up(what: str) -> str:
        return f"the {what}"

    with LMDBSaver(folder / "store") as saver:

        @entrypoint(checkpointer=saver, executor="inline")
        def flow(_: int) -> str:
            found = look_up(asked.pop(0)).result()
            if asked:
                raise OSError("for now")
            return found

        with pytest.raises(OSError, match="for now"):
            flow.invoke(1, thread_id="t", durability="sync")
        return flow.invoke(None, thread_id="t")


def test_with_the_comparison_another_call_is_refused(tmp_path: Path) -> None:
    """What is recorded is not its answer."""
    with pytest.raises(ReplayMismatchError, match="weight"):
        replayed(tmp_path)


def test_without_the_comparison_chance_goes_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call gets a result of its own even then: never that of another."""
    monkeypatch.setattr(recorded_calls, "check_determinism", lambda *_: None)

    assert "the weight" == replayed(tmp_path)


# workers and their coordinator ---------------------------------------------

COORDINATOR = """
import os, sys, time
from flowpregel.executors.processes import ProcessExecutor
def work():
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    time.sleep(60)
if __name__ == "__main__":
    ProcessExecutor(1).submit(work)
    time.sleep(60)
"""
UNGUARDED = (
    "from flowpregel import _linux\n"
    "from flowpregel.executors.processes.coordinator import guard\n"
    "from flowpregel.executors.processes.worker import process\n"
)
WITHOUT = {
    "signal": "_linux.die_with_parent = lambda: None\n",
    "watch": "process.watch_coordinator = lambda coordinator: None\n",
    "guard": "guard.Guard.add = lambda self, pid, mark: None\n",
}
"""How the kernel's signal, the OS thread that waits for the coordinator's end, and the
process that does, are removed.
"""


def outlives(folder: Path, *removed: str) -> bool:
    """Kill a coordinator; return whether its busy worker is still there a second
    later.
    """
    note = folder / "pid"
    (folder / "program.py").write_text(
        COORDINATOR.replace("sys.argv[1]", repr(str(note)))
    )
    # Every Python that finds this imports it as it starts.
    without = "".join(WITHOUT[guard] for guard in removed)
    (folder / "sitecustomize.py").write_text(UNGUARDED + without)
    paths = [str(folder), *sys.path]
    program = subprocess.Popen(
        [sys.executable, str(folder / "program.py")],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
    worker = int(note.read_text())
    program.kill()
    program.wait()
    try:
        wait_until(lambda: not is_alive(worker), seconds=1)
    except AssertionError:
        os.kill(worker, signal.SIGKILL)
        return True
    return False


@pytest.mark.parametrize("left", [(), *WITHOUT])
def test_with_any_of_its_guards_a_worker_ends_with_its_coordinator(
    tmp_path: Path, left: str | tuple[()]
) -> None:
    """In the middle of a task; each of the three does it alone."""
    assert not outlives(tmp_path, *(each for each in WITHOUT if left and each != left))


def test_without_them_a_worker_works_on_for_nobody(tmp_path: Path) -> None:
    """So it is these three that end it, and nothing else."""
    assert outlives(tmp_path, *WITHOUT)
