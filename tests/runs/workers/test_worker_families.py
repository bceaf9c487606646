"""What a task has started ends when nobody is left who would want it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.processes.wire import guard_process
from flowpregel.executors.processes.wire.guard_process import processes_with
from tests.runs.pooling import Run, is_alive, value_of, wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
HOWS = [
    pytest.param({}, id="a child"),
    pytest.param(
        {"start_new_session": True}, id="a child in a session of its own", marks=linux
    ),
]

PROGRAM = """
    import subprocess, sys, time
    from flowpregel import entrypoint, task

    @task
    def start(options):
        child = subprocess.Popen(["sleep", "600"], **options)
        print("child", child.pid, flush=True)
        time.sleep(600)

    @entrypoint(executor="processes")
    def flow(options):
        return start(options).result()

    if __name__ == "__main__":
        flow.invoke({options})
"""


@pytest.fixture
def run() -> Iterator[Run]:
    """Return a run on a pool of one worker."""
    with ProcessExecutor(1, grace=0.3) as pool:
        yield Run(pool)


def wait_for_end(pid: int, seconds: float = 30.0) -> None:
    """Wait until process *pid* has ended; fail after *seconds*."""
    end = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < end, f"process {pid} lives on"
        time.sleep(0.005)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("options", HOWS)
def test_what_a_task_has_started_ends_with_a_killed_coordinator(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """The worker is killed by the kernel: it cannot do it."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(PROGRAM.replace("{options}", repr(options))), "utf-8"
    )
    coordinator = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True
    )
    assert coordinator.stdout is not None
    child = int(coordinator.stdout.readline().split()[-1])
    assert is_alive(child)

    coordinator.kill()
    coordinator.wait()

    wait_for_end(child)
    coordinator.stdout.close()


def test_the_guard_reads_what_it_was_told_before_the_coordinator_ended() -> None:
    """It may have been starting then, or busy with another worker."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)

    subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            guard_process.__file__,
            str(ended.pid),
            os.devnull,
        ],
        input=f"+ {worker.pid} mark\n".encode(),
        check=True,
    )

    try:
        assert -signal.SIGKILL == worker.wait(1.0)
    finally:
        worker.kill()


def start_and_sleep(options: dict[str, Any]) -> None:
    """Start a process, say in a file which, and wait: a stop ends that."""
    file = Path(options.pop("file"))
    child = subprocess.Popen(["sleep", "600"], **options)
    file.with_suffix(".new").write_text(str(child.pid), "ascii")
    file.with_suffix(".new").replace(file)
    time.sleep(600)


def leave_behind(file: str) -> int:
    """Start a process that is to go on, and return the worker's pid."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(file).write_text(str(child.pid), "ascii")
    return os.getpid()


def pid_in(file: Path) -> int:
    """Wait until a pid stands in *file*, and return it."""
    while not file.exists():
        time.sleep(0.005)
    return int(file.read_text("ascii"))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("options", HOWS)
@pytest.mark.parametrize("reason", ["a cancel", "a timeout"])
def test_what_a_task_has_started_ends_when_the_task_is_stopped(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Although it heeds that, so that its worker lives on; and so does what others have
    left.
    """
    with ProcessExecutor(1, grace=20.0) as pool:
        run = Run(pool)
        worker = value_of(run.outcome(leave_behind, str(tmp_path / "server")))
        server = pid_in(tmp_path / "server")
        time.sleep(0.05)  # when a process began is known to hundredths of a second
        given = {**options, "file": str(tmp_path / "child")}
        job = run.start(
            start_and_sleep, given, timeout=1.0 if reason == "a timeout" else None
        )
        child = pid_in(tmp_path / "child")

        if reason == "a cancel":
            pool.cancel(job.key, kill=True)
        run.outcomes(job)

        wait_for_end(child)
        assert is_alive(server)
        assert worker == value_of(run.outcome(leave_behind, str(tmp_path / "other")))
    for pid in (server, pid_in(tmp_path / "other")):
        os.kill(pid, signal.SIGKILL)


BREEDER = """
import subprocess, time
for _ in range(400):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(flush=True)
time.sleep(600)
"""


def start_one_that_starts_others(tag: str) -> None:
    """Start a process that goes on to start others, and wait: a stop ends that."""
    child = subprocess.Popen(
        [sys.executable, "-c", BREEDER],
        env={**os.environ, "TAG": tag},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    Path(tag).touch()
    time.sleep(600)


@linux
@pytest.mark.slow
def test_what_is_being_started_while_a_task_is_stopped_ends_too(tmp_path: Path) -> None:
    """When the task has ended nothing of it is left; what the next one starts lives
    on.
    """
    tag = str(tmp_path / "began")
    with ProcessExecutor(1, grace=20.0) as pool:
        run = Run(pool)
        job = run.start(start_one_that_starts_others, tag)
        wait_until(Path(tag).exists)

        pool.cancel(job.key, kill=True)
        run.outcomes(job)

        assert [] == processes_with({f"TAG={tag}".encode()})
        value_of(run.outcome(leave_behind, str(tmp_path / "other")))
        assert is_alive(pid_in(tmp_path / "other"))
    os.kill(pid_in(tmp_path / "other"), signal.SIGKILL)


EXECUTES_LATER = (
    "import os; input(); os.execve('/bin/sleep', ['sleep', '60'], {%r: '1'})"
)


@linux
def test_a_process_whose_environment_is_not_there_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells the parent that a program has been started, and gives the
    program its environment some microseconds later.
    """
    tag = f"STARTED_BY_{tmp_path.name}"
    began = time.monotonic()
    code = [sys.executable, "-c", EXECUTES_LATER % tag]
    with subprocess.Popen(code, stdin=subprocess.PIPE, env={}) as process:

        def execute(_: float) -> None:
            assert process.stdin is not None
            if not process.stdin.closed:
                process.stdin.write(b"\n")
                process.stdin.close()
            while not process_is_tagged() and process.poll() is None:
                pass

        def process_is_tagged() -> bool:
            return process.pid in processes_with({f"{tag}=1".encode()})

        monkeypatch.setattr(guard_process.time, "sleep", execute)
        guard_process.end_processes_with({f"{tag}=1".encode()}, began)
        monkeypatch.undo()

        assert -signal.SIGKILL == process.wait(60)


EATER = (
    "import time; much = bytearray(b'x') * (200 << 20); print('full', flush=True); "
    "time.sleep(600)"
)


def eat_in_a_child(_: Any) -> tuple[int, int]:
    """Have a child use much memory, and leave it behind; return the pids of the two."""
    child = subprocess.Popen([sys.executable, "-c", EATER], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return os.getpid(), child.pid


@linux
@pytest.mark.slow
def test_the_memory_of_a_worker_is_that_of_what_its_tasks_have_started_too() -> None:
    """It is replaced, and they end with it."""
    with ProcessExecutor(1, worker_max_rss=180 << 20) as pool:
        run = Run(pool)
        worker, child = value_of(run.outcome(eat_in_a_child))

        assert worker != value_of(run.outcome(eat_in_a_child))[0]
        wait_for_end(child)


def start_and_hang(options: dict[str, Any]) -> None:
    """Start a process, say in a file which, and heed no signal."""
    file = Path(options.pop("file"))
    child = subprocess.Popen(["sleep", "600"], **options)
    file.with_suffix(".new").write_text(str(child.pid), "ascii")
    file.with_suffix(".new").replace(file)
    while True:
        with contextlib.suppress(BaseException):
            ctypes.PyDLL(None).sleep(60)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("options", HOWS)
def test_what_a_task_has_started_ends_with_a_worker_that_is_killed(
    options: dict[str, Any], tmp_path: Path, run: Run
) -> None:
    """Here by a cancel that its task does not heed."""
    file = tmp_path / "child"
    job = run.start(start_and_hang, {**options, "file": str(file)})
    child = pid_in(file)

    run.pool.cancel(job.key, kill=True)
    run.outcomes(job)

    wait_for_end(child)
