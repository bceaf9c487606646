"""Processes that share a store's folder and do not see each other by their numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreBusyError, ThreadBusyError
from tests.runs.stores import KEY, PRELUDE, ROOT, commit, newest

pytestmark = pytest.mark.slow

INSIDE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

LEASE = """
    saver = LMDBSaver(path)
    with saver.lease("t") as lease:
        commit(saver, 0, fence=lease.fence)
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        commit(saver, 1, fence=lease.fence)
    saver.close()
"""
WRITE_LOCK = """
    saver = LMDBSaver(path)
    commit(saver, 0)
    with environment_of(path).exclusively(5):
        print(os.getpid(), flush=True)
        sys.stdin.readline()
    commit(saver, 1)
    saver.close()
"""


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    """Skip where no namespace of process numbers can be made."""
    if (
        shutil.which(INSIDE[0]) is None
        or subprocess.run([*INSIDE, "true"], check=False).returncode
    ):
        pytest.skip("a pid namespace cannot be made here: not root, or not allowed")


@contextmanager
def elsewhere(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start *code* in a pid namespace of its own; at the end it goes on, and ends
    well.
    """
    with subprocess.Popen(
        [*INSIDE, sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLOWPREGEL_STORE_KEY": KEY},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        if process.returncode is None:
            process.communicate("go on\n", timeout=60)
            assert process.returncode == 0


def test_a_lease_that_is_held_in_another_pid_namespace_is_held(path: Path) -> None:
    """Its owner's number is another process's here, or nobody's."""
    with elsewhere(LEASE, path), LMDBSaver(path) as saver:
        owner = saver.owner("t")
        assert owner is not None
        assert str(owner).startswith("process 1 in another pid namespace on ")
        assert saver.thread("t").status == "running"
        with (
            pytest.raises(ThreadBusyError, match="process 1 in another pid namespace"),
            saver.lease("t"),
        ):
            pass

    assert newest(path) == 1
    with LMDBSaver(path) as saver, saver.lease("t"):
        assert saver.owner("t").pid == os.getpid()


def test_one_whose_owner_was_killed_there_is_free(path: Path) -> None:
    """Although there is always a process 1 here."""
    with elsewhere(LEASE, path) as process, LMDBSaver(path) as saver:
        process.kill()  # and with it what it has started
        process.wait(timeout=60)
        # what it has started ends after it
        with saver.lease("t", on_conflict="wait") as lease:
            commit(saver, 1, fence=lease.fence)

    assert newest(path) == 1


def test_a_write_lock_held_in_another_pid_namespace_is_held(path: Path) -> None:
    """Who waits for it is told by whom."""
    options = StoreOptions(lock_timeout=0.3)
    with elsewhere(WRITE_LOCK, path):
        with pytest.raises(StoreBusyError, match="process 1 in another pid namespace"):
            LMDBSaver(path, options=options)
        with LMDBSaver(path, readonly=True) as saver:
            assert saver.thread("t").step == 0

    assert newest(path) == 1


def test_processes_of_two_namespaces_write_in_turn(path: Path) -> None:
    """Neither takes the other's place in LMDB's table of readers."""
    code = """
        print(os.getpid(), flush=True)
        with LMDBSaver(path) as saver:
            for number in range(50):
                commit(saver, number, thread="there")
                assert saver.thread("there").step == number
    """
    with elsewhere(code, path) as process, LMDBSaver(path) as saver:
        for number in range(50):
            commit(saver, number, thread="here")
            assert saver.thread("here").step == number
        process.wait(timeout=60)
        assert process.returncode == 0

    assert newest(path, "here") == newest(path, "there") == 49
