"""One call is given up: it stops, the others go on, and a replay goes the same way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs.cli_jobs import environment
from tests.runs.crashes import AT_ONCE
from tests.runs.notes import Notes
from tests.runs.pooling import wait_until

LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


@task
def sleep_long(seen: Notes) -> str:
    seen.append(os.getpid())
    time.sleep(LONG)
    return "slept"


@task
def quick(value: Any) -> Any:
    return value


def next_after(pool: ProcessExecutor, called: Any, seen: Notes) -> str:
    """Run a workflow that cancels a call of *called* once it has begun, and makes
    another.
    """

    @entrypoint(executor=pool)
    def flow(_: int) -> str:
        future = called(seen)
        wait_until(lambda: len(seen) > 0, LONG)
        future.cancel()
        return quick("next").result(LONG)

    result: str = flow.run(0)
    return result


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_a_call_that_is_cancelled_stops_where_it_runs(drive: Any) -> None:
    """The pool of one is free for the next call at once."""
    seen = Notes()
    with ProcessExecutor(1) as pool:

        @entrypoint(executor=pool, checkpointer=InMemorySaver())
        def flow(_: int) -> Any:
            future = sleep_long(seen)
            wait_until(lambda: len(seen) > 0, LONG)
            assert future.cancel()
            assert future.cancelled()
            with pytest.raises(CancelledError):
                future.result()
            return quick("next").result(LONG)

        began = time.monotonic()
        assert "next" == drive.invoke(flow, 0, thread_id="1")
        assert time.monotonic() - began < LONG


@task
def defiant(seen: Notes) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG})"])
    seen.append(child.pid)
    while True:
        try:
            time.sleep(LONG)
        except BaseException:  # noqa: BLE001 - it does not want to end
            seen.append("told")


@pytest.mark.slow
def test_what_does_not_stop_is_killed_with_all_that_it_started() -> None:
    """As after a timeout."""
    seen = Notes()
    with ProcessExecutor(1, grace=0.1) as pool:
        assert "next" == next_after(pool, defiant, seen)
        wait_until(lambda: is_gone(next(iter(seen))), LONG)


def test_a_call_that_is_done_is_not_cancelled(drive: Any) -> None:
    """Its result stays."""

    @entrypoint(executor="threads")
    def flow(_: int) -> Any:
        future = quick(1)
        concurrent.futures.wait([future])
        return future.cancel(), future.result()

    assert (False, 1) == drive.invoke(flow, 0)


def test_those_who_wait_for_several_see_a_cancelled_one_as_done(drive: Any) -> None:
    """`concurrent.futures.wait` and `as_completed` go on."""

    @entrypoint(executor="inline")
    def flow(_: int) -> int:
        futures = [quick(n) for n in range(3)]
        was_running = futures[1].cancel()
        done, waiting = concurrent.futures.wait(futures, LONG)
        assert not waiting
        assert was_running == futures[1].cancelled()
        return len(done)

    assert 3 == drive.invoke(flow, 0)


def test_an_async_call_is_cancelled_like_any_coroutine() -> None:
    """It is raised `CancelledError`, and so is who awaits it."""
    seen = Notes()

    @task
    async def mapper(n: int) -> int:
        try:
            await asyncio.sleep(LONG if n else 0)
        except asyncio.CancelledError:
            seen.append(n)
            raise
        return n

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(_: int) -> Any:
        futures = [mapper(0), mapper(1)]
        first = await futures[0]
        futures[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await futures[1]
        return first

    assert 0 == asyncio.run(flow.arun(0, id="1"))
    assert seen in ([1], [])  # none: it had not begun


def test_a_call_that_waits_for_another_is_not_made() -> None:
    """It had not been."""
    seen = Notes()

    @entrypoint(executor="threads")
    def flow(_: int) -> None:
        gate = quick(1)
        later = note(gate, seen)
        if later.cancel():
            gate.result()
            quick(2).result()

    flow.run(0)

    assert seen in ([], [1])  # cancel() said which


@task
def note(value: Any, seen: Notes) -> Any:
    seen.append(value)
    return value


@task(retry_policy=AT_ONCE)
def fail_when_given_up(seen: Notes) -> None:
    seen.append("tried")
    wait_until(lambda: "given up" in seen, LONG)
    raise ValueError("again")


def test_a_call_that_is_cancelled_is_not_tried_again() -> None:
    """Its failure counts no more."""
    seen = Notes()

    @entrypoint(executor="threads")
    def flow(_: int) -> int:
        future = fail_when_given_up(seen)
        wait_until(lambda: len(seen) > 0, LONG)
        assert future.cancel()
        seen.append("given up")
        return quick(3).result()

    assert 3 == flow.run(0)
    assert ["tried", "given up"] == seen


@task
def parent(seen: Notes) -> Any:
    return sleep_long(seen).result()


@pytest.mark.slow
def test_the_calls_of_a_cancelled_call_stop_too() -> None:
    """The whole tree below it, so that the pool is free."""
    seen = Notes()
    with ProcessExecutor(1, grace=0.5) as pool:
        assert "next" == next_after(pool, parent, seen)


@task
def give_up_a_call(seen: Notes) -> str:
    future = sleep_long(seen)
    wait_until(lambda: len(seen) > 0, LONG)
    assert future.cancel()
    return quick("next").result(LONG)


@pytest.mark.slow
def test_a_task_in_a_worker_cancels_its_own_calls() -> None:
    """Over the link."""
    seen = Notes()

    @entrypoint(executor="processes")
    def flow(_: int) -> str:
        return give_up_a_call(seen).result()

    assert "next" == flow.run(0)


# ---------------------------------------------------------------- replays


def racing(saver: BaseCheckpointSaver, seen: Notes, crash: Notes) -> Any:
    """Return a workflow that takes the first result and gives up the other call."""

    @task
    def compete(name: str) -> str:
        seen.append(name)
        if name == "slow":
            wait_until(lambda: "given up" in seen, LONG)
        return name

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(_: int) -> Any:
        futures = [compete("slow"), compete("fast")]
        wait_until(lambda: "slow" in seen, LONG)
        done, waiting = concurrent.futures.wait(futures, LONG, FIRST_COMPLETED)
        told = [future.cancel() for future in waiting]
        seen.append("given up")
        winner = quick([each.result() for each in done]).result()
        if len(crash) < 2:
            crash.append("crashed")
            raise ValueError("once more")
        return winner, told

    return flow


def test_a_replay_gives_up_the_same_call(saver: BaseCheckpointSaver) -> None:
    """It is not run again, and it is not done before the body cancels it again."""
    seen, crash = Notes(), Notes()
    flow = racing(saver, seen, crash)

    for _ in range(2):
        with pytest.raises(ValueError, match="once more"):
            flow.run(0, id="1")

    assert (["fast"], [True]) == flow.run(0, id="1")
    assert ["fast", "given up", "given up", "given up", "slow"] == sorted(seen)


@task
def end_when_given_up(seen: Notes) -> None:
    wait_until(lambda: "given up" in seen, LONG)


def test_who_waits_without_end_for_what_was_cancelled_is_told(
    saver: BaseCheckpointSaver,
) -> None:
    """It does not hang where a body is not what it was by chance; the clock, say."""
    seen, chance = Notes(), Notes()

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(_: int) -> str:
        future = end_when_given_up(seen)
        if len(chance) == 0:
            chance.append("first")
            assert future.cancel()
            seen.append("given up")
            quick(1).result()
            raise ValueError("once")
        with pytest.raises(CancelledError):
            future.result()
        return "told"

    with pytest.raises(ValueError, match="once"):
        flow.run(0, id="1")

    assert "told" == flow.run(0, id="1")


@task
async def begin(value: str, seen: Notes) -> str:
    if not seen:
        seen.append("began")
        await asyncio.sleep(LONG)
    return value


def edited(saver: Any, seen: Notes, is_edited: bool) -> Any:
    """Return a workflow that gives a call up and fails, or after an edit waits for that
    call.
    """
    if is_edited:

        @entrypoint(checkpointer=saver)
        def flow(_: int) -> str:
            return begin("wanted", seen).result(LONG)
    else:

        @entrypoint(checkpointer=saver)
        def flow(_: int) -> str:
            future = begin("wanted", seen)
            wait_until(lambda: len(seen) > 0, LONG)
            future.cancel()
            raise ValueError("once")

    return flow


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_body_that_has_changed_may_want_what_was_given_up() -> None:
    """The call is made anew, as it never had a result."""
    saver, seen = InMemorySaver(), Notes()
    with pytest.raises(ValueError, match="once"):
        edited(saver, seen, is_edited=False).run(0, id="1")

    assert "wanted" == edited(saver, seen, is_edited=True).run(0, id="1")


PROGRAM = """
import os, signal, sys
from concurrent.futures import CancelledError
from flowpregel.func import entrypoint, task

@task
def work(name):
    print("ran", name, flush=True)
    return name

@task
def forever():
    signal.pause()

@entrypoint(checkpointer="store", executor="processes")
def flow(_: int) -> str:
    future = forever()
    first = work("a").result()
    future.cancel()
    second = work("b").result()
    if sys.argv[1] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        future.result()
    except CancelledError:
        return first + second

if __name__ == "__main__":
    print(flow.invoke(1, thread_id="1", durability="sync", resume="auto"))
"""


@pytest.mark.slow
def test_a_killed_program_goes_on_after_the_cancelling(tmp_path: Path) -> None:
    """Nothing runs again: neither what finished nor what was given up."""
    (tmp_path / "program.py").write_text(PROGRAM)
    told = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}

    def run(how: str) -> Any:
        command = [sys.executable, "program.py", how]
        return subprocess.run(command, check=False, timeout=120, **told)

    first, second = run("crash"), run("go on")

    assert -signal.SIGKILL == first.returncode
    assert "ab\n" == second.stdout, second.stderr
