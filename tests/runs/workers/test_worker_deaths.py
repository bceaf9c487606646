"""Workers that die, hang or are stopped cost their one task, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Withdrawn
from flowpregel.errors import NodeTimeoutError, TaskExitError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs import jobs
from tests.runs.pooling import Run, error_of, is_alive, value_of, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers that stops tasks quickly."""
    with ProcessExecutor(2, grace=0.3) as pool:
        yield pool


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1])
def test_a_task_whose_worker_is_killed_fails_with_the_signals_name(
    run: Run, number: int
) -> None:
    """The post-mortem says task, pid and signal."""
    error = error_of(run.outcome(jobs.die_of, number))

    assert isinstance(error, WorkerDiedError)
    assert "die_of" == error.task
    assert signal.Signals(number).name in str(error)
    assert "peak memory" in error.report


def test_a_segfault_is_reported_with_the_line_it_happened_on(run: Run) -> None:
    """The worker's faulthandler dump comes along."""
    error = error_of(run.outcome(jobs.segfault))

    assert "SIGSEGV" in error.cause
    assert "in segfault" in error.report


@pytest.mark.parametrize("code", [0, 3])
def test_a_task_that_leaves_its_process_fails_with_the_exit_code(
    run: Run, code: int
) -> None:
    """Code 0 is no success: the task has not returned."""
    assert (
        f"it exited with code {code}" == error_of(run.outcome(jobs.leave, code)).cause
    )


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_task_that_tries_to_end_the_program_fails(
    run: Run, error: BaseException
) -> None:
    """It is that task's failure, and its worker lives on."""
    assert isinstance(error_of(run.outcome(jobs.raise_it, error)), TaskExitError)


def test_the_next_task_after_a_death_runs(run: Run) -> None:
    """The pool never breaks as a whole."""
    run.outcome(jobs.die_of, signal.SIGKILL)

    assert value_of(run.outcome(jobs.pid)) != os.getpid()


def test_siblings_of_a_killed_task_finish_undisturbed(run: Run, tmp_path: Path) -> None:
    """They go on where they are: none of them begins a second time."""
    begun, end = tmp_path / "begun", tmp_path / "end"
    sibling = run.start(jobs.note_and_wait, (str(begun), str(end)))
    wait_until(begun.exists)

    for _ in range(3):
        assert isinstance(
            error_of(run.outcome(jobs.die_of, signal.SIGKILL)), WorkerDiedError
        )
    assert sibling.task.id not in run.ended_at
    end.touch()

    assert is_alive(value_of(run.outcomes(sibling)[0]))
    assert "begun\n" == begun.read_text()


# ------------------------------------------------ timeouts and cancellation


@pytest.mark.parametrize(
    "task",
    [jobs.loop_for_ever, time.sleep, jobs.hold_the_interpreter, jobs.ignore_everything],
)
@pytest.mark.slow
def test_a_task_is_stopped_within_timeout_and_grace(run: Run, task: Any) -> None:
    """Long before its own end. In Python code the signal is enough; what ignores it is
    killed.
    """
    before = value_of(run.outcome(jobs.pid))
    error = error_of(run.outcome(task, 60, timeout=0.2))

    assert isinstance(error, NodeTimeoutError)
    assert is_alive(before) or task in (
        jobs.hold_the_interpreter,
        jobs.ignore_everything,
    )


def test_a_task_within_its_timeout_is_left_alone(run: Run) -> None:
    """The time begins when the task does."""
    assert value_of(run.outcome(jobs.pid, timeout=5))


@pytest.mark.slow
def test_a_running_task_can_be_cancelled(run: Run) -> None:
    """It ends as withdrawn, and its worker goes on."""
    job = run.start(jobs.loop_for_ever)
    run.pool.cancel(job.key, kill=True)

    assert [Withdrawn()] == run.outcomes(job)


def test_a_waiting_task_can_be_withdrawn(run: Run) -> None:
    """Nothing has to be killed for it."""
    running = [run.start(jobs.busy, 0.05) for _ in range(2)]
    waiting = run.start(jobs.pid)
    run.pool.cancel(waiting.key, kill=False)

    assert Withdrawn() == run.outcomes(waiting, *running)[0]


def test_a_late_stop_does_not_hit_the_next_task(run: Run) -> None:
    """The signal names the task that it is meant for."""
    for _ in range(50):
        job = run.start(jobs.pid)
        run.pool.cancel(job.key, kill=True)
        after = run.start(jobs.busy, 0.001)
        assert value_of(run.outcomes(after, job)[0]) >= 0.001


# ------------------------------------------------ what is left behind


def test_what_a_task_started_ends_with_its_worker() -> None:
    """A process group is killed with its leader."""
    with ProcessExecutor(1) as pool:
        child = value_of(Run(pool).outcome(jobs.start_child))
        assert is_alive(child)

    wait_until(lambda: not is_alive(child))


def test_a_fork_that_comes_out_of_a_task_is_not_a_second_worker(run: Run) -> None:
    """One result arrives, and the link stays whole."""
    assert 5 == value_of(run.outcome(jobs.fork_and_return))
    assert value_of(run.outcome(jobs.pid))


def test_a_closed_pool_leaves_no_process_and_no_descriptor() -> None:
    """Whatever its workers were doing."""
    before = len(os.listdir("/proc/self/fd"))
    pool = ProcessExecutor(2, grace=0.2)
    run = Run(pool)
    pids = [
        value_of(each)
        for each in run.outcomes(*(run.start(jobs.pid) for _ in range(4)))
    ]
    job = run.start(jobs.loop_for_ever)

    pool.close()

    assert [Withdrawn()] == run.outcomes(job)
    assert [] == [each for each in pids if is_alive(each)]
    # loky's trackers, once a program
    assert len(os.listdir("/proc/self/fd")) <= before + 4


COORDINATOR = """
import os, sys, time
from flowpregel.executors.processes import ProcessExecutor
if __name__ == "__main__":
    pool = ProcessExecutor(2)
    future = pool.submit(os.getpid)
    print(future.result(), flush=True)
    pool.submit(time.sleep, 60)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def test_a_worker_leaves_sigterm_to_its_coordinator(run: Run) -> None:
    """SLURM and systemd send it to all processes of a job."""
    assert "alive" == value_of(run.outcome(jobs.survive, signal.SIGTERM))


def test_sigterm_ends_the_processes_that_a_task_starts(run: Run) -> None:
    """Forked ones, too, as `Process.terminate` demands."""
    codes = value_of(run.outcome(jobs.terminate_children, None))

    assert [-signal.SIGTERM, -signal.SIGTERM] == codes


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
)
def test_workers_end_with_their_coordinator(number: int) -> None:
    """However it ends, also while a task runs."""
    program = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    workers = [int(program.stdout.readline()) for _ in range(2)]

    program.send_signal(number)
    program.wait(20)
    program.stdout.close()

    wait_until(lambda: not any(is_alive(each) for each in workers))


def test_a_run_whose_pool_was_closed_waits_without_spinning() -> None:
    """It may wait for something that runs elsewhere."""
    pool = ProcessExecutor(1)
    run = Run(pool)
    run.outcome(jobs.pid)
    pool.close()
    deadline, used = time.monotonic_ns() + 200_000_000, time.process_time()

    assert [] == run.mailbox.take(deadline)

    assert time.monotonic_ns() >= deadline
    assert time.process_time() - used < 0.1


def test_a_fork_of_the_coordinator_is_refused_by_the_pool(run: Run) -> None:
    """Its workers belong to the process that started them."""
    run.outcome(jobs.pid)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        outcome = Run(run.pool).outcome(jobs.pid)
        os.write(write, type(getattr(outcome, "error", None)).__name__.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)

    assert b"ExecutorUnavailableError" == os.read(read, 100)
    os.close(read)
    assert value_of(run.outcome(jobs.pid))
