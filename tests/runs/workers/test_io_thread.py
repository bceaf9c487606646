"""No code of the user's runs on the OS thread that serves all runs of a pool."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_EXCEPTION,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel.context import get_stream_writer
from flowpregel.errors import (
    ExecutorUnavailableError,
    NodeTimeoutError,
    TaskSerializationError,
    WorkerDiedError,
)
from flowpregel.executors import ProcessExecutor
from tests.runs import gated
from tests.runs.gated import LONG, Gate, Gated, GatedError
from tests.runs.pooling import Run, value_of, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """Three workers, so that two are free while a run waits."""
    with ProcessExecutor(3, grace=0.3) as pool:
        list(pool.map(gated.double, range(3)))
        yield pool


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Run something on an OS thread of its own."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


give = task(gated.give)
double = task(gated.double)


class NotingGated(Gated):
    """Is behind the gate named "gate", and makes a file as it is pickled.

    Args:
        file: The file's path.
    """

    def __init__(self, file: str) -> None:
        super().__init__("gate")
        self._file = file

    def __reduce__(self) -> Any:
        Path(self._file).touch()
        return super().__reduce__()


@task
def give_late(go: str, packed: str) -> Gated:
    Path(f"{go}.begun").touch()
    gated.wait_for(go)
    return NotingGated(packed)


@task
def stream(name: str) -> int:
    get_stream_writer()(Gated(name))
    return 1


@task
def accept(value: Gated) -> str:
    return value.name


@task
def call(name: str) -> str:
    return str(accept(Gated(name)).result())


@task
def fail(name: str) -> None:
    gated.fail(name)


@task(timeout=0.2)
def hang(_: int) -> None:
    while True:
        os.sched_yield()


def unrelated(pool: ProcessExecutor) -> float:
    """Run another flow, with a result, a timeout and a death; return how late the
    timeout was.
    """

    @entrypoint(executor=pool)
    def flow(number: int) -> tuple[int, float]:
        began = time.monotonic()
        timeout = hang(number).exception()
        late = time.monotonic() - began - 0.2
        assert isinstance(timeout, NodeTimeoutError)
        assert isinstance(task(gated.die)(0).exception(), WorkerDiedError)
        return double(number).result(), late

    result, late = flow.invoke(21)
    assert 42 == result
    return float(late)


@pytest.mark.parametrize(
    ("sends", "result"),
    [(give, Gated("gate")), (stream, 1), (call, "gate"), (fail, None)],
    ids=["result", "chunk", "arguments", "error"],
)
def test_what_is_unpickled_for_long_holds_up_its_own_run_alone(
    pool: ProcessExecutor, aside: Any, sends: Any, result: Any
) -> None:
    """A result, a chunk, the arguments of a call, an error: other flows of the pool go
    on.
    """

    @entrypoint(executor=pool)
    def flow(name: str) -> Any:
        return sends(name).result()

    with Gate("gate") as gate:
        run = aside(lambda: list(flow.stream("gate", stream_mode=["custom", "values"])))
        assert gate.reached.wait(LONG)

        assert unrelated(pool) < 10
        assert not run.done()
    if result is None:
        with pytest.raises(GatedError):
            run.result(LONG)
    else:
        assert ("values", result) == run.result(LONG)[-1]


def test_a_result_that_is_unpickled_for_ever_ends_with_the_timeout_of_its_task(
    pool: ProcessExecutor,
) -> None:
    """And its grace: the run goes on without it."""
    timed = give.with_options(timeout=0.5)

    @entrypoint(executor=pool)
    def flow(name: str) -> Any:
        return timed(name).exception(), double(4).result()

    with Gate("gate") as gate:
        error, other = flow.invoke("gate")

        assert gate.reached.is_set()
        assert isinstance(error, NodeTimeoutError)
        assert 8 == other


def test_runs_on_one_event_loop_do_not_wait_for_each_others_values(
    pool: ProcessExecutor,
) -> None:
    """What may run code of the user's is read beside the loop; so a run can be
    cancelled, too.
    """

    @entrypoint(executor=pool)
    async def flow(name: str) -> Any:
        return await (give(name) if name == "gate" else double(4))

    async def main(gate: Gate) -> None:
        blocked = asyncio.ensure_future(flow.ainvoke("gate"))
        cancelled = asyncio.ensure_future(flow.ainvoke("gate"))
        await asyncio.to_thread(gate.reached.wait, LONG)

        assert 8 == await asyncio.wait_for(flow.ainvoke("other"), LONG)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(cancelled, LONG)
        assert not blocked.done()
        gate.is_open.set()
        assert Gated("gate") == await asyncio.wait_for(blocked, LONG)

    with Gate("gate") as gate:
        asyncio.run(main(gate))


def test_a_cancelled_run_on_an_event_loop_gives_up_a_value_that_arrives_then(
    tmp_path: Path,
) -> None:
    """Its worker had returned it before the run was cancelled."""
    go, packed = tmp_path / "go", tmp_path / "packed"

    async def main(pool: ProcessExecutor, gate: Gate, io_gate: Gate) -> None:
        @entrypoint(executor=pool)
        async def flow(_: int) -> Any:
            return await give_late(str(go), str(packed))

        run = asyncio.ensure_future(flow.ainvoke(1))
        await asyncio.to_thread(
            wait_until, lambda: (tmp_path / "go.begun").exists(), LONG
        )
        # A busy machine may hold up the I/O thread for as long.
        pool._pool.loop.call(partial(gated.wait_at, "io"))  # noqa: SLF001 - see above
        go.touch()
        await asyncio.to_thread(wait_until, packed.exists, LONG)
        run.cancel()
        io_gate.is_open.set()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, LONG / 2)

    with Gate("gate") as gate, Gate("io") as io_gate, ProcessExecutor(1) as pool:
        asyncio.run(main(pool, gate, io_gate))


# ------------------------------------------------ futures of plain calls


def test_the_result_of_a_plain_call_is_unpickled_by_who_asks_for_it(
    pool: ProcessExecutor, aside: Any
) -> None:
    """Once, whoever asks at the same time; to wait for it, or to be called back, does
    not.
    """
    called = Future[Any]()
    with Gate("gate") as gate:
        future = pool.submit(gated.give, "gate")
        future.add_done_callback(called.set_result)

        assert {future} == wait([future], LONG).done
        assert [future] == [*as_completed([future], LONG)]
        assert future is called.result(LONG)
        assert future.done()
        assert not gate.reached.is_set()
        asked = [aside(future.result), aside(future.result), aside(future.exception)]
        assert gate.reached.wait(LONG)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        assert unrelated(pool) < 10

    first, second, error = [each.result(LONG) for each in asked]
    assert first is second is future.result()
    assert error is None
    assert 1 == gate.passed


def test_a_plain_call_that_fails_is_told_from_one_that_returns_before_it_is_read(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """`wait(return_when=FIRST_EXCEPTION)` has to know; it reads the error itself."""
    go = str(tmp_path / "go")
    with Gate("gate") as gate:
        gate.is_open.set()
        failed, hangs = pool.submit(gated.fail, "gate"), pool.submit(gated.wait_for, go)

        done, pending = wait([failed, hangs], LONG, FIRST_EXCEPTION)

        assert ({failed}, {hangs}) == (done, pending)
        assert isinstance(failed.exception(), GatedError)
    hangs.cancel()


class Bomb:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ValueError("it explodes")


def make_bomb() -> Bomb:
    return Bomb()


def test_a_result_that_cannot_be_unpickled_is_the_error_of_its_call(
    pool: ProcessExecutor,
) -> None:
    """Whatever its class raises, and as often as it is asked for."""
    future = pool.submit(make_bomb)

    for _ in range(2):
        with pytest.raises(TaskSerializationError, match="it explodes"):
            future.result(LONG)
    assert isinstance(future.exception(), TaskSerializationError)


def test_a_callback_that_blocks_holds_up_no_run(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """Though it waits for a call of the same pool."""
    ended, go = Future[Any](), tmp_path / "go"

    def wait_for_another(_: object) -> None:
        gated.wait_at("gate")
        ended.set_result(pool.submit(gated.double, 5).result(LONG))

    with Gate("gate") as gate:
        pool.submit(gated.wait_for, str(go)).add_done_callback(wait_for_another)
        go.touch()
        assert gate.reached.wait(LONG)

        assert unrelated(pool) < 10
    assert 10 == ended.result(LONG)


# ------------------------------------------------ the rest of what users bring


def test_an_error_of_the_initializer_is_read_by_who_asks(aside: Any) -> None:
    """Nor is it shown before: its class may do anything."""
    with (
        Gate("gate") as gate,
        ProcessExecutor(
            1, initializer=gated.refuse_to_start, initargs=("gate",)
        ) as pool,
    ):
        future = pool.submit(gated.double, 1)

        assert {future} == wait([future], LONG).done
        assert not gate.reached.is_set()
        gate.is_open.set()
        with pytest.raises(ExecutorUnavailableError) as caught:
            future.result(LONG)
    assert isinstance(caught.value.__cause__, GatedError)


def test_the_arguments_of_a_call_whose_worker_died_are_shown_by_who_asks(
    pool: ProcessExecutor, aside: Any
) -> None:
    """They are unpickled for the text of the error."""
    with Gate("gate") as gate:
        future = pool.submit(gated.die, Gated("gate"))
        assert {future} == wait([future], LONG).done
        assert not gate.reached.is_set()
        error = aside(future.exception)
        assert gate.reached.wait(LONG)

        assert unrelated(pool) < 10
    assert "die(" in str(error.result(LONG))


variable: ContextVar[Any] = ContextVar("variable", default=None)


def test_the_end_of_what_a_call_was_given_holds_up_no_run(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """A `__del__` may do anything, and the pool may be the last that has the object."""
    go = tmp_path / "go"

    def submit() -> Future[None]:
        variable.set(gated.Ending("gate"))
        return pool.submit(gated.wait_for, str(go))

    with Gate("gate") as gate:
        future = copy_context().run(submit)
        go.touch()  # from here on, the pool alone has the object
        assert future.result(LONG) is None
        assert gate.reached.wait(LONG)

        assert unrelated(pool) < 10


class ThreadNoting:
    """Notes the OS thread on which it is pickled, and is large where it arrives.

    Args:
        threads: Gets the name of the thread.
    """

    def __init__(self, threads: list[str]) -> None:
        self._threads = threads

    def __reduce__(self) -> Any:
        self._threads.append(threading.current_thread().name)
        return bytes, (bytes(2 << 20),)


def test_a_large_input_is_pickled_by_its_run_though_shared_memory_is_full() -> None:
    """The bytes are kept until a worker is free: they are not made again."""
    threads: list[str] = []
    with ProcessExecutor(1, shared_memory=0) as pool:
        run = Run(pool)
        jobs = [run.start(len, ThreadNoting(threads)) for _ in range(3)]
        sizes = [value_of(outcome) for outcome in run.outcomes(*jobs)]

    assert 3 * [2 << 20] == sizes
    assert 3 * [threading.current_thread().name] == threads


def test_the_watchdog_names_what_holds_up_the_pool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once for each time; and it sleeps when there is nothing to look at."""

    def hold_it_up() -> None:
        gated.wait_at("gate")

    def told() -> list[str]:
        return [
            each.getMessage()
            for each in caplog.records
            if "blocked for" in each.getMessage()
        ]

    with Gate("gate") as gate, ProcessExecutor(1) as own:
        assert 2 == own.submit(gated.double, 1).result()
        own._pool.loop.call(hold_it_up)  # noqa: SLF001 - as a mistake of ours would
        wait_until(told, LONG)
        gate.is_open.set()
        assert 4 == own.submit(gated.double, 2).result()

    (message,) = told()
    assert "hold_it_up" in message
    assert logging.WARNING == caplog.records[0].levelno
