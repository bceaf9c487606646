"""A run is told to stop from outside: by another OS thread, or another process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel.checkpoint.base import Lease
from flowpregel.checkpoint.leases import LeaseWatch, LiveState
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli import running
from flowpregel.cli.app import app as command
from flowpregel.cli.console import Code
from flowpregel.errors import TaskCancelled
from flowpregel.func import entrypoint, task
from flowpregel.storage.in_memory import MemoryStore
from flowpregel.storage.locks import FENCE, STOP_REQUEST, FileLock
from tests.runs.cli_jobs import half_way, hold, let_go
from tests.runs.conftest import Drive


def test_a_cancelled_run_keeps_what_finished_and_goes_on_another_time(
    drive: Drive, store: LMDBSaver, tmp_path: Path
) -> None:
    """The task in flight is stopped; the one that was done is not done again."""
    log, go = tmp_path / "log", tmp_path / "go"
    hold(go)

    @task
    def work(n: int) -> int:
        with log.open("a") as file:
            file.write(f"{n}\n")
        if n:
            go.read_text()
        return n

    @entrypoint(checkpointer=store)
    def flow(count: int) -> int:
        first = work(0).result()
        if go.is_fifo():
            assert store.cancel("1") is not None
        return first + work(1).result()

    with pytest.raises(TaskCancelled, match="cancelled from outside"):
        drive.invoke(flow, 2, thread_id="1")
    assert store.owner("1") is None
    let_go(go)

    assert 1 == drive.invoke(flow, None, thread_id="1")
    assert 1 == log.read_text().split().count("0")


def test_nothing_can_be_cancelled_where_nothing_runs(store: LMDBSaver) -> None:
    """The answer is that there was no owner."""
    assert store.cancel("nobody") is None
    assert store.owner("nobody") is None


def test_a_request_reaches_no_later_run(tmp_path: Path) -> None:
    """It is meant for one lease: the next has another fence."""
    told: list[str] = []
    watch = LeaseWatch()
    file = FileLock(str(tmp_path / "lease"))
    file.acquire(0)
    for fence in (5, 6):
        file.write(FENCE, fence)
        lease = Lease(fence)
        lease.stop = lambda _, fence=fence: told.append(str(fence))  # type: ignore[misc]
        watch.add(file, LiveState(lease, MemoryStore().table(b"live"), b""))
        if fence == 5:
            file.write(STOP_REQUEST, 5)
        watch.look()
        watch.drop(file)
    file.close()

    assert ["5"] == told


def test_a_run_that_cannot_be_told_yet_is_told_when_it_can(tmp_path: Path) -> None:
    """A request that comes between the lease and the run's first step is not lost."""
    told: list[str] = []
    watch = LeaseWatch()
    file = FileLock(str(tmp_path / "lease"))
    file.acquire(0)
    file.write(FENCE, 5)
    lease = Lease(5)
    watch.add(file, LiveState(lease, MemoryStore().table(b"live"), b""))
    file.write(STOP_REQUEST, 5)

    watch.look()
    lease.stop = told.append
    watch.look()
    watch.drop(file)
    file.close()

    assert 1 == len(told)


@pytest.mark.slow
def test_the_command_stops_the_run_of_another_process(tmp_path: Path) -> None:
    """Its workers too; both processes say that what finished is kept."""
    with half_way(tmp_path) as process:
        asked = CliRunner().invoke(
            command, ["cancel", "job", "--store", str(tmp_path / "store")]
        )
        _, told = process.communicate(timeout=30)

    assert Code.OK == asked.exit_code, asked.output
    assert "stopped: job; finished work is kept\n" == asked.stdout
    assert Code.STOPPED == process.returncode
    assert "cancelled from outside" in told
    assert "resume with: flowpregel resume job --store store" in told
    with LMDBSaver(tmp_path / "store") as saver:
        assert saver.owner("job") is None


@pytest.mark.slow
def test_a_stopped_owner_is_asked_and_stops_when_it_goes_on(tmp_path: Path) -> None:
    """The command does not claim what has not happened."""
    line = [
        "cancel",
        "job",
        "--store",
        str(tmp_path / "store"),
        "--json",
        "--wait",
        "0.3",
    ]

    with half_way(tmp_path, "--quiet") as process:
        process.send_signal(signal.SIGSTOP)
        asked = CliRunner().invoke(command, line)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=30)

    assert Code.FAILED == asked.exit_code, asked.output
    assert "asked" == json.loads(asked.stdout)["status"]
    assert f"process {process.pid} on" in json.loads(asked.stdout)["owner"]
    assert Code.STOPPED == process.returncode


@pytest.mark.slow
def test_an_owner_that_was_stopped_in_a_commit_is_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the store, so the run cannot be paused, which the command says."""
    monkeypatch.setattr(running, "_LOCK_TIMEOUT", 0.05)
    line = ["cancel", "job", "--store", str(tmp_path / "store"), "--wait", "0"]
    monkeypatch.setenv("FLOWPREGEL_FAULT", "store.commit.before:2:stop")

    with half_way(tmp_path, "--quiet", told=()) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        monkeypatch.delenv("FLOWPREGEL_FAULT")
        asked = CliRunner().invoke(command, line)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)

    assert Code.OK == asked.exit_code, asked.output
    assert "the run is not paused, so `work` may resume it" in asked.stderr
    assert Code.STOPPED == process.returncode


def test_the_command_refuses_where_nothing_runs(store: LMDBSaver) -> None:
    """It is asked for what cannot be done."""

    @entrypoint(checkpointer=store, executor="inline")
    def flow(value: int) -> int:
        return value

    flow.invoke(1, thread_id="1")

    result = CliRunner().invoke(command, ["cancel", "1", "--store", store.path])

    assert Code.USAGE == result.exit_code
    assert "nothing runs on thread '1'" in result.stderr
