"""Workers that say more than anybody reads: memory stays bounded, and nothing is
lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.config import get_stream_writer
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.types import TimeoutPolicy
from tests.runs.pooling import is_alive, wait_until

CHUNK = 10_000
CHUNKS = 10_000
"""A hundred megabytes."""
BOUND = 60 << 20
"""Bytes by which this process may grow meanwhile."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker."""
    with ProcessExecutor(1, grace=0.5) as pool:
        yield pool


@task
def flood(count: int) -> int:
    write = get_stream_writer()
    for number in range(count):
        write((number, b"\0" * CHUNK))
    return os.getpid()


@task
def small(number: int) -> int:
    return number


def flow_of(pool: Any, work: Any = flood) -> Any:
    """Return a flow that has a worker flood its stream."""

    @entrypoint(executor=pool)
    def flow(count: int) -> int:
        return work(count).result()

    return flow


def is_held_back(pool: ProcessExecutor) -> bool:
    """Return whether a worker waits for a reader."""
    return worker_of(pool).link.paused_for is not None


def worker_of(pool: ProcessExecutor) -> Any:
    """Return the only worker."""
    (worker,) = pool._pool.workers  # noqa: SLF001 - it is nobody else's business
    return worker


def own_memory() -> int:
    """Return this process's own bytes, without its children's and what it shares."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def read_slowly(app: Any, pool: ProcessExecutor, drive: Any) -> tuple[list[int], int]:
    """Read the stream of *app*, late; return the chunks' numbers and the largest
    growth.
    """
    before = own_memory()
    numbers: list[int] = []
    largest = 0

    def read(item: Any) -> None:
        nonlocal largest
        if not numbers:
            # Until then the task has had all the time it wanted.
            wait_until(lambda: is_held_back(pool))
        numbers.append(item[0])
        largest = max(largest, own_memory() - before)

    async def follow() -> None:
        async for item in app.astream(CHUNKS, stream_mode="custom"):
            read(item)

    if drive.is_async:
        drive.wait_for(follow)
    else:
        for item in app.stream(CHUNKS, stream_mode="custom"):
            read(item)
    return numbers, largest


@pytest.mark.slow
def test_a_slow_reader_holds_back_the_task_that_streams(drive: Any, pool: Any) -> None:
    """Every chunk arrives, in order, and few of them wait in memory."""
    numbers, largest = read_slowly(flow_of(pool), pool, drive)

    assert list(range(CHUNKS)) == numbers
    assert largest < BOUND, f"{largest >> 20} MiB"


@pytest.mark.slow
def test_a_reader_that_leaves_stops_a_task_that_is_held_back(pool: Any) -> None:
    """By the signal: its worker need not be killed."""
    stream = flow_of(pool).stream(CHUNKS, stream_mode="custom")
    next(stream)
    wait_until(lambda: is_held_back(pool))
    worker = worker_of(pool)
    pid = worker.pid

    stream.close()

    assert not is_held_back(pool)
    assert 5 == flow_of(pool, small).invoke(5)
    assert is_alive(pid)


@pytest.mark.slow
def test_a_run_that_its_reader_waits_for_is_not_held_up(pool: Any) -> None:
    """There is but one worker, and the reader's other run needs it."""
    stream = flow_of(pool).stream(CHUNKS // 4, stream_mode="custom")
    next(stream)
    wait_until(lambda: is_held_back(pool))

    assert 5 == flow_of(pool, small).invoke(5)

    assert CHUNKS // 4 - 1 == len(list(stream))


IDLE = 3.0
"""Seconds: more than a busy machine may take to begin a task."""


@task(timeout=TimeoutPolicy(idle_timeout=IDLE))
def flood_and_hang(count: int) -> None:
    flood.func(count)
    while True:
        pass


@pytest.mark.slow
def test_a_task_that_is_held_back_is_not_idle(pool: Any) -> None:
    """Its time begins when its reader has caught up."""
    stream = flow_of(pool, flood_and_hang).stream(CHUNKS // 4, stream_mode="custom")
    next(stream)
    wait_until(lambda: is_held_back(pool))
    worker = worker_of(pool)
    (running,) = worker.tasks.values()
    since = running.execution.alive
    wait_until(lambda: running.execution.alive > since + IDLE)

    numbers = [0]
    with pytest.raises(NodeTimeoutError):
        numbers.extend(item[0] for item in stream)

    assert CHUNKS // 4 - 1 == numbers[-1]


class Sink:
    """Takes the program's output, and counts it."""

    def __init__(self) -> None:
        self.size = 0
        self.largest = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        self.largest = max(self.largest, own_memory())
        return len(text)

    def flush(self) -> None:
        """Have nothing to flush."""


@task
def print_a_lot(count: int) -> None:
    for _ in range(count):
        print("x" * 999_999)
    sys.stdout.write("y" * (20 << 20))


@pytest.mark.slow
def test_a_task_that_prints_a_lot_needs_no_memory_here(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints is passed on as it comes."""
    sink = Sink()
    flow = flow_of(pool, print_a_lot)
    flow.invoke(1)
    before = own_memory()
    monkeypatch.setattr(sys, "stdout", sink)

    flow.invoke(150)

    assert sink.size > 170_000_000
    assert sink.largest - before < BOUND, f"{(sink.largest - before) >> 20} MiB"


@task
def shout(count: int, file: str) -> None:
    for _ in range(count):
        os.write(1, b"x" * 999 + b"\n")
    Path(file).write_text("done")


@pytest.mark.slow
def test_what_programs_print_needs_no_memory_either(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes through a pipe."""
    sink = Sink()
    before = own_memory()
    monkeypatch.setattr(sys, "stdout", sink)

    @entrypoint(executor=pool)
    def flow(count: int) -> None:
        shout(count, str(tmp_path / "done")).result()

    flow.invoke(50_000)

    assert sink.size > 45_000_000
    assert sink.largest - before < BOUND
