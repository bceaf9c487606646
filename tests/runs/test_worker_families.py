"""What a task has started ends when nobody is left who would want it."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, is_alive

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
HOWS = [
    pytest.param({}, id="a child"),
    pytest.param({"start_new_session": True}, id="a child in a session of its own", marks=linux),
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
    program.write_text(textwrap.dedent(PROGRAM.replace("{options}", repr(options))), "utf-8")
    coordinator = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert coordinator.stdout is not None
    child = int(coordinator.stdout.readline().split()[-1])
    assert is_alive(child)

    coordinator.kill()
    coordinator.wait()

    wait_for_end(child)
    coordinator.stdout.close()


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
    while not file.exists():
        time.sleep(0.005)
    child = int(file.read_text("ascii"))

    run.pool.cancel(job.key, kill=True)
    run.outcomes(job)

    wait_for_end(child)
