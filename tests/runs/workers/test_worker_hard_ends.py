"""Tasks that end in the worst places: while they are sent, unpickled, or sent back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import NodeTimeoutError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.types import Command, RetryPolicy, interrupt
from tests.runs import jobs
from tests.runs.pooling import Run, error_of, is_alive, value_of, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, without shared memory: everything goes over the link."""
    with ProcessExecutor(1, grace=0.3, shared_memory=0) as pool:
        yield pool


# ------------------------------------------------ what does not stop by itself

SOON = 20.0
"""Seconds: how busy the machine is does not matter, and nothing here would stop by
then.
"""


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [jobs.wait_for_a_lock, jobs.power])
def test_a_stuck_task_is_timed_out(run: Run, stuck: Any) -> None:
    """After its timeout and the pool's grace."""
    began = time.monotonic()

    error = error_of(run.outcome(stuck, timeout=0.2))

    assert isinstance(error, NodeTimeoutError)
    assert time.monotonic() - began < SOON


@pytest.mark.slow
@pytest.mark.parametrize(
    "stuck", [time.sleep, jobs.wait_for_a_lock, jobs.power, jobs.hold_the_interpreter]
)
def test_a_stuck_task_can_be_cancelled(run: Run, stuck: Any) -> None:
    """As fast as it can be timed out; the next task runs."""
    value_of(run.outcome(jobs.pid))
    job = run.start(stuck, 60)
    began = time.monotonic()

    run.pool.cancel(job.key, kill=True)

    (outcome,) = run.outcomes(job)
    assert "Withdrawn" == type(outcome).__name__
    assert time.monotonic() - began < SOON
    assert value_of(run.outcome(jobs.pid))


SLOW = """
from .part import *
import os, time
open(os.path.join(os.path.dirname(__file__), "began"), "w").close()
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.005)
names = part.__all__
"""


@pytest.mark.slow
def test_a_task_that_imports_a_module_is_stopped_when_that_is_whole(
    tmp_path: Path,
) -> None:
    """The worker lives on, and its next task finds the module as it is to be."""
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").write_text(SLOW)
    (package / "part.py").write_text("__all__ = ['whole']\nwhole = 1\n")
    with ProcessExecutor(1, grace=60.0) as pool:
        run = Run(pool)
        worker = value_of(run.outcome(jobs.pid))
        job = run.start(jobs.import_slowly, tmp_path)
        wait_until((package / "began").exists)
        pool.cancel(job.key, kill=True)
        (package / "go").touch()

        (outcome,) = run.outcomes(job)

        assert "Withdrawn" == type(outcome).__name__
        (tmp_path / "stopped").touch()
        assert (["whole"], worker) == value_of(
            run.outcome(jobs.import_slowly, tmp_path)
        )


# ------------------------------------------------ death on the way


def test_a_worker_that_dies_of_its_input_fails_the_task(run: Run) -> None:
    """It is that task's death, though its code has not begun."""
    error = error_of(run.outcome(jobs.same, jobs.Deadly()))

    assert isinstance(error, WorkerDiedError)
    assert "SIGKILL" in error.cause
    assert value_of(run.outcome(jobs.pid))


@pytest.mark.slow
def test_a_worker_that_dies_while_it_is_sent_to_costs_nothing(run: Run) -> None:
    """The task had not begun: it runs in the worker that takes the place."""
    worker = value_of(run.outcome(jobs.pid))
    os.kill(worker, signal.SIGSTOP)
    job = run.start(len, bytes(64 << 20))

    os.kill(worker, signal.SIGKILL)

    assert 64 << 20 == value_of(run.outcomes(job)[0])
    assert worker != value_of(run.outcome(jobs.pid))


def test_a_result_that_kills_its_worker_fails_the_task(run: Run) -> None:
    """The code had returned; its result has not."""
    error = error_of(run.outcome(jobs.make_deadly))

    assert "it exited with code 7" == error.cause


@pytest.mark.slow
def test_a_result_that_is_never_pickled_is_timed_out(run: Run) -> None:
    """A loop in ``__reduce__`` is a loop in the task."""
    assert isinstance(
        error_of(run.outcome(jobs.make_endless, timeout=0.2)), NodeTimeoutError
    )
    assert value_of(run.outcome(jobs.pid))


def test_a_result_that_refuses_to_be_pickled_is_told(run: Run) -> None:
    """With what its ``__reduce__`` raised."""
    assert "LookupError: not today" in str(error_of(run.outcome(jobs.make_wrong)))


# ------------------------------------------------ a task that dies each time


STUBBORN = RetryPolicy(
    max_attempts=20, initial_interval=0.001, retry_on=WorkerDiedError
)
poison = task(retry_policy=STUBBORN)(jobs.poison)
worse_poison = task(retry_policy=replace(STUBBORN, max_worker_deaths=2))(jobs.poison)
fine = task(jobs.same)


def test_how_many_workers_a_task_may_cost_is_the_policys_word(
    drive: Any, pool: Any, tmp_path: Path
) -> None:
    """Fewer than by default, where new workers are dear."""
    file = tmp_path / "attempts"

    @entrypoint(executor=pool)
    def flow(file: str) -> str:
        return type(worse_poison(file).exception()).__name__

    assert "WorkerDiedError" == drive.invoke(flow, str(file))
    assert "xx" == file.read_text()


@pytest.mark.slow
def test_a_task_that_kills_three_workers_is_given_up(
    drive: Any, pool: Any, tmp_path: Path
) -> None:
    """Whatever its policy says; the rest of the run is done."""
    file = tmp_path / "attempts"

    @entrypoint(executor=pool)
    def flow(count: int) -> list[Any]:
        dead, rest = poison(str(file)), fine.map(range(count))
        return [type(dead.exception()).__name__, *(each.result() for each in rest)]

    assert ["WorkerDiedError", 0, 1, 2] == drive.invoke(flow, 3)
    assert "xxx" == file.read_text()


# ------------------------------------------------ a body that catches everything


@task
def ask(number: int) -> Any:
    try:
        return interrupt(number)
    except Exception:  # noqa: BLE001 - what a user may write
        return "swallowed"


def asked_and_answered(drive: Any, flow: Any) -> tuple[list[Any], Any]:
    """Return what *flow* asks, and what it returns once that is answered with "ok"."""
    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]
    return [each.value for each in asked], drive.invoke(
        flow, Command(resume="ok"), thread_id="1"
    )


def test_a_question_passes_what_catches_errors(drive: Any, pool: Any) -> None:
    """In the worker that asks, and in the body that waits."""

    @entrypoint(executor=pool, checkpointer=InMemorySaver())
    def flow(number: int) -> Any:
        try:
            return ask(number).result()
        except Exception:  # noqa: BLE001 - what a user may write
            return "swallowed"

    assert ([3], "ok") == asked_and_answered(drive, flow)


@task
def ask_whatever(number: int) -> Any:
    try:
        return interrupt(number)
    except:  # noqa: E722 - what a user may write
        return "swallowed"


def test_a_question_is_asked_though_its_task_catches_everything(
    drive: Any, pool: Any
) -> None:
    """In the worker that asks, and in the body that waits: a bare ``except`` has no
    answer.
    """

    @entrypoint(executor=pool, checkpointer=InMemorySaver())
    def flow(number: int) -> Any:
        try:
            return ask_whatever(number).result()
        except:  # noqa: E722 - what a user may write
            return "swallowed"

    assert ([3], "ok") == asked_and_answered(drive, flow)


@task
def ask_below(number: int) -> Any:
    try:
        return ask_whatever(number).result()
    except:  # noqa: E722 - what a user may write
        return "swallowed"


def test_a_question_of_a_nested_task_is_asked_though_its_caller_catches_everything(
    drive: Any, pool: Any
) -> None:
    """The caller is in a worker, and runs again once there is an answer."""

    @entrypoint(executor=pool, checkpointer=InMemorySaver())
    def flow(number: int) -> Any:
        return ask_below(number).result()

    assert ([3], "ok") == asked_and_answered(drive, flow)


# ------------------------------------------------ the coordinator's end


PROGRAM = """
import os, sys, time
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task

@task
def stubborn(number):
    os.write(1, b"")
    print("worker", os.getpid(), flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue

@task
def quick(number):
    return number

with ProcessExecutor(2, grace=30) as pool:
    @entrypoint(executor=pool)
    def flow(number):
        quick(1).result()
        return [each.result() for each in stubborn.map(range(2))]

    flow.invoke(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]
)
def test_a_program_that_is_told_twice_is_gone_with_its_workers(
    tmp_path: Path, number: int
) -> None:
    """Also when its tasks do not care, and its pool would have patience with them."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, "-u", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    workers = [int(program.stdout.readline().split()[-1]) for _ in range(2)]

    program.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(0.3)
    program.send_signal(number)
    program.wait(SOON)
    program.stdout.close()

    wait_until(lambda: not any(is_alive(each) for each in workers), SOON)


@pytest.mark.slow
def test_another_ctrl_c_while_the_pool_ends_leaves_no_traceback() -> None:
    """The program has said what it had to say, and is about to end."""
    program = """
import signal
from flowpregel.executors.processes import ProcessExecutor

pool = ProcessExecutor(1)
assert pool.submit(abs, -1).result() == 1
pool._pool.loop.join = lambda: signal.raise_signal(signal.SIGINT)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (0, "") == (ended.returncode, ended.stderr)
