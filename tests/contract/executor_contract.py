"""What an executor promises that runs tasks in processes: one suite for all of them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowpregel._core.records import Arguments, Withdrawn
from flowpregel.channels import Context, LastValue
from flowpregel.context import get_store, get_stream_writer
from flowpregel.errors import (
    ExecutorUnavailableError,
    NodeTimeoutError,
    TaskSerializationError,
    WorkerDiedError,
)
from flowpregel.executors.shared import captured, shared
from flowpregel.policies import TimeoutPolicy
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.runtime import get_runtime
from flowpregel.store.memory import InMemoryStore
from tests.runs.pooling import Run, descend, error_of, parent, value_of, wait_until

PATIENCE = 60.0
"""Seconds that anything may take on a busy machine."""


def same(given: Any) -> Any:
    return given


def pid(_: Any) -> int:
    return os.getpid()


def fail(given: Any) -> None:
    raise LookupError(given)


def chatter(count: int) -> None:
    for number in range(count):
        get_stream_writer()(number)


def speak_and_wait(file: str) -> str:
    """Emit a chunk, and return when the file is there."""
    get_stream_writer()("ready")
    while not os.path.exists(file):
        time.sleep(0.01)
    return "done"


def hang(_: Any) -> None:
    get_stream_writer()("hangs")
    while True:
        time.sleep(60)


def beat(count: int) -> str:
    for _ in range(count):
        get_runtime().heartbeat()
        time.sleep(0.05)
    return "alive"


def die(_: Any) -> None:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def put_and_get(value: Any) -> Any:
    store = get_store()
    store.put(("place",), "key", {"value": value})
    return store.get(("place",), "key").value["value"]


def log_something(text: str) -> None:
    logging.getLogger("tests.contract").warning("logged %s", text)
    print(f"printed {text}")


def double_all(numbers: Any) -> Any:
    numbers *= 2
    return numbers


def unpicklable(_: Any) -> Any:
    return threading.Lock()


def until_told(_: Any) -> bool:
    get_stream_writer()("runs")
    return get_runtime().stopping.wait(PATIENCE)


class Refused:
    """Can be sent, and not be read."""

    def __reduce__(self) -> Any:
        return _refuse, (os.getpid(),)


def _refuse(made_in: int) -> Refused:
    if made_in != os.getpid():
        raise ValueError("not here")
    return Refused()


def emit_refused(_: Any) -> None:
    get_stream_writer()(Refused())
    time.sleep(PATIENCE)


@contextlib.contextmanager
def noted(file: Path) -> Iterator[Path]:
    """Note in *file* when it is entered and left."""
    with file.open("a") as out:
        out.write("enter\n")
    yield file
    with file.open("a") as out:
        out.write("exit\n")


def count_down(state: dict[str, Any]) -> int | None:
    assert state["log"].exists()
    return state["number"] - 1 or None


class ExecutorContract:
    """Tests of an executor. A subclass has the fixture ``executor``: with two places or
    more.
    """

    @pytest.fixture
    def run(self, executor: Any) -> Run:
        """Return a run on the executor."""
        return Run(executor)

    def outcome(self, run: Run, function: Any, given: Any = None, **rest: Any) -> Any:
        """Return how a job ended."""
        return run.outcomes(run.start(function, given, **rest), seconds=PATIENCE)[0]

    def test_a_task_runs_in_another_process(self, run: Run) -> None:
        """Its result comes back."""
        assert os.getpid() != value_of(self.outcome(run, pid))

    def test_an_error_comes_back_as_itself(self, run: Run) -> None:
        """With the place where it was raised."""
        error = error_of(self.outcome(run, fail, "this"))

        assert isinstance(error, LookupError)
        assert ("this",) == error.args
        assert "in fail" in str(error.__cause__)

    def test_each_of_many_tasks_ends_once(self, run: Run) -> None:
        """And with its own result."""
        jobs = [run.start(same, number) for number in range(500)]

        ends = run.outcomes(*jobs, seconds=PATIENCE)

        assert [*range(500)] == [value_of(each) for each in ends]
        assert not run.some(0.1)

    def test_local_functions_and_lambdas_run(self, run: Run) -> None:
        """What has no name goes by value."""
        factor = 3

        assert 21 == value_of(self.outcome(run, lambda number: factor * number, 7))

    def test_a_large_array_goes_and_comes_back(self, run: Run) -> None:
        """The task may write to it, and the caller's stays as it is."""
        numbers = np.arange(500_000)

        doubled = value_of(self.outcome(run, double_all, numbers))

        assert (np.arange(500_000) == numbers).all()
        assert (2 * numbers == doubled).all()

    def test_a_shared_value_reaches_many_tasks(self, run: Run) -> None:
        """Each has a copy of its own."""
        table = shared(np.ones(200_000))
        given = captured(Arguments((table,), {}))

        jobs = [run.start(double_all, given) for _ in range(6)]

        assert [400_000.0] * 6 == [
            value_of(each).sum() for each in run.outcomes(*jobs, seconds=PATIENCE)
        ]

    def test_what_cannot_be_sent_back_is_named(self, run: Run) -> None:
        """The executor goes on."""
        assert isinstance(
            error_of(self.outcome(run, unpicklable)), TaskSerializationError
        )
        assert 1 == value_of(self.outcome(run, same, 1))

    def test_chunks_arrive_while_the_task_runs(self, run: Run, tmp_path: Path) -> None:
        """Not with its end."""
        go = tmp_path / "go"
        job = run.start(speak_and_wait, str(go))
        wait_until(lambda: run.some(0.1) or run.chunks, PATIENCE)

        assert ["ready"] == run.chunks
        go.touch()
        assert "done" == value_of(run.outcomes(job, seconds=PATIENCE)[0])

    def test_chunks_arrive_in_order_and_before_the_end(self, run: Run) -> None:
        """All of them."""
        self.outcome(run, chatter, 300)

        assert [*range(300)] == run.chunks

    def test_a_chunk_that_cannot_be_read_costs_its_task(self, run: Run) -> None:
        """And nothing else."""
        failed = error_of(self.outcome(run, emit_refused))

        assert "not here" in str(failed)
        assert 1 == value_of(self.outcome(run, same, 1))

    def test_a_task_calls_others(self, run: Run) -> None:
        """More deeply than there are places."""
        assert 3 == value_of(self.outcome(run, parent, 3))
        assert 6 == value_of(self.outcome(run, descend, 6))

    def test_many_tasks_that_call_others_end(self, run: Run) -> None:
        """Those that wait hold no place."""
        jobs = [run.start(parent, number) for number in range(12)]

        assert [*range(12)] == [
            value_of(each) for each in run.outcomes(*jobs, seconds=PATIENCE)
        ]

    def test_a_task_reaches_the_store(self, run: Run) -> None:
        """The coordinator's."""
        store = InMemoryStore()

        assert 7 == value_of(self.outcome(run, put_and_get, 7, store=store))
        assert {"value": 7} == store.get(("place",), "key").value

    def test_a_timeout_stops_a_task(self, run: Run) -> None:
        """One that hangs; the executor goes on."""
        error = error_of(self.outcome(run, hang, timeout=0.2))

        assert isinstance(error, NodeTimeoutError)
        assert "run" == error.kind
        assert 1 == value_of(self.outcome(run, same, 1))

    def test_signs_of_life_keep_a_task_from_its_idle_timeout(self, run: Run) -> None:
        """And their absence does not."""
        policy = TimeoutPolicy(idle_timeout=5.0)

        assert "alive" == value_of(self.outcome(run, beat, 5, timeout=policy))
        quiet = TimeoutPolicy(idle_timeout=0.2, refresh_on="heartbeat")
        assert "idle" == error_of(self.outcome(run, hang, timeout=quiet)).kind

    def test_a_task_that_runs_can_be_cancelled(self, executor: Any, run: Run) -> None:
        """It ends as withdrawn."""
        job = run.start(hang)
        wait_until(lambda: run.some(0.1) or run.chunks, PATIENCE)

        executor.cancel(job.key, kill=True)

        assert [Withdrawn()] == run.outcomes(job, seconds=PATIENCE)

    def test_tasks_that_wait_can_be_cancelled(self, executor: Any, run: Run) -> None:
        """All of them, whether they wait here or there."""
        jobs = [run.start(hang) for _ in range(20)]
        for job in jobs:
            executor.cancel(job.key, kill=True)

        assert [Withdrawn()] * 20 == run.outcomes(*jobs, seconds=PATIENCE)

    def test_a_task_learns_that_its_run_is_to_end(
        self, executor: Any, run: Run
    ) -> None:
        """It decides what it does then."""
        job = run.start(until_told)
        wait_until(lambda: run.some(0.1) or run.chunks, PATIENCE)

        executor.warn(job.key)

        assert value_of(run.outcomes(job, seconds=PATIENCE)[0]) is True

    def test_a_task_that_dies_says_how(self, run: Run) -> None:
        """The others go on."""
        jobs = [run.start(die), *(run.start(same, number) for number in range(20))]

        died, *others = run.outcomes(*jobs, seconds=PATIENCE)

        error = error_of(died)
        assert isinstance(error, WorkerDiedError)
        assert "SIGKILL" in str(error)
        assert "die" in error.call
        assert [*range(20)] == [value_of(each) for each in others]

    def test_what_a_task_prints_and_logs_arrives_here(
        self, run: Run, capsys: Any, caplog: Any
    ) -> None:
        """With the name of the task."""
        self.outcome(run, log_something, "this")

        assert "[log_something] printed this\n" in capsys.readouterr().out
        assert "logged this" in caplog.messages

    def test_contexts_are_left_when_the_run_has_ended(
        self, executor: Any, tmp_path: Path
    ) -> None:
        """In each process that has entered them, by the time that the run returns."""
        file = tmp_path / "log"
        file.touch()
        node = NodeBuilder().subscribe_to("number").read_from("log").do(count_down)
        app = Pregel(
            nodes={"step": node.write_to(number=same)},
            channels={"number": LastValue(int), "log": Context(lambda: noted(file))},
            input_channels=["number"],
            output_channels="number",
            executor=executor,
        )

        app.invoke({"number": 3})

        lines = file.read_text().split()
        assert lines
        assert lines.count("enter") == lines.count("exit")

    def test_an_executor_that_was_closed_refuses_jobs(self, spare: Any) -> None:
        """And says so; it can be closed again."""
        spare.close()
        spare.close()

        assert isinstance(
            error_of(self.outcome(Run(spare), same, 1)), ExecutorUnavailableError
        )
        assert spare.is_closed
