"""The contract of a tracer: the parts of a run, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.tracing import CallEnd, RunTracer, TracedCall, TracedRun, set_tracer
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import node, program


class NotedRun(RunTracer):
    """A tracer that notes what it gets."""

    notes: list[str]

    def __init__(self, run: TracedRun) -> None:
        self.notes.append(f"run {run.name} of {run.thread_id} begins")
        self._names: dict[str, str] = {}

    def call_began(self, call: TracedCall) -> None:
        self._names[call.task_id] = call.name
        caller = None if call.parent_id is None else self._names[call.parent_id]
        self.notes.append(f"{call.name} begins, called by {caller}")

    def call_ended(self, task_id: str, end: CallEnd) -> None:
        self.notes.append(f"{self._names[task_id]} is {end.outcome}: {end.error!r}")

    def run_ended(self, outcome: str, error: BaseException | None) -> None:
        self.notes.append(f"run is {outcome}: {error!r}")


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """The notes of all runs that start in the test."""
    NotedRun.notes = []
    set_tracer(NotedRun)
    yield NotedRun.notes
    set_tracer(None)


@task
def invert(number: int) -> float:
    return 1 / number


@entrypoint(checkpointer=InMemorySaver(), executor="inline")
def study(number: int) -> float:
    return invert(number).result()


def test_a_tracer_gets_the_calls_inside_of_a_run(notes: list[str]) -> None:
    study.run(2, id="two")

    assert [
        "run study of two begins",
        "study begins, called by None",
        "invert begins, called by study",
        "invert is done: None",
        "study is done: None",
        "run is done: None",
    ] == notes


def test_a_tracer_gets_the_error_of_a_call_and_of_the_run(notes: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        study.run(0, id="zero")

    error = "ZeroDivisionError('division by zero')"
    assert [
        f"invert is failed: {error}",
        f"study is failed: {error}",
        f"run is failed: {error}",
    ] == notes[-3:]


def test_a_run_after_the_tracer_was_removed_is_not_traced(notes: list[str]) -> None:
    set_tracer(None)

    study.run(4, id="four")

    assert [] == notes


def test_a_tracer_that_is_removed_before_the_first_effect_still_traces_the_run(
    notes: list[str],
) -> None:
    """A nested run, for example, may wait for its turn before its first effect."""
    steps = CrashDriver(program(node("n")), None).start(1)
    set_tracer(None)

    next(steps)

    assert ["run p of None begins", "n begins, called by None"] == notes
    steps.close()
