"""What travels between the coordinator and its workers, and how."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowpregel import entrypoint, task
from flowpregel._pickling.crossing import SHARE_FROM
from flowpregel.context import get_store, get_stream_writer
from flowpregel.errors import TaskSerializationError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.store.memory import InMemoryStore
from tests.runs import jobs
from tests.runs.pooling import Run, descend, error_of, node_of, parent, value_of


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers."""
    with ProcessExecutor(2, grace=0.3) as pool:
        yield pool


# ------------------------------------------------ values


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "text",
        (1, [2]),
        {"a": {1, 2}},
        b"x" * (SHARE_FROM + 1),
        "y" * (1 << 20),
    ],
    ids=["none", "int", "text", "nested", "set", "large bytes", "large text"],
)
def test_a_value_comes_back_as_it_went(run: Run, value: Any) -> None:
    """Over the link or through shared memory."""
    assert value == value_of(run.outcome(jobs.same, value))


def test_local_functions_and_lambdas_run_in_a_worker(run: Run) -> None:
    """What has no name that a worker could look up goes by value."""
    factor = 3

    def scaled(given: int) -> int:
        return given * factor

    assert 12 == value_of(run.outcome(scaled, 4))
    assert 5 == value_of(run.outcome(lambda given: given + 1, 4))


def describe(array: np.ndarray) -> tuple[float, bool]:
    return float(array.sum()), bool(array.flags.writeable)


def overwrite(array: np.ndarray) -> float:
    array += 1
    return float(array.sum())


SIZES = pytest.mark.parametrize("size", [128, 1_250_000], ids=["1 kB", "10 MB"])


@SIZES
def test_a_task_may_write_to_the_array_it_was_given(run: Run, size: int) -> None:
    """At every size. Neither the caller nor another task sees what it writes."""
    array = np.zeros(size)
    tasks = [run.start(overwrite, array) for _ in range(4)]

    assert [float(size)] * 4 == [value_of(each) for each in run.outcomes(*tasks)]
    assert 0.0 == array.sum()


@SIZES
def test_the_caller_may_write_to_the_array_it_was_returned(run: Run, size: int) -> None:
    """Also at every size."""
    array = value_of(run.outcome(make, size))
    array += 1

    assert 2.0 * size == array.sum()


def test_a_large_array_that_is_kept_stays_as_it_came(run: Run) -> None:
    """Though its worker writes the next results."""
    kept = [value_of(run.outcome(fill, number)) for number in range(6)]

    assert [float(number) for number in range(6)] == [array.mean() for array in kept]


def fill(number: int) -> np.ndarray:
    return np.full(1 << 17, float(number))


@pytest.mark.slow
def test_without_shared_memory_large_values_go_through_the_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Slower, and with a warning."""
    value = os.urandom(16 << 20)
    with ProcessExecutor(1, shared_memory=0) as pool:
        assert value == value_of(Run(pool).outcome(jobs.same, value))

    assert "no shared memory is left" in caplog.text


@pytest.mark.slow
def test_large_inputs_wait_with_their_run_as_references() -> None:
    """Calls of one value are not as many copies of it, though few could be sent yet."""
    value = bytes(8 << 20)
    size_of = task(len)
    with ProcessExecutor(1, shared_memory=0) as pool:
        pool.room = 18

        @entrypoint(executor=pool)
        def sizes(value: bytes) -> list[int]:
            calls = [size_of(value) for _ in range(24)]
            return [call.result() for call in calls]

        tracemalloc.start()
        try:
            assert 24 * [len(value)] == sizes.invoke(value)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak < 12 * len(value)


def send_and_die(_: Any) -> bytes:
    value = bytes(400 << 20)
    threading.Timer(0.05, os._exit, (9,)).start()
    return value


@pytest.mark.slow
def test_a_worker_that_dies_while_it_sends_is_noticed() -> None:
    """Nobody waits for the rest of its result."""
    with ProcessExecutor(1, shared_memory=0) as pool:
        run = Run(pool)
        error = error_of(run.outcome(send_and_die))

        assert isinstance(error, WorkerDiedError)
        assert value_of(run.outcome(jobs.pid))


def make(size: int) -> np.ndarray:
    return np.ones(size)


@pytest.mark.slow
def test_results_that_nobody_holds_give_their_memory_back() -> None:
    """The worker writes its next results to the same places."""
    with ProcessExecutor(1) as pool:
        run, node = Run(pool), node_of(make)
        before = len(os.listdir("/proc/self/fd"))

        for _ in range(100):
            assert 1 << 17 == len(value_of(run.outcome(node, 1 << 17)))

        assert len(os.listdir("/proc/self/fd")) <= before + 30


_kept: list[Any] = []


def keep(array: np.ndarray) -> float:
    _kept.append(array)
    return float(_kept[0].mean())


def test_an_array_that_a_task_keeps_does_not_change() -> None:
    """Its memory is not used again while a worker still looks at it."""
    with ProcessExecutor(1) as pool:
        run = Run(pool)
        node = node_of(keep)

        means = [
            value_of(run.outcome(node, np.full(1 << 17, float(n)))) for n in range(5)
        ]

    assert [0.0] * 5 == means


def test_an_array_that_was_changed_between_tasks_arrives_changed(run: Run) -> None:
    """What an earlier task was given is no excuse."""
    array = np.zeros(1 << 18)
    first = run.start(describe, array)
    run.outcomes(first)
    array[77_777] = 1.0

    assert 1.0 == value_of(run.outcome(describe, array))[0]


# ------------------------------------------------ what cannot travel


class Model:
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.layers = [1, threading.Lock()]


def make_model(_: Any) -> dict[str, Model]:
    return {"model": Model()}


def test_an_input_that_cannot_be_pickled_is_named_with_its_path(run: Run) -> None:
    """Down to the culprit, with the remedy."""
    error = error_of(run.outcome(jobs.same, {"model": Model()}))

    assert isinstance(error, TaskSerializationError)
    assert "input['model'].layers[1]: _thread.lock" in str(error)
    assert "executor='threads'" in str(error)


def test_a_result_that_cannot_be_pickled_is_named_with_its_path(run: Run) -> None:
    """The worker answers all the same, and lives on."""
    error = error_of(run.outcome(make_model))

    assert "the result of task 'make_model'" in str(error)
    assert "result['model'].layers[1]: _thread.lock" in str(error)


class Trouble(Exception):
    """Cannot be unpickled: its constructor wants a keyword."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"trouble {code}")


def raise_trouble(code: int) -> None:
    raise Trouble(code=code)


def test_an_error_that_cannot_be_unpickled_is_told_with_its_traceback(run: Run) -> None:
    """It would have broken a pool that unpickles without looking."""
    error = error_of(run.outcome(raise_trouble, 7))

    assert isinstance(error, TaskSerializationError)
    assert "trouble 7" in str(error.__cause__)


def raise_plain(_: Any) -> None:
    raise ValueError("boom")


def test_an_error_carries_the_workers_traceback(run: Run) -> None:
    """The note that says which task, attempt and worker is the run's."""
    error = error_of(run.outcome(raise_plain))

    assert isinstance(error, ValueError)
    assert "raise_plain" in str(error.__cause__)
    assert [] == getattr(error, "__notes__", [])


class Bomb:
    """Raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def make_bomb(_: Any) -> Bomb:
    return Bomb()


@pytest.mark.parametrize("task", [jobs.same, make_bomb])
def test_a_value_that_raises_when_it_is_unpickled_fails_its_task(
    run: Run, task: Any
) -> None:
    """In the worker or in the coordinator."""
    error = error_of(run.outcome(task, Bomb() if task is jobs.same else None))

    assert isinstance(error, TaskSerializationError)
    assert "no number" in str(error)


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_is_nested_too_deeply_fails_its_task(run: Run) -> None:
    """Pickle recurses; the task is told, the pool goes on."""
    assert isinstance(error_of(run.outcome(nest, 100_000)), TaskSerializationError)
    assert value_of(run.outcome(jobs.pid))


def write_garbage(_: Any) -> None:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.write(int(fd), b"\x80\x04garbage garbage garbage")
    time.sleep(30)


@pytest.mark.slow
def test_a_worker_that_sends_garbage_is_replaced(run: Run) -> None:
    """Nothing of it is unpickled."""
    error = error_of(run.outcome(write_garbage))

    assert isinstance(error, WorkerDiedError)
    assert "garbage" in error.cause
    assert value_of(run.outcome(jobs.pid))


# ------------------------------------------------ talking back


def chat(_: Any) -> None:
    print("printed")
    logging.getLogger("tests.chat").warning("logged %d", 5)
    os.system("echo from a program")
    get_stream_writer()({"done": 1})


def test_what_a_task_prints_arrives_with_its_name(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """From Python and from programs it starts."""
    run.outcome(chat)
    seen = capsys.readouterr().out
    deadline = time.monotonic() + 5
    while "program" not in seen and time.monotonic() < deadline:
        run.outcome(jobs.pid)
        seen += capsys.readouterr().out

    assert "[chat] printed\n" in seen
    assert "] from a program\n" in seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ValueError, TimeoutError])
def test_a_signal_handler_that_raises_cuts_nothing_in_two(
    kind: type[Exception],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task that prints meanwhile gets its error, and the run what it has printed.

    Coverage is left out: as it traces, a handler may raise between any two lines.
    """
    for name in [each for each in os.environ if each.startswith("COV")]:
        monkeypatch.delenv(name)
    with ProcessExecutor(1) as pool:
        run = Run(pool)
        lines = value_of(run.outcome(jobs.print_until_the_alarm, kind, timeout=30.0))

        assert 5 == value_of(run.outcome(jobs.same, 5))
    assert lines <= capsys.readouterr().out.count("x" * 30_000)


def test_what_a_task_logs_goes_to_the_programs_loggers(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """With the task and the worker's pid on the record."""
    run.outcome(chat)

    record = next(each for each in caplog.records if each.name == "tests.chat")
    assert "logged 5" == record.getMessage()
    assert "chat" == record.__dict__["task"]


def test_stream_chunks_arrive_before_the_task_has_ended(run: Run) -> None:
    """In the order in which they were sent."""
    run.outcome(chat)

    assert [{"done": 1}] == run.chunks


def use_store(key: str) -> Any:
    store = get_store()
    store.put(("tests",), key, {"n": 1})
    return store.get(("tests",), key).value


def test_a_task_reaches_the_runs_store(run: Run) -> None:
    """The store itself stays in the coordinator."""
    store = InMemoryStore()

    assert {"n": 1} == value_of(run.outcome(use_store, "k", store=store))
    assert store.get(("tests",), "k") is not None


def test_a_task_of_a_run_without_a_store_is_told_so(run: Run) -> None:
    """As in the coordinator."""
    assert "this run has no store" in str(error_of(run.outcome(use_store, "k")))


# ------------------------------------------------ calls


@pytest.mark.slow
def test_tasks_nested_six_deep_end_on_a_pool_of_one() -> None:
    """A worker that waits does not hold up what it waits for."""
    with ProcessExecutor(1) as pool:
        assert 6 == value_of(Run(pool).outcome(descend, 6))


@pytest.mark.slow
def test_a_thousand_parents_need_a_few_workers() -> None:
    """Children go before their parents' siblings."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        node = node_of(parent)
        parents = [run.start(node, number) for number in range(1_000)]

        assert list(range(1_000)) == [value_of(each) for each in run.outcomes(*parents)]
        assert len({value_of(run.outcome(jobs.pid)) for _ in range(20)}) <= 20
