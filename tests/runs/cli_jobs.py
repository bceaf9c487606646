"""A job that comes half-way until it is let go on, run by the command in a process of
its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "flowpregel.cli"]
RUN = [*COMMAND, "run", "job.py:job", "--input", "[0, 1, 2, 3]", "--store", "store"]

JOB = """
from flowpregel.func import entrypoint, task
import pathlib, sys

@task
def work(n):
    print("worked", n, flush=True)
    if n > 1:
        pathlib.Path("go").read_text()
    return n

@entrypoint()
def job(numbers):
    futures = work.map(numbers)
    total = futures[0].result()
    print("got the first", file=sys.stderr, flush=True)
    return total + sum(future.result() for future in futures[1:])
"""


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which the command finds the package, with *more* in
    it.
    """
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def hold(go: Path) -> None:
    """Let whoever reads the file *go* wait, until the reader is stopped."""
    os.mkfifo(go)


def let_go(go: Path) -> None:
    """Let those who read the file *go* from now on pass."""
    go.unlink()
    go.touch()


@contextmanager
def half_way(
    folder: Path, *more: str, told: Collection[str] = ("got the first",)
) -> Iterator[subprocess.Popen[str]]:
    """Start the job, and give its process when it has *told* that much.

    It runs in a process group of its own, none of which outlives the ``with`` block.
    """
    (folder / "job.py").write_text(JOB)
    hold(folder / "go")
    with subprocess.Popen(
        [*RUN, *more],
        cwd=folder,
        env=environment(),
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            awaited = {*told}
            while awaited:
                line = process.stderr.readline()
                awaited = {words for words in awaited if words not in line}
                assert process.poll() is None
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
