"""The hooks of a workflow are told how its runs ended, once, also of one that was
killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError, UnansweredError
from flowpregel.func import Flow, RunEnd, entrypoint
from flowpregel.types import Command
from tests.runs import hooked_flows as flows
from tests.runs.cli_jobs import environment
from tests.runs.hooked_flows import NOTES, noted


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the names of the files begin with that hooks write to."""
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    return str(tmp_path / "notes")


@pytest.fixture
def flow(path: Path, notes: str) -> Iterator[Flow[Any, Any]]:
    """The workflow, on the test's store."""
    with LMDBSaver(path) as saver:
        yield flows.hooked.copy({"checkpointer": saver})


def test_a_run_that_is_done_is_told_once(flow: Flow[Any, Any]) -> None:
    """Its kept result is no second end."""
    flow.run("well", id="x")
    flow.run("well", id="x")

    assert ["end hooked x well NoneType"] == noted()


def test_an_async_run_is_told_of_too(flow: Flow[Any, Any]) -> None:
    """The hooks are the same."""
    asyncio.run(flow.arun("well", id="x"))

    assert ["end hooked x well NoneType"] == noted()


def test_each_failure_is_told_and_then_the_end(
    flow: Flow[Any, Any], notes: str
) -> None:
    """Of a run that failed twice, and was mended."""
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            flow.run("fail", id="x")
    Path(notes + ".mended").touch()
    flow.run("fail", id="x")

    assert (
        2 * ["failure hooked x None OSError"] + ["end hooked x fail NoneType"]
        == noted()
    )


def test_a_run_that_waits_for_an_answer_has_not_ended(flow: Flow[Any, Any]) -> None:
    """It is told of when it has."""
    with pytest.raises(UnansweredError):
        flow.run("ask", id="x")
    before = noted()
    flow.invoke(Command(resume="yes"), thread_id="x")

    assert ([], ["end hooked x yes NoneType"]) == (before, noted())


def test_a_run_that_is_stopped_has_neither_ended_nor_failed(
    flow: Flow[Any, Any],
) -> None:
    """A reader that goes away stops it, as Ctrl-C and `cancel` do; it goes on when
    asked for.
    """
    stream = flow.stream("well", thread_id="x", stream_mode="tasks")
    next(stream)
    stream.close()
    before = noted()
    flow.invoke(None, thread_id="x")

    assert ([], ["end hooked x well NoneType"]) == (before, noted())


def test_hooks_and_handlers_of_a_run_are_both_told(flow: Flow[Any, Any]) -> None:
    """What a run is given as callbacks stands beside the hooks; a handler may have
    their names.
    """
    seen: list[RunEnd] = []

    class Handler:
        def on_run_end(self, end: RunEnd) -> None:
            seen.append(end)

    flow.invoke("well", {"callbacks": [Handler()], "configurable": {"thread_id": "x"}})

    assert ["end hooked x well NoneType"] == noted()
    assert [RunEnd(flow="hooked", id="x", result="well")] == seen


def test_a_hook_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The run has its result."""

    def fail(_: RunEnd) -> None:
        raise ValueError("no mail today")

    @entrypoint(executor="inline", on_end=fail)
    def flow(n: int) -> int:
        return n

    with caplog.at_level(logging.ERROR):
        assert 1 == flow.run(1)
    assert "no mail today" in caplog.text


def test_a_hook_is_a_plain_function() -> None:
    """An async one would never be awaited."""

    async def later(_: RunEnd) -> None: ...

    with pytest.raises(ConfigurationError, match="on_failure"):
        entrypoint(on_failure=later)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("task", ["failure hooked x None RunDiedError", "end hooked x well NoneType"]),
        ("hook", ["end hooked x well NoneType", "end hooked x well NoneType"]),
    ],
)
def test_a_run_found_dead_is_told_by_the_next_one(
    path: Path, notes: str, place: str, told: list[str]
) -> None:
    """A run that was over when its program was killed has ended, and not failed."""
    program = subprocess.run(
        [sys.executable, "-m", "tests.runs.hooked_flows", str(path)],
        env=environment(HOOKED_KILL=place),
        check=False,
        timeout=60,
    )
    with LMDBSaver(path) as saver:
        flow = flows.hooked.copy({"checkpointer": saver})
        results = [flow.run("well", id="x") for _ in range(2)]

    assert -signal.SIGKILL == program.returncode
    assert ["well", "well"] == results
    assert told == noted()
