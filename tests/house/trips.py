"""Prints through how many functions and files of the package four everyday trips go.

Run ``python -m tests.house.trips`` (``-v`` lists the functions). The numbers are what a
newcomer has to read to understand one call, one commit or one question; `test_trips.py`
holds them down.

A trip is a window of time. Everything of the package that is entered in it, on any OS
thread of the coordinator and in its worker, counts once; but not what looks after
leases now and then, which a slow machine would meet on the way::

    one @task call          from the call in the body to its result, in a worker
                            process, without a saver
    one durable @task call  the same on LMDB, with durability="sync"
    one superstep's commit  from one node's return to the next node's call, LMDB,
                            durability="sync"
    interrupt and resume    from the call of interrupt() to its return in the next
                            invocation, LMDB
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import flowpregel
from flowpregel import LMDBSaver, StateGraph, entrypoint, interrupt, task
from flowpregel._core.provenance import code_of_node
from flowpregel.executors import ProcessExecutor
from flowpregel.types import Command

WATCH: Final = "flowpregel-leases"
"""The OS thread that looks five times a second whether a run is to end."""
PACKAGE: Final = str(Path(flowpregel.__file__).parent) + os.sep


@dataclass(slots=True)
class Trip:
    """What was entered between `start` and `stop`, as (file, line, function)."""

    name: str
    entered: list[tuple[int, str]] = field(default_factory=list)
    """(monotonic nanoseconds, where) of every call while the trace is on."""
    first: int = 0
    last: int = 0

    def start(self) -> None:
        """Open the window."""
        self.first = time.monotonic_ns()

    def stop(self) -> None:
        """Close the window."""
        self.last = time.monotonic_ns()

    @property
    def functions(self) -> list[str]:
        """The functions of the package in the window, ``file:line name`` each."""
        return sorted(
            {where for at, where in self.entered if self.first <= at <= self.last}
        )

    @property
    def files(self) -> list[str]:
        """The files that those functions stand in."""
        return sorted({where.partition(":")[0] for where in self.functions})


def _where(frame: FrameType) -> str | None:
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return None
    file = code.co_filename.removeprefix(PACKAGE)
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"


@contextmanager
def _traced(trip: Trip) -> Iterator[None]:
    """Note what is entered on this OS thread and on those that start meanwhile."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if threading.current_thread().name == WATCH:
            return
        if event == "call" and (where := _where(frame)) is not None:
            trip.entered.append((time.monotonic_ns(), where))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def trace_worker(log: str) -> None:
    """Write what this worker enters to the file *log*: an executor's initializer."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (where := _where(frame)) is not None:
            os.write(descriptor, f"{time.monotonic_ns()} {where}\n".encode())

    threading.setprofile(note)
    # On the frames that are there already as well: the worker's loop goes on in them.
    sys.setprofile(note)


def task_call(folder: Path) -> Trip:
    """Return the trip of one `@task` call whose worker, code and run are warm."""
    return _call_in_worker("one @task call", folder, None)


def durable_task_call(folder: Path) -> Trip:
    """Return the trip of the same call in a run that records it on disk."""
    with LMDBSaver(folder / "calls.lmdb") as saver:
        return _call_in_worker("one durable @task call", folder, saver)


def _call_in_worker(name: str, folder: Path, saver: LMDBSaver | None) -> Trip:
    """Return the trip of the fourth `@task` call of a run, in a warm worker."""
    trip = Trip(name)
    log = folder / "worker.txt"

    @task
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(checkpointer=saver)
    def flow(number: int) -> int:
        for _ in range(3):
            number = double(number).result()
        trip.start()
        number = double(number).result()
        trip.stop()
        return number

    with (
        _traced(trip),
        ProcessExecutor(
            max_workers=1, initializer=trace_worker, initargs=(str(log),)
        ) as executor,
    ):
        flow.executor = executor
        options: Any = {}
        if saver is not None:
            options = {"thread_id": "calls", "durability": "sync"}
        flow.invoke(1, **options)
    for line in log.read_text("utf-8").splitlines():
        at, _, where = line.partition(" ")
        trip.entered.append((int(at), where))
    return trip


def superstep_commit(folder: Path) -> Trip:
    """Return the trip from one node's return to the next node's call, on disk."""
    trip = Trip("one superstep's commit")

    def step(state: dict[str, int]) -> dict[str, int]:
        if state["count"] == 6:
            trip.stop()
        if state["count"] == 5:
            trip.start()
        return {"count": state["count"] + 1}

    def more(state: dict[str, int]) -> str:
        return "step" if state["count"] < 8 else "__end__"

    with LMDBSaver(folder / "steps.lmdb") as saver:
        graph = StateGraph(dict).add_node("step", step)
        graph.add_edge("__start__", "step").add_conditional_edges("step", more)
        program = graph.compile(checkpointer=saver, executor="inline")
        with _traced(trip):
            program.invoke({"count": 0}, thread_id="steps", durability="sync")
    return trip


def interrupt_and_resume(folder: Path) -> Trip:
    """Return the trip from a question to its answer, in the run that goes on."""
    trip = Trip("interrupt and resume")

    def ask(state: dict[str, str]) -> dict[str, str]:
        if not trip.first:
            trip.start()
        answer = interrupt("go on?")
        trip.stop()
        return {"answer": answer}

    with LMDBSaver(folder / "questions.lmdb") as saver:
        graph = StateGraph(dict).add_node("ask", ask).add_edge("__start__", "ask")
        program = graph.compile(checkpointer=saver, executor="inline")
        # It is kept with the question, and read once a process, here as beside a
        # result.
        code_of_node(program.program.nodes["ask"])
        with _traced(trip):
            program.invoke({}, thread_id="question", durability="sync")
            program.invoke(
                Command(resume="yes"), thread_id="question", durability="sync"
            )
    return trip


TRIPS: Final[tuple[Callable[[Path], Trip], ...]] = (
    task_call,
    durable_task_call,
    superstep_commit,
    interrupt_and_resume,
)


def main(arguments: list[str]) -> None:
    """Print each trip's size, and with ``-v`` what it is made of."""
    for make in TRIPS:
        with tempfile.TemporaryDirectory() as folder:
            trip = make(Path(folder))
        print(
            f"{trip.name}: {len(trip.functions)} functions in {len(trip.files)} files"
        )
        if "-v" in arguments:
            print(*("    " + where for where in trip.functions), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
