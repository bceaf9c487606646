"""A run is failed only if it has ended with an error, and not if it was killed after it
had caught one. It waits only if it has ended with a question. So `work` and `wake`
resume all others.

The body, or the node, copies its thread: nobody holds the copy, which is as a kill at
that moment would leave the thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import pytest

from flowpregel import LMDBSaver, entrypoint, interrupt, task
from flowpregel._core.ids import AttemptRecord, call_path
from flowpregel._core.records import ERROR, Address, Batch, Checkpoint, TaskWrites
from flowpregel._inspection.inert import InertCodec
from flowpregel.errors import UnansweredError
from flowpregel.graph import START, StateGraph
from flowpregel.watching import StoreReader


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    """A saver in a new folder."""
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def statuses(saver: LMDBSaver, thread: str) -> tuple[str, str]:
    """Return the status of a thread as `work` sees it, and as `ls` shows it."""
    info = saver.thread(thread)
    assert info is not None
    with (
        LMDBSaver(saver.path, readonly=True, codec=InertCodec()) as other,
        closing(StoreReader(other)) as reader,
    ):
        (row,) = (row for row in reader.runs() if row.thread_id == thread)
    return info.status, row.status


@task
def invert(number: int) -> float:
    return 1 / number


def test_a_run_that_was_killed_after_it_caught_an_error_is_stopped(
    saver: LMDBSaver,
) -> None:
    @entrypoint(saver, executor="inline", durability="sync")
    def careful(number: int) -> str:
        try:
            return str(invert(number).result())
        except ZeroDivisionError:
            if saver.thread("killed") is None:
                saver.copy_thread("a", "killed")
            return "none"

    assert "none" == careful.run(0, id="a")

    assert ("stopped", "stopped") == statuses(saver, "killed")
    assert "none" == careful.run(0, id="killed")


@pytest.mark.slow
def test_ten_thousand_caught_errors_do_not_end_a_run(saver: LMDBSaver) -> None:
    """Its body does, wherever its record is among theirs."""
    body_path = "~__pregel_pull, flow"
    ran = AttemptRecord("invert", 1, 0.5, 1, "inline", 1)
    call = ran._replace(call="invert(0)")
    error = ((ERROR, ZeroDivisionError("division by zero")),)
    tasks = [
        TaskWrites("1", f"call {number}", call_path(body_path, number), error, call)
        for number in range(10_001)
    ]
    first = Checkpoint("1", None, 1, -1, "input", {}, {}, ())
    saver.commit([Batch(Address("1"), checkpoint=first)])
    saver.commit([Batch(Address("1"), tuple(tasks))])
    killed = statuses(saver, "1")
    body = TaskWrites("1", "body", body_path, error, ran)
    saver.commit([Batch(Address("1"), (body,))])

    assert ("stopped", "stopped") == killed
    assert ("failed", "failed") == statuses(saver, "1")


def test_a_failed_run_that_was_killed_while_it_was_tried_again_is_stopped(
    saver: LMDBSaver,
) -> None:
    attempts: list[int] = []

    @entrypoint(saver, executor="inline", durability="sync")
    def flow(number: int) -> float:
        attempts.append(number)
        if len(attempts) == 1:
            raise OSError("no disk")
        result = invert(number).result()
        saver.copy_thread("a", "killed")
        return result

    with pytest.raises(OSError, match="no disk"):
        flow.run(2, id="a")
    assert ("failed", "failed") == statuses(saver, "a")
    assert 0.5 == flow.run(2, id="a")

    assert ("stopped", "stopped") == statuses(saver, "killed")


class State(TypedDict):
    number: int


def test_a_run_that_was_killed_while_a_handler_of_errors_ran_is_stopped(
    saver: LMDBSaver,
) -> None:
    def fail(state: State) -> State:
        raise OSError("no disk")

    def handle(state: State) -> State:
        saver.copy_thread("a", "killed")
        return {"number": 2}

    builder = StateGraph(State).add_node("fail", fail, error_handler=handle)
    graph = builder.add_edge(START, "fail").compile(saver, executor="inline")

    graph.invoke({"number": 1}, thread_id="a", durability="sync")

    assert ("stopped", "stopped") == statuses(saver, "killed")


def test_a_run_that_ended_with_the_error_of_a_call_is_failed(saver: LMDBSaver) -> None:
    @entrypoint(saver, executor="inline")
    def total(number: int) -> float:
        return invert(number).result()

    with pytest.raises(ZeroDivisionError):
        total.run(0, id="a")

    assert ("failed", "failed") == statuses(saver, "a")


@task
def ask(question: str) -> str:
    answer: str = interrupt(question)
    return answer


@task
def copy_run(path: str) -> None:
    """Leave a copy of the run as it is now."""
    with LMDBSaver(path) as saver:
        if saver.thread("killed") is None:
            saver.copy_thread("a", "killed")


def test_a_run_that_was_killed_beside_a_question_is_stopped(saver: LMDBSaver) -> None:
    """Its body has not ended, so an answer would find no question."""

    @entrypoint(saver, executor="inline", durability="sync")
    def flow(path: str) -> str:
        answer = ask("really?")
        copy_run(path).result()
        return str(answer.result())

    with pytest.raises(UnansweredError):
        flow.run(saver.path, id="a")

    assert ("waiting", "waiting") == statuses(saver, "a")
    assert ("stopped", "stopped") == statuses(saver, "killed")
    with pytest.raises(UnansweredError):
        flow.run(saver.path, id="killed")
    assert "yes" == flow.answer("yes", id="killed")
