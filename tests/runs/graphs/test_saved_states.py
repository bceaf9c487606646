"""Tasks that keep their place: what an attempt has saved, the next one is given."""

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
from flowpregel._core.records import SAVED, Address
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import TaskSerializationError, ValueEncodingError
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.runtime import Runtime
from tests.runs.cli_jobs import environment
from tests.runs.crashes import AT_ONCE
from tests.runs.notes import Notes

EXECUTORS = ["inline", "threads", "processes"]


@task(retry_policy=AT_ONCE)
def count(to: int, seen: Notes, runtime: Runtime[Any]) -> int:
    """Count up; fail at each even number, but after it was saved."""
    state = runtime.saved or {"at": 0}
    seen.append(state["at"])
    while state["at"] < to:
        state["at"] += 1
        runtime.save(state)
        if state["at"] % 2 == 0:
            state["at"] = -1  # no part of what was saved
            raise ValueError("even")
    return state["at"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_next_attempt_goes_on_from_what_was_saved(
    drive: Any, executor: str
) -> None:
    """Wherever it runs, without a store; and a change after the saving is not in it."""
    seen = Notes()

    @entrypoint(executor=executor)
    def flow(to: int) -> int:
        return count(to, seen).result()

    assert 5 == drive.invoke(flow, 5)
    assert [0, 2, 4] == seen


def test_an_async_task_saves_without_waiting(drive: Any) -> None:
    """On the event loop nothing may wait; the next attempt has it all the same."""
    seen = Notes()

    @task(retry_policy=AT_ONCE)
    async def wander() -> int:
        runtime = get_runtime()
        seen.append(runtime.saved)
        if runtime.saved is None:
            runtime.save("half")
            await asyncio.sleep(0)
            raise ValueError("once")
        return 1

    @entrypoint()
    def flow(_: int) -> int:
        return wander().result()

    assert 1 == drive.invoke(flow, 0)
    assert [None, "half"] == seen


@task(retry_policy=AT_ONCE)
def die_half_way() -> Any:
    runtime = get_runtime()
    if runtime.saved is None:
        runtime.save(bytes(200_000))
        os.kill(os.getpid(), signal.SIGKILL)
    return runtime.saved


@pytest.mark.slow
def test_a_killed_worker_costs_only_what_came_after_the_last_save(drive: Any) -> None:
    """The coordinator has it before `save` returns."""

    @entrypoint(executor="processes")
    def flow(_: int) -> Any:
        return die_half_way().result()

    assert bytes(200_000) == drive.invoke(flow, 0)


PROGRAM = """
import os, signal
from flowpregel import get_runtime
from flowpregel.func import entrypoint, task

@task
def count(to):
    runtime = get_runtime()
    at = runtime.saved or 0
    print("from", at, flush=True)
    while at < to:
        at += 1
        runtime.save(at)
        if at % 3 == 0:
            os.kill(COORDINATOR, signal.SIGKILL)
            signal.pause()
    return at

@entrypoint(checkpointer="store", executor=EXECUTOR)
def flow(to: int) -> int:
    return count(to).result()

COORDINATOR = os.getpid()
if __name__ == "__main__":
    print("returned", flow.invoke(7, thread_id="1", durability="sync", resume="auto"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_killed_program_costs_only_what_came_after_the_last_save(
    tmp_path: Path, executor: str
) -> None:
    """Twice ``kill -9``: with ``durability="sync"`` it is on disk when `save`
    returns.
    """
    told = PROGRAM.replace("EXECUTOR", repr(executor))
    told = (
        told.replace("COORDINATOR,", "os.getppid(),")
        if executor == "processes"
        else told
    )
    (tmp_path / "program.py").write_text(told)
    printed = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env=environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        printed.append((done.returncode, done.stdout.splitlines()[-1:]))

    assert (0, ["returned 7"]) == printed[-1]
    assert [-signal.SIGKILL] * 2 == [code for code, _ in printed[:2]]


@task
def fail_until_told(seen: Notes) -> Any:
    runtime = get_runtime()
    seen.append(runtime.saved)
    runtime.save({"runs": len(seen)})
    if len(seen) < 3:
        raise ValueError("not yet")
    return len(seen)


def test_what_was_saved_is_kept_until_the_task_has_finished(
    drive: Any, saver: BaseCheckpointSaver
) -> None:
    """From run to run; a task that is done leaves nothing of it."""
    seen = Notes()

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(_: int) -> Any:
        return fail_until_told(seen).result()

    def kept() -> list[Any]:
        found = saver.load(Address("1"))
        assert found is not None
        return [write.value for write in found.writes if write.channel == SAVED]

    with pytest.raises(ValueError, match="not yet"):
        drive.invoke(flow, 0, thread_id="1")
    assert [{"runs": 1}] == kept()
    with pytest.raises(ValueError, match="not yet"):
        drive.invoke(flow, None, thread_id="1")
    assert 3 == drive.invoke(flow, None, thread_id="1")

    assert [None, {"runs": 1}, {"runs": 2}] == seen
    assert [] == [
        write
        for saved in saver.history(Address("1"))
        for write in saved.writes
        if write.channel == SAVED
    ]


def test_the_next_attempt_of_a_body_gives_its_calls_what_they_saved(drive: Any) -> None:
    """The call is made again by the body, and is the same call."""
    seen = Notes()

    @entrypoint(executor="threads", retry_policy=AT_ONCE)
    def flow(_: int) -> Any:
        return fail_until_told(seen).result()

    assert 3 == drive.invoke(flow, 0)
    assert [None, {"runs": 1}, {"runs": 2}] == seen


def test_a_node_of_a_graph_saves_too(drive: Any, saver: BaseCheckpointSaver) -> None:
    """With the runtime that it is given."""

    def half(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        if runtime.saved is None:
            runtime.save("half")
            raise ValueError("once")
        return {"found": runtime.saved}

    graph = StateGraph(dict)
    graph.add_node("half", half)
    graph.add_edge(START, "half")
    graph.add_edge("half", END)
    app = graph.compile(checkpointer=saver, executor="threads")

    with pytest.raises(ValueError, match="once"):
        drive.invoke(app, {"found": ""}, thread_id="1")

    assert {"found": "half"} == drive.invoke(app, None, thread_id="1")


@task
def save_a_lock(_: int) -> None:
    import threading

    get_runtime().save({"lock": [threading.Lock()]})


@pytest.mark.parametrize(
    ("executor", "error"),
    [("threads", ValueEncodingError), ("processes", TaskSerializationError)],
)
def test_a_state_that_cannot_be_kept_fails_its_task(
    drive: Any, executor: str, error: type[Exception]
) -> None:
    """Where it is saved, so that the task may catch it."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(_: int) -> str:
        with pytest.raises(error, match="saved state"):
            save_a_lock(0).result()
        return "went on"

    assert "went on" == drive.invoke(flow, 0, thread_id="1")


def test_a_checkpointer_of_langgraph_keeps_the_result_alone(drive: Any) -> None:
    """Its position is the result's: what is saved lives as long as the program."""
    from langgraph.checkpoint.memory import InMemorySaver as Theirs

    seen, theirs = Notes(), Theirs()

    @entrypoint(checkpointer=theirs, executor="threads")
    def flow(to: int) -> int:
        return count(to, seen).result()

    assert 3 == drive.invoke(flow, 3, thread_id="1")
    writes = [
        write for found in theirs.list(None) for write in found.pending_writes or ()
    ]
    assert SAVED not in {channel for _, channel, _ in writes}


def test_nothing_is_saved_outside_of_a_run() -> None:
    """A plain function has one attempt."""
    runtime: Runtime[Any] = Runtime()

    runtime.save(1)

    assert runtime.saved is None
