"""A run that outlives the machine that enqueued it: another one runs it, and a third
watches it.

Folders stand for machines: each has its own copy of the program, and that of the
machine that enqueues is gone before the run begins.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.storage.locks import LockHolder
from tests.runs.cli_jobs import environment

pytestmark = pytest.mark.slow

PROGRAM = """
import os
from flowpregel import entrypoint, task


@task
def where(name):
    print("working on", name)
    return f"{name} in {os.path.basename(os.getcwd())}"


@entrypoint(checkpointer="runs.lmdb")
def study(name):
    return where(name).result()
"""


class Machine:
    """A working folder, in which commands are started.

    Args:
        folder: The folder, which is created.
        url: The store.
        program: Whether the folder has the program.
    """

    def __init__(self, folder: Path, url: str, *, program: bool = True) -> None:
        folder.mkdir()
        self.folder = folder
        self._url = url
        if program:
            (folder / "far_study.py").write_text(PROGRAM)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command on the store."""
        return subprocess.Popen(
            [sys.executable, "-m", "flowpregel", *words, "--store", self._url],
            cwd=self.folder,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def next_line(process: subprocess.Popen[str], part: str) -> str:
    """Return the next line on stderr that contains a text."""
    assert process.stderr is not None
    for line in process.stderr:
        if part in line:
            return line
    raise AssertionError(f"{process.args} has not printed {part!r}")


def enqueued_at(laptop: Machine) -> subprocess.Popen[str]:
    """Start a command that enqueues a run and waits for its end."""
    words = ("far_study:study", "--id=s", '--input="wing"', "--remote", "--wait")
    return laptop.start("enqueue", *words)


def test_a_run_outlives_the_machine_that_enqueued_it(
    tmp_path: Path, postgres_url: str
) -> None:
    """It is run elsewhere, and watched and read from a third machine."""
    laptop = Machine(tmp_path / "laptop", postgres_url)
    cluster = Machine(tmp_path / "cluster", postgres_url)
    office = Machine(tmp_path / "office", postgres_url, program=False)
    with enqueued_at(laptop) as submitter:
        next_line(submitter, "no process of `flowpregel work` takes it now")
        submitter.kill()
    shutil.rmtree(laptop.folder)

    with office.start("watch", "s") as watcher:
        next_line(watcher, "no process of `flowpregel work` takes it now")
        with cluster.start("work", "--until-empty") as worker:
            worked, _ = worker.communicate()
        watched, _ = watcher.communicate()
    with office.start("logs", "s") as reader:
        logs, _ = reader.communicate()

    assert "done: s" == worked.splitlines()[-1]
    assert "s: done" == watched.splitlines()[-1]
    assert 0 == watcher.returncode
    assert "working on wing" in logs
    with PostgresSaver(postgres_url, readonly=True) as saver:
        state = saver.get_tuple({"configurable": {"thread_id": "s"}})
    assert state is not None
    assert "wing in cluster" in str(state.checkpoint["channel_values"])


def test_a_machine_without_the_program_says_so_to_the_one_that_waits(
    tmp_path: Path, postgres_url: str
) -> None:
    """The wait names the process, the host and the module, and the run stays."""
    laptop = Machine(tmp_path / "laptop", postgres_url)
    cluster = Machine(tmp_path / "cluster", postgres_url, program=False)
    with enqueued_at(laptop) as submitter:
        next_line(submitter, "no process of `flowpregel work` takes it now")
        (laptop.folder / "far_study.py").unlink()
        with cluster.start("work") as worker:
            line = next_line(submitter, "cannot begin it")
            submitter.communicate()
            worker.terminate()
            worked, _ = worker.communicate()

    host = LockHolder.me().host
    assert f"process {worker.pid} on {host} cannot begin it: far_study cannot" in line
    assert f"Install the program on {host}" in line
    assert 1 == submitter.returncode
    assert "failed: s: ConfigurationError: far_study cannot be imported" in worked
    with PostgresSaver(postgres_url, readonly=True) as saver:
        thread = saver.thread("s")
    assert thread is not None
    assert "enqueued" == thread.status
