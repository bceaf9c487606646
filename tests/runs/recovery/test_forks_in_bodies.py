"""A process that a body or a task forks: it gets an error for what it cannot do, and it
ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel._interrupts import defer_interrupts
from flowpregel.executors import ProcessExecutor
from tests.runs.cli_jobs import environment
from tests.runs.pooling import call_task

LONG = 60.0


@task(executor="threads")
def double(number: int) -> int:
    return 2 * number


def in_fork(work: Callable[[], Any]) -> tuple[str, int]:
    """Do *work* in a fork; return what it raised there as text, and the fork's pid."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, repr(work()).encode())
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    return text, child


def test_the_os_thread_that_forked_defers_signals_in_the_fork() -> None:
    """It is the main thread there, on which Python calls the signal handlers."""
    notes: list[str] = []

    def raise_signal() -> list[str]:
        signal.signal(signal.SIGINT, lambda *_: notes.append("called"))
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            notes.append("deferred")
        return notes

    with ThreadPoolExecutor(1) as executor:
        text, _ = executor.submit(in_fork, raise_signal).result()

    assert "['deferred', 'called']" == text


def test_a_fork_of_a_body_that_calls_a_task_gets_an_error() -> None:
    """It names both processes and what to do; the body itself goes on."""

    @entrypoint()
    def flow(number: int) -> tuple[int, str, int]:
        text, child = in_fork(lambda: double(number).result())
        return double(number).result(), text, child

    result, text, child = flow.invoke(21)

    assert 42 == result
    assert text.startswith(f"ExecutorUnavailableError: process {child} was forked")
    assert f"from process {os.getpid()} inside 'flow'" in text
    assert "os._exit()" in text


def test_a_fork_that_waits_for_a_call_of_its_body_gets_the_error_too() -> None:
    """Its result arrives in the other process alone."""

    @entrypoint()
    def flow(_: int) -> str:
        blocked = wait_for_file(".")
        text, _ = in_fork(lambda: blocked.result())
        blocked.cancel()
        return text

    with ProcessExecutor(1) as pool:
        text = flow.copy({"executor": pool}).invoke(1)

    assert text.startswith("ExecutorUnavailableError: process")


@task
def wait_for_file(folder: str) -> None:
    while not (Path(folder) / "never").exists():
        os.sched_yield()


def test_a_fork_of_a_coroutine_that_calls_a_task_gets_an_error() -> None:
    """As one of a body that is no coroutine."""

    async def body(number: int) -> tuple[int, str]:
        text, _ = in_fork(lambda: double(number))
        return await double(number), text

    result, text = asyncio.run(entrypoint()(body).ainvoke(21))

    assert 42 == result
    assert text.startswith("ExecutorUnavailableError: process")


def fork_in_task(_: int) -> str:
    return in_fork(lambda: call_task(abs, -1).result())[0]


def test_a_fork_of_a_task_in_a_worker_that_calls_a_task_gets_an_error() -> None:
    """Nobody would answer it."""
    with ProcessExecutor(1) as pool:
        text = entrypoint(executor=pool)(
            lambda n: task(fork_in_task)(n).result()
        ).invoke(1)

    assert text.startswith("ExecutorUnavailableError: process")


PROGRAM = """
import asyncio, atexit, os, sys
from flowpregel import entrypoint, task
from flowpregel._interrupts import defer_interrupts

def note():
    with open(sys.argv[1], "a") as file:
        print(os.getpid(), file=file)

@task
def double(number):
    return 2 * number

def fork(how):
    if (child := os.fork()) == 0:
        print("from the fork")
        if how == "raise":
            raise ValueError("in the fork")
        if how == "exit":
            sys.exit(7)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

@task(executor="threads")
def fork_in_thread(how):
    return fork(how)

@task(executor="inline")
def fork_inline(how):
    return fork(how)

@entrypoint()
def body(how):
    return double(4).result(), fork(how)

@entrypoint()
async def coroutine(how):
    return await double(4), fork(how)

@entrypoint()
def thread(how):
    return double(4).result(), fork_in_thread(how).result()

@entrypoint()
def inline(how):
    return double(4).result(), fork_inline(how).result()

if __name__ == "__main__":
    atexit.register(note)
    flow = globals()[sys.argv[2]]
    if flow is coroutine:
        print(asyncio.run(flow.ainvoke(sys.argv[3])))
    else:
        print(flow.invoke(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["body", "coroutine", "thread", "inline"])
@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 7)])
def test_a_fork_that_comes_out_of_its_body_ends(
    where: str, how: str, code: int, tmp_path: Path
) -> None:
    """With an exit code that says how; what it printed is there, and it ran no
    `atexit`.

    Nor were the workers of the program ended by it: the program's own end is as it
    always is.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    exits = tmp_path / "exits"

    done = subprocess.run(
        [sys.executable, "program.py", str(exits), where, how],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=LONG,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert ["from the fork", f"(8, {code})"] == done.stdout.splitlines()
    assert (how == "raise") == ("ValueError: in the fork" in done.stderr)
    assert 1 == len(exits.read_text().splitlines())


def test_a_fork_that_leaves_the_block_of_a_pool_ends() -> None:
    """The calls that it would wait for are those of the other process."""
    with ProcessExecutor(1) as pool:
        call = pool.submit(wait_for_file.call_here, ".")
        text, _ = in_fork(lambda: pool.shutdown(wait=True))
        call.cancel()

    assert "None" == text
