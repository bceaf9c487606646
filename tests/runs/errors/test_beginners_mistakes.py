"""Forty mistakes of somebody's first day: each message says what to write instead."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_stream_writer, interrupt
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    FlowMismatchError,
    InputMismatchError,
    StoreError,
    TaskExitError,
    TaskSerializationError,
    UnansweredError,
    UnknownInterruptError,
)
from flowpregel.types import Command
from tests.runs.mistakes import Mistake, double, entrypoint, inside, task

RESULT = "write future.result()"


def inside_async(use: Callable[[], Any]) -> Any:
    """Run *use*, a coroutine function, as the body of a workflow."""

    @entrypoint(executor="threads")
    async def flow(n: int) -> Any:
        return await use()

    return asyncio.run(flow.arun(1))


@entrypoint(executor="inline")
def plain(n: int, *, scale: int = 1) -> int:
    """Return a number."""
    return n * scale


def kept(name: str = "study", saver: Any = None) -> Any:
    """Return a workflow whose runs are kept."""

    def body(n: int) -> int:
        return n

    body.__name__ = body.__qualname__ = name
    return entrypoint(checkpointer=saver or InMemorySaver(), executor="inline")(body)


# ---------------------------------------------------------------- futures


async def _result_on_a_loop() -> Any:
    return double(1).result()


FUTURES: dict[str, Mistake] = {
    "adds to a future": (lambda: inside(lambda: double(1) + 1), TypeError, RESULT),
    "sums futures": (
        lambda: inside(lambda: sum(double.map([1, 2]))),
        TypeError,
        RESULT,
    ),
    "loops over a future": (lambda: inside(lambda: [*double([1])]), TypeError, RESULT),
    "asks a future a question": (
        lambda: inside(lambda: 1 if double(1) else 2),
        TypeError,
        RESULT,
    ),
    "compares a future": (lambda: inside(lambda: double(1) > 1), TypeError, RESULT),
    "puts a future into text": (
        lambda: inside(lambda: f"got {double(1)}"),
        TypeError,
        RESULT,
    ),
    "takes a part of a future": (
        lambda: inside(lambda: double([1])[0]),
        TypeError,
        RESULT,
    ),
    "calls a method of the result": (
        lambda: inside(lambda: double("a").upper()),
        AttributeError,
        "write future.result().upper",
    ),
    "returns a future": (
        lambda: inside(lambda: double(1)),
        TypeError,
        "return future.result()",
    ),
    "returns a list of futures": (
        lambda: inside(lambda: double.map([1])),
        TypeError,
        "return [future.result() for future in futures]",
    ),
    "waits on an event loop": (
        lambda: inside_async(_result_on_a_loop),
        RuntimeError,
        "use await",
    ),
}

# ---------------------------------------------------------------- tasks


def _yields(n: int) -> Iterator[int]:
    yield n


def _exits(n: int) -> None:
    sys.exit(n)


def _asks(n: int) -> Any:
    return interrupt(n)


def _lock(n: int) -> Any:
    return threading.Lock()


TASKS: dict[str, Mistake] = {
    "calls a task outside of a run": (
        lambda: double(1),
        RuntimeError,
        "double.func(...)",
    ),
    "maps outside of a run": (
        lambda: double.map([1]),
        RuntimeError,
        "double.func(...)",
    ),
    "mistypes an option of a task": (lambda: task(timeou=3), TypeError, "timeout"),
    "makes a task of a number": (
        lambda: task(3),
        ConfigurationError,
        "takes a function",
    ),
    "makes a task of a task": (
        lambda: task(timeout=3)(double),
        ConfigurationError,
        "'double' is a task already: write double.with_options(...)",
    ),
    "makes a workflow of a task": (
        lambda: entrypoint(double),
        ConfigurationError,
        "'double' is a task: call it in the body of a workflow",
    ),
    "makes a workflow of a workflow": (
        lambda: entrypoint(plain),
        ConfigurationError,
        "'plain' is a workflow already",
    ),
    "yields in a task": (lambda: task(_yields), ConfigurationError, "return a list"),
    "gives a number of tries": (
        lambda: task(retry_policy=3),
        ConfigurationError,
        "RetryPolicy(",
    ),
    "mistypes an executor": (
        lambda: task(executor="process"),
        ConfigurationError,
        "'processes', 'threads', 'inline'",
    ),
    "gives a negative timeout": (
        lambda: task(timeout=-1),
        ConfigurationError,
        "timeout",
    ),
    "makes chunks of nothing": (
        lambda: inside(lambda: double.map([1], chunksize=0)),
        ConfigurationError,
        "at least 1",
    ),
    "maps over lists of different lengths": (
        lambda: inside(lambda: double.map([1, 2], [3])),
        ValueError,
        "all of the same length",
    ),
    "maps over a number": (
        lambda: inside(lambda: double.map(3)),
        TypeError,
        "range(3)",
    ),
    "mistypes errors=": (
        lambda: inside(lambda: double.map([1], errors="retrun")),
        ConfigurationError,
        "'raise' or 'return'",
    ),
    "ends the program in a task": (
        lambda: inside(lambda: task(_exits)(3).result()),
        TaskExitError,
        "raise",
    ),
    "times a task in this process": (
        lambda: inside(lambda: task(timeout=1)(_exits)(3).result()),
        ConfigurationError,
        "executor='processes'",
    ),
    "sends what cannot be pickled": (
        lambda: inside(lambda: double(threading.Lock()).result(), executor="processes"),
        TaskSerializationError,
        "create it inside the task",
    ),
    "returns what cannot be pickled": (
        lambda: inside(lambda: task(_lock)(1).result(), executor="processes"),
        TaskSerializationError,
        "executor='threads'",
    ),
    "asks where nothing keeps the question": (
        lambda: inside(lambda: task(_asks)(1).result()),
        ConfigurationError,
        "checkpointer",
    ),
    "asks outside of a run": (
        lambda: interrupt("?"),
        RuntimeError,
        "call it from a node, a task",
    ),
}

# ---------------------------------------------------------------- workflows


class _Study:
    def body(self, n: int) -> int:
        return n


def _none() -> int:
    return 1


def _two_flows() -> None:
    saver = InMemorySaver()
    kept("study", saver).run(1, id="1")
    kept("survey", saver).run(1, id="1")


def _another_input() -> None:
    flow = kept()
    flow.run(1, id="1")
    flow.run(2, id="1")


def _unanswered() -> None:
    flow = entrypoint(checkpointer=InMemorySaver(), executor="inline")(_asks)
    flow.run(1, id="1")


def _a_file_for_a_store() -> None:
    Path("runs.lmdb").write_text("notes", encoding="utf-8")
    kept(saver="runs.lmdb").run(1, id="1")


WORKFLOWS: dict[str, Mistake] = {
    "calls a workflow": (lambda: plain(1), TypeError, "write plain.run(...)"),
    "leaves out an argument": (
        lambda: plain.run(),
        TypeError,
        "missing a required argument: 'n'",
    ),
    "gives too many arguments": (
        lambda: plain.run(1, 2),
        TypeError,
        "too many positional arguments",
    ),
    "mistypes an argument": (lambda: plain.run(1, scales=2), TypeError, "scale"),
    "gives run a thread_id": (
        lambda: kept().run(1, thread_id="1"),
        TypeError,
        "id='...'",
    ),
    "gives an id without a checkpointer": (
        lambda: plain.run(1, id="1"),
        ConfigurationError,
        "@entrypoint(checkpointer='runs.lmdb')",
    ),
    "gives a thread without a checkpointer": (
        lambda: plain.get_state(thread_id="1"),
        ConfigurationError,
        "checkpointer",
    ),
    "takes another's id": (_two_flows, FlowMismatchError, "use another id"),
    "gives an id another input": (_another_input, InputMismatchError, "adopt=True"),
    "goes on with an id that is not there": (
        lambda: kept().invoke(None, thread_id="nobody"),
        EmptyInputError,
        "pass",
    ),
    "forgets the thread": (
        lambda: kept().invoke(1),
        ConfigurationError,
        "thread_id='...'",
    ),
    "mistypes a setting": (
        lambda: kept().invoke(1, thread="1"),
        TypeError,
        "thread_id",
    ),
    "mistypes on_conflict": (
        lambda: kept().run(1, id="1", on_conflict="waits"),
        ConfigurationError,
        "'wait'",
    ),
    "mistypes on_code_change": (
        lambda: kept().run(1, id="1", on_code_change="redo"),
        ConfigurationError,
        "'rerun'",
    ),
    "mistypes a stream mode": (
        lambda: [*plain.stream(1, stream_mode="vlues")],
        ConfigurationError,
        "values",
    ),
    "runs what waits for an answer": (
        _unanswered,
        UnansweredError,
        ".answer(..., id='1')",
    ),
    "answers what nobody asked": (
        lambda: kept().invoke(Command(resume=1), thread_id="1"),
        UnknownInterruptError,
        "pass",
    ),
    "keeps runs in a file": (_a_file_for_a_store, StoreError, "folder"),
    "gives a number as a checkpointer": (
        lambda: entrypoint(checkpointer=3)(_exits),
        ConfigurationError,
        "path",
    ),
    "writes to the stream outside of a run": (
        lambda: get_stream_writer()("x"),
        RuntimeError,
        "call it from a node, a task",
    ),
    "makes a workflow of a method": (
        lambda: entrypoint(_Study.body),
        ConfigurationError,
        "entrypoint(...)(self.body)",
    ),
    "makes a workflow without input": (
        lambda: entrypoint(_none),
        ConfigurationError,
        "give it a parameter",
    ),
    "yields in a workflow": (
        lambda: entrypoint(_yields),
        ConfigurationError,
        "get_stream_writer()",
    ),
    "times a sync workflow": (
        lambda: entrypoint(timeout=3)(_asks),
        ConfigurationError,
        "give the timeout to its tasks",
    ),
}

MISTAKES = FUTURES | TASKS | WORKFLOWS


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the message of what is raised."""
    monkeypatch.chdir(tmp_path)
    make, error, says = MISTAKES[name]

    with pytest.raises(error, match=re.escape(says)):
        make()


def test_there_are_forty() -> None:
    """The list only grows."""
    assert len(MISTAKES) >= 40
