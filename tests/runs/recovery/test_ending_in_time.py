"""Runs that are told to end: nothing more starts, what runs may save, and the next run
goes on.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from flowpregel import _interrupts, get_runtime
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.cli.console import duration
from flowpregel.errors import ConfigurationError, RunStopped
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.runtime import StopSignal
from tests.runs.cli_jobs import COMMAND, environment
from tests.runs.notes import Notes
from tests.runs.pooling import wait_until

LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


@task
def wait_for_the_end(name: str, seen: Notes) -> Any:
    """Save when told; the second time return that."""
    runtime = get_runtime()
    seen.append(name)
    if runtime.saved is not None:
        return runtime.saved
    runtime.save([name, runtime.stopping.wait(LONG)])
    raise RunStopped("it is saved")


def told_when_begun(flow: Any, seen: Notes, *given: Any, **asked: Any) -> Any:
    """Start a run, tell it to end once a task of it has begun, and return its
    handle.
    """
    handle = flow.start(*given, id="1", **asked)
    wait_until(lambda: len(seen) > 0, LONG)
    handle.end("for the test")
    return handle


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_task_that_is_told_saves_and_the_next_run_goes_on(executor: str) -> None:
    """It learns of the end while it runs, wherever that is."""
    seen = Notes()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(name: str) -> Any:
        return wait_for_the_end(name, seen).result()

    with pytest.raises(RunStopped, match="for the test"):
        told_when_begun(flow, seen, "a").result(LONG)

    assert ["a", True] == flow.run("a", id="1")
    assert ["a", "a"] == seen


@task
def go_on_until_told(name: str, seen: Notes) -> str:
    seen.append(name)
    assert get_runtime().stopping.wait(LONG)
    return name


@pytest.mark.slow
def test_what_waits_is_not_started_and_what_finishes_is_recorded() -> None:
    """In a pool of one, the second call waits; its turn comes in the next run."""
    seen = Notes()
    with ProcessExecutor(1) as pool:

        @entrypoint(checkpointer=InMemorySaver(), executor=pool)
        def flow(names: list[str]) -> list[str]:
            return [
                future.result() for future in [go_on_until_told(n, seen) for n in names]
            ]

        with pytest.raises(RunStopped, match="for the test"):
            told_when_begun(flow, seen, ["a", "b"]).result(LONG)

        assert ["a"] == seen
        handle = flow.start(["a", "b"], id="1")
        wait_until(lambda: len(seen) == 2, LONG)
        handle.end()
        assert ["a", "b"] == handle.result(LONG)
        assert ["a", "b"] == seen


def test_a_run_that_comes_to_its_end_in_time_returns_its_result() -> None:
    """If nothing was left out, it is no error to have been told."""
    seen = Notes()

    @entrypoint(executor="threads", checkpointer=InMemorySaver())
    def flow(name: str) -> str:
        return go_on_until_told(name, seen).result() + "!"

    assert "a!" == told_when_begun(flow, seen, "a").result(LONG)


def test_the_next_superstep_is_not_begun() -> None:
    """Its predecessor ends well and is kept."""
    seen, finished = Notes(), Notes()

    def first(state: dict[str, Any]) -> dict[str, Any]:
        return {"path": go_on_until_told.func("first", seen)}

    def second(state: dict[str, Any]) -> dict[str, Any]:
        finished.append("second")
        return {"path": state["path"] + " second"}

    graph = StateGraph(dict)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    app = graph.compile(checkpointer=InMemorySaver(), executor="threads")

    with pytest.raises(RunStopped, match="stop_after"):
        app.invoke({"path": ""}, thread_id="1", stop_after=0.2, stop_grace=LONG)

    assert [] == finished
    assert len(seen) in (0, 1)  # told before it began, under load


@task
def never_look(seen: Notes) -> None:
    seen.append("begun")
    time.sleep(LONG)


@pytest.mark.slow
def test_a_task_that_does_not_end_in_its_grace_is_stopped() -> None:
    """As a timeout would stop it."""
    seen = Notes()

    @entrypoint(executor="processes", checkpointer=InMemorySaver())
    def flow(_: int) -> None:
        never_look(seen).result()

    began = time.monotonic()
    with pytest.raises(RunStopped):
        told_when_begun(flow, seen, 0, stop_grace=0.05).result(LONG)

    assert time.monotonic() - began < LONG


def test_an_async_task_sees_it_and_has_its_grace(drive: Any) -> None:
    """It is not cancelled at once."""

    @task
    async def wander() -> str:
        assert await asyncio.to_thread(get_runtime().stopping.wait, LONG)
        return "home"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_: int) -> str:
        return wander().result()

    def run(**asked: Any) -> Any:
        return drive.invoke(flow, 0, thread_id="1", **asked)

    try:
        assert "home" == run(stop_after=timedelta(seconds=0.2), stop_grace=LONG)
    except RunStopped:  # told before it began, under load
        assert flow.get_state(thread_id="1").next


@pytest.mark.parametrize(
    "wrong", [{"stop_after": -1}, {"stop_after": "soon"}, {"stop_grace": ""}]
)
def test_a_wrong_duration_is_refused(wrong: dict[str, Any]) -> None:
    """At the door, by the name of the option."""

    @entrypoint()
    def flow(_: int) -> int:
        return 1

    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        flow.run(1, **wrong)


def test_a_stop_signal_waits_no_longer_than_it_is_asked() -> None:
    """Like an event."""
    answers = iter([False, True])

    assert not StopSignal().wait(0)
    assert StopSignal(lambda: next(answers)).wait(LONG)


# ---------------------------------------------------------------- SIGTERM

JOB = """
import pathlib
from flowpregel import get_runtime
from flowpregel.errors import RunStopped
from flowpregel.func import entrypoint, task

@task
def work(n):
    runtime = get_runtime()
    if runtime.saved is None:
        pathlib.Path("begun").touch()
        runtime.save(bool(runtime.stopping.wait(60)))
        raise RunStopped("it is saved")
    return f"told: {runtime.saved}"

@entrypoint(checkpointer="store", executor="processes")
def job(n: int) -> str:
    return work(n).result()

if __name__ == "__main__":
    print(job.run(1, id="job"))
    print("went on")
"""


def terminated(folder: Path, command: list[str]) -> tuple[int, str]:
    """Run *command*, send it SIGTERM when its task has begun; return how it ended."""
    (folder / "job.py").write_text(JOB)
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: (folder / "begun").exists() or process.poll() is not None, LONG)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LONG)
    return process.returncode, out


@pytest.mark.slow
def test_sigterm_ends_a_program_when_its_tasks_have_saved(tmp_path: Path) -> None:
    """It ends by the signal, as any other; run again, it goes on."""
    program = [sys.executable, "job.py"]

    assert (-signal.SIGTERM, "") == terminated(tmp_path, program)
    again = subprocess.run(
        program,
        cwd=tmp_path,
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert "told: True\nwent on\n" == again.stdout


@pytest.mark.slow
def test_the_command_tells_a_scheduler_to_run_it_again(tmp_path: Path) -> None:
    """By the exit code 75, after SIGTERM and at the end of its time."""
    run = [*COMMAND, "run", "job.py:job", "--input", "1", "--id", "job"]

    code, _ = terminated(tmp_path, run)
    ended = subprocess.run(
        [*run[:-1], "another", "--stop-after", "0.1s", "--stop-grace", "0s"],
        cwd=tmp_path,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
    )

    assert (75, 75) == (code, ended.returncode)
    assert "stop_after=0.1" in ended.stderr


def test_a_handler_of_the_programs_own_stays() -> None:
    """It may tell the runs by itself."""
    own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with _interrupts.on_sigterm(bool):
            assert signal.SIG_IGN is signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, own)


def test_every_run_of_the_program_is_told() -> None:
    """Also one that is inside another; and the handler is gone with the last."""
    told: list[str] = []

    def end(reason: str) -> bool:
        told.append(reason)
        return True

    with _interrupts.on_sigterm(end, dies=False):
        with _interrupts.on_sigterm(end):
            signal.raise_signal(signal.SIGTERM)
        told.append("outer")

    assert ["SIGTERM", "SIGTERM", "outer"] == told
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


UNBEGUN = """
import os, signal
from flowpregel._interrupts import on_sigterm

with on_sigterm(bool):
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(3)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)

with on_sigterm(lambda reason: False):
    signal.raise_signal(signal.SIGTERM)
    print("went on", flush=True)
"""


def test_without_a_run_that_has_begun_the_signal_ends_a_program_at_once() -> None:
    """A fork, as `multiprocessing` ends it; and a program that waits for another's
    run.
    """
    command = [sys.executable, "-c", UNBEGUN]
    done = subprocess.run(
        command, env=environment(), check=False, capture_output=True, text=True
    )

    assert (-signal.SIGTERM, f"{-signal.SIGTERM}\n") == (done.returncode, done.stdout)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("3h50m", 13_800), ("1d1s", 86_401)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    """As people write it."""
    asked: Any = None

    assert seconds == duration(asked, asked, text)
    assert duration(asked, asked, None) is None
    with pytest.raises(click.BadParameter, match="not a duration"):
        duration(asked, asked, text + "x")
