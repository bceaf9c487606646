"""Files of a task: outputs appear whole, and a scratch folder goes with its attempt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowpregel import get_runtime
from flowpregel.errors import WorkerDiedError
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs.cli_jobs import environment
from tests.runs.crashes import AT_ONCE
from tests.runs.notes import Notes
from tests.runs.pooling import wait_until

LONG = 60.0
EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]


@task(retry_policy=AT_ONCE)
def write(file: str, seen: Notes) -> str:
    """Write the file in two attempts, the first of which fails half-way."""
    runtime = get_runtime()
    part = runtime.output(file)
    part.write_text("half")
    seen.append(Path(file).exists())
    if len(seen) == 1:
        raise ValueError("the first time")
    part.write_text("whole")
    return str(part)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_output_appears_when_its_task_has_returned(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """Never half of it, and nothing beside it."""
    file, seen = tmp_path / "new" / "result.txt", Notes()

    @entrypoint(executor=executor)
    def flow(_: int) -> str:
        return write(str(file), seen).result()

    part = Path(drive.invoke(flow, 0))

    assert "whole" == file.read_text()
    assert [False, False] == seen
    assert file.parent == part.parent
    assert [file] == [*file.parent.iterdir()]


@task
def replace_and_fail(file: str) -> None:
    get_runtime().output(file).write_text("new")
    raise ValueError("no")


def test_a_task_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """What it wrote is removed."""
    file = tmp_path / "result.txt"
    file.write_text("old")

    @entrypoint(executor="threads")
    def flow(_: int) -> None:
        replace_and_fail(str(file)).result()

    with pytest.raises(ValueError, match="no"):
        flow.run(0)

    assert "old" == file.read_text()
    assert [file] == [*tmp_path.iterdir()]


@task
def forget_to_write(file: str) -> None:
    get_runtime().output(file)


def test_an_output_that_was_not_written_fails_its_task(tmp_path: Path) -> None:
    """By the name of the file."""

    @entrypoint(executor="threads")
    def flow(_: int) -> None:
        forget_to_write(str(tmp_path / "result.txt")).result()

    with pytest.raises(FileNotFoundError, match=r"result\.txt"):
        flow.run(0)


@task(retry_policy=AT_ONCE)
def scratch(seen: Notes) -> None:
    folder = get_runtime().scratch
    seen.append((str(folder), [*folder.iterdir()], folder == get_runtime().scratch))
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    if len(seen) == 1:
        raise ValueError("again")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_attempt_has_a_scratch_folder_of_its_own(
    drive: Any, executor: str
) -> None:
    """Empty at first, and gone afterwards."""
    seen = Notes()

    @entrypoint(executor=executor)
    def flow(_: int) -> None:
        scratch(seen).result()

    drive.invoke(flow, 0)

    (first, *told), (second, *told_again) = seen
    assert first != second
    assert [[], True] == told == told_again
    assert not os.path.exists(first)
    assert not os.path.exists(second)


def test_an_async_task_has_both(tmp_path: Path) -> None:
    """On the event loop."""
    folders = []

    @task
    async def work() -> None:
        folders.append(get_runtime().scratch)
        get_runtime().output(tmp_path / "a").write_text("a")

    @entrypoint()
    async def flow(_: int) -> None:
        await work()

    asyncio.run(flow.arun(0))

    assert "a" == (tmp_path / "a").read_text()
    assert not folders[0].exists()


@task
def die_with_scratch(seen: Notes) -> None:
    seen.append(str(get_runtime().scratch))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_scratch_of_a_killed_worker_is_removed() -> None:
    """By the guard of its pool."""
    seen = Notes()
    with ProcessExecutor(1) as pool:

        @entrypoint(executor=pool)
        def flow(_: int) -> None:
            die_with_scratch(seen).result()

        with pytest.raises(WorkerDiedError):
            flow.run(0)
        wait_until(lambda: not any(map(os.path.exists, seen)), LONG)

    assert 1 == len(seen)


PROGRAM = """
import os, signal
from flowpregel import get_runtime
from flowpregel.func import entrypoint, task

@task
def work():
    print(get_runtime().scratch, flush=True)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()

@entrypoint(executor="processes")
def flow(_: int) -> None:
    work().result()

if __name__ == "__main__":
    flow.run(0)
"""


@pytest.mark.slow
def test_the_scratch_of_a_killed_program_is_removed(tmp_path: Path) -> None:
    """The guard outlives it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(TMPDIR=str(temporary)),
        check=False,
        timeout=LONG,
    )

    assert -signal.SIGKILL == done.returncode
    wait_until(lambda: not [*temporary.glob("flowpregel-*")], LONG)
