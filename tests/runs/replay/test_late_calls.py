"""A body that has failed does not wait for ever for the calls that it made."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO, TypedDict

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import RunNotice
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from tests.runs.functional.flows import run
from tests.runs.notes import Notes

pytestmark = pytest.mark.slow

GRACE = 0.05


class State(TypedDict):
    """The state of a graph."""

    n: int


def reach(drive: Any, flow: Any, door: str, n: int, thread: str | None = None) -> Any:
    """Run *flow* through one of its doors, with a short grace."""
    if door == "run":
        return run(drive, flow, n, id=thread, stop_grace=GRACE)
    return drive.invoke(flow, n, thread_id=thread, stop_grace=GRACE)


doors = pytest.mark.parametrize("door", ["run", "invoke"])


@doors
def test_an_async_task_that_waits_for_ever_is_cancelled_when_its_body_fails(
    door: str,
) -> None:
    """As in LangGraph; the run ends with what the body raised."""
    cancelled = threading.Event()

    @task
    async def hang(began: asyncio.Event) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @entrypoint
    async def flow(n: int) -> None:
        began = asyncio.Event()
        hang(began)
        await began.wait()
        raise KeyError(n)

    async def main() -> None:
        start = flow.arun if door == "run" else flow.ainvoke
        with pytest.raises(KeyError):
            await asyncio.wait_for(start(1, stop_grace=GRACE), 30)
        assert cancelled.is_set()

    asyncio.run(main())


@doors
def test_a_task_on_an_os_thread_is_left_behind_when_its_body_fails(
    drive: Any, door: str
) -> None:
    """Nothing can stop it, so the user is told which one goes on."""
    began, release = threading.Event(), threading.Event()

    @task
    def hang(n: int) -> None:
        began.set()
        release.wait(60)

    @entrypoint(executor="threads")
    def flow(n: int) -> None:
        hang(n)
        began.wait(60)
        raise KeyError(n)

    try:
        with (
            pytest.warns(RunNotice, match=r"hang\(1\) cannot be stopped") as notices,
            pytest.raises(KeyError) as failed,
        ):
            reach(drive, flow, door, 1)
        assert not release.is_set()
        assert 1 == len(notices)
        assert "hang(1) had not ended" in "\n".join(failed.value.__notes__)
        assert "stop_grace" in "\n".join(failed.value.__notes__)
    finally:
        release.set()


@doors
def test_a_worker_process_is_stopped_when_its_task_outlives_its_failed_body(
    drive: Any, door: str, tmp_path: Path
) -> None:
    """The call is made again when the run is resumed, and what had ended is not."""
    tries, mended = Notes(), Notes()
    worker: list[TextIO] = []
    began = tmp_path / "began"
    os.mkfifo(began)

    @task
    def quick(n: int) -> int:
        return n

    @task
    def hang(n: int) -> int:
        tries.append("try")
        if not len(mended):
            with began.open("w") as writer:
                print("began", file=writer, flush=True)
                signal.pause()
        return n

    @entrypoint(executor="processes", checkpointer=InMemorySaver())
    def flow(n: int) -> int:
        first: int = quick(n).result()
        future = hang(n)
        if not len(mended):
            worker.append(began.open())
            assert "began\n" == worker[0].readline()
            raise KeyError(n)
        return first + future.result()

    with pytest.raises(KeyError) as failed:
        reach(drive, flow, door, 1, thread="1")

    assert "hang(1) had not ended" in "\n".join(failed.value.__notes__)
    with worker[0]:
        assert "" == worker[0].read()  # its end of the pipe is closed
    mended.append("yes")
    assert 2 == reach(drive, flow, "run", 1, thread="1")
    assert 2 == len(tries)


def test_a_task_that_fails_does_not_wait_for_ever_for_its_own_calls(drive: Any) -> None:
    """Each caller is a body: its failure comes through."""
    began, release = threading.Event(), threading.Event()

    @task
    def hang(n: int) -> None:
        began.set()
        release.wait(60)

    @task
    def middle(n: int) -> int:
        hang(n)
        began.wait(60)
        raise OSError(n)

    @entrypoint(executor="threads")
    def flow(n: int) -> str:
        try:
            middle(n).result()
        except OSError:
            return "told"
        return "not told"

    try:
        with pytest.warns(RunNotice, match=r"hang\(1\) cannot be stopped"):
            assert "told" == reach(drive, flow, "run", 1)
        assert not release.is_set()
    finally:
        release.set()


def test_a_task_in_a_called_graph_is_left_behind_with_it(drive: Any) -> None:
    """Its run ends as the call does that the graph is."""
    began, release = threading.Event(), threading.Event()

    def hang(state: State) -> State:
        began.set()
        release.wait(60)
        return state

    builder = StateGraph(State)
    builder.add_node("hang", hang)
    builder.add_edge(START, "hang")
    inner = builder.compile()

    @task
    def below(n: int) -> Any:
        return inner.invoke({"n": n})

    @entrypoint(executor="threads")
    def flow(n: int) -> None:
        below(n)
        began.wait(60)
        raise KeyError(n)

    try:
        with (
            pytest.warns(RunNotice, match="cannot be stopped"),
            pytest.raises(KeyError),
        ):
            reach(drive, flow, "run", 1)
        assert not release.is_set()
    finally:
        release.set()


def test_sigterm_does_not_wait_for_ever_for_an_os_thread(tmp_path: Path) -> None:
    """After the grace the program ends, as its user asked."""
    program = tmp_path / "program.py"
    program.write_text(
        "import threading\n"
        "from flowpregel import entrypoint, task\n"
        "@task\n"
        "def hang(n):\n"
        "    print('began', flush=True)\n"
        "    threading.Event().wait()\n"
        "@entrypoint(executor='threads')\n"
        "def flow(n):\n"
        "    return hang(n).result()\n"
        "flow.run(1, stop_grace=0.05)\n"
    )
    process = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "began\n" == process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert -signal.SIGTERM == process.returncode
    assert "hang(1) cannot be stopped" in errors
