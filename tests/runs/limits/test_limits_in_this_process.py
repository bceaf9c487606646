"""Limits, rates and priorities of tasks in this process: async, on OS threads,
inline.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import _clock, entrypoint, task
from flowpregel.config import get_stream_writer
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.rates import TokenRates
from flowpregel.executors.resources import CrossProcessLimit, Demand, SharedLimits
from tests.runs.conftest import Drive


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool that names limits; it starts no worker for tasks in this process."""
    with ProcessExecutor(1, limits={"api": 2, "disk": 1, "one": 1}) as made:
        yield made


class Gate:
    """Counts the calls that are inside; each leaves when as many are there as can be.

    Args:
        most: The number of calls that must be able to be inside together.
    """

    def __init__(self, most: int) -> None:
        self.inside = 0
        self.peak = 0
        self._changed = threading.Condition()
        self._most = most

    def enter(self) -> None:
        """Count a call, and wait until so many have been inside together."""
        with self._changed:
            self.inside += 1
            self.peak = max(self.peak, self.inside)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.peak >= self._most, timeout=60)

    def leave(self) -> None:
        """Count that a call ends."""
        with self._changed:
            self.inside -= 1


def through(gate: Gate, kind: str, **options: Any) -> Any:
    """Return a task that passes *gate*: async, or on OS threads."""
    if kind == "async":

        @task(**options)
        async def pass_gate(_: int) -> None:
            await asyncio.to_thread(gate.enter)
            gate.leave()

        return pass_gate

    @task(executor=kind, **options)
    def pass_gate_here(_: int) -> None:
        gate.enter()
        gate.leave()

    return pass_gate_here


def results(futures: Any) -> list[Any]:
    """Return the results of *futures*."""
    return [each.result() for each in futures]


def run(drive: Drive, executor: Any, body: Callable[[], Any]) -> Any:
    """Run *body* as a workflow whose tasks count for the limits of *executor*."""
    return drive.invoke(entrypoint(executor=executor)(lambda _: body()), "now")


both = pytest.mark.parametrize("kind", ["async", "threads"])


# ------------------------------------------------ limits


@both
def test_never_more_run_than_there_are_places(
    drive: Drive, pool: ProcessExecutor, kind: str
) -> None:
    """And as many as there are do."""
    gate = Gate(2)
    limited = through(gate, kind, limit="api")

    run(drive, pool, lambda: results(limited.map(range(8))))

    assert 2 == gate.peak


@both
def test_tasks_of_one_limit_share_its_places(
    drive: Drive, pool: ProcessExecutor, kind: str
) -> None:
    """Whatever their functions are, and wherever in this process they run."""
    gate = Gate(2)
    first, second = (
        through(gate, kind, limit="api"),
        through(gate, "threads", limit="api"),
    )

    def body() -> None:
        results([*first.map(range(4)), *second.map(range(4))])

    run(drive, pool, body)

    assert 2 == gate.peak


def test_runs_of_one_program_share_a_limit(pool: ProcessExecutor) -> None:
    """They take turns, and each of them ends."""
    gate = Gate(2)
    limited = through(gate, "async", limit="api")
    flow = entrypoint(executor=pool)(lambda _: results(limited.map(range(20))))

    for handle in [flow.start(1) for _ in range(3)]:
        handle.result()

    assert 2 == gate.peak


def test_a_task_may_take_places_of_two_limits(
    drive: Drive, pool: ProcessExecutor
) -> None:
    """It starts when both are free."""
    gate, alone = Gate(1), Gate(1)
    two, disk = (
        through(alone, "async", limit=["api", "disk"]),
        through(alone, "async", limit="disk"),
    )
    api = through(gate, "async", limit="api")

    run(
        drive,
        pool,
        lambda: results([*two.map(range(4)), *disk.map(range(4)), *api.map(range(4))]),
    )

    assert 1 == alone.peak
    assert gate.peak <= 2


@both
def test_a_task_that_fails_gives_its_place_back(
    drive: Drive, pool: ProcessExecutor, kind: str
) -> None:
    """The next one has it."""

    def fail(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number

    async def fail_async(number: int) -> int:
        return fail(number)

    failing = (
        task(limit="one")(fail_async)
        if kind == "async"
        else task(limit="one", executor=kind)(fail)
    )

    def body() -> list[int]:
        futures = failing.map(range(6))
        return [-1 if each.exception() else each.result() for each in futures]

    assert [0, -1, 2, -1, 4, -1] == run(drive, pool, body)


def test_a_timeout_counts_from_the_start(drive: Drive, pool: ProcessExecutor) -> None:
    """Not from when a task began to wait; the place of one that is stopped is free."""
    began: list[int] = []

    @task(limit="one", timeout=0.5)
    async def wait_long(number: int) -> int:
        began.append(number)
        if number < 2:
            await asyncio.Event().wait()
        return number

    def body() -> list[Any]:
        futures = wait_long.map(range(3))
        return [type(each.exception()).__name__ for each in futures]

    ends = run(drive, pool, body)

    assert ["NodeTimeoutError", "NodeTimeoutError", "NoneType"] == ends
    assert [0, 1, 2] == began


def test_a_cancelled_task_leaves_the_queue(drive: Drive, pool: ProcessExecutor) -> None:
    """It never starts, and those behind it do."""
    began: list[str] = []
    go = threading.Event()

    @task(limit="one")
    async def note(name: str) -> None:
        began.append(name)
        if name == "first":
            await asyncio.to_thread(go.wait)

    @task
    async def open_gate() -> None:
        go.set()

    def body() -> None:
        first, second, third = note("first"), note("second"), note("third")
        assert second.cancel()
        # it is begun once the run knows of the rest
        results([open_gate(), first, third])

    run(drive, pool, body)

    assert ["first", "third"] == began


def test_places_are_free_after_a_run_that_was_left(
    drive: Drive, pool: ProcessExecutor
) -> None:
    """Though it had tasks that ran and tasks that waited."""

    @task(limit="one")
    async def block(_: int) -> None:
        get_stream_writer()("runs")
        await asyncio.Event().wait()

    blocked = entrypoint(executor=pool)(lambda _: results(block.map(range(3))))
    seen = drive.stream_until(lambda _: True, blocked, "now", stream_mode="custom")
    gate = Gate(1)
    run(drive, pool, lambda: results(through(gate, "async", limit="one").map(range(2))))

    assert ["runs"] == seen
    assert 1 == gate.peak


def test_places_and_the_most_at_once_both_hold(
    drive: Drive, pool: ProcessExecutor
) -> None:
    """A task that waits for its place is in no other task's way."""
    gate = Gate(2)
    limited, plain = through(gate, "async", limit="one"), through(gate, "async")

    @entrypoint(executor=pool)
    def flow(_: str) -> None:
        results([*limited.map(range(4)), *plain.map(range(4))])

    drive.invoke(flow, "now", {"max_concurrency": 2})

    assert 2 == gate.peak


# ------------------------------------------------ calls of tasks that hold something


def test_a_call_that_needs_what_its_caller_holds_is_refused(
    drive: Drive, pool: ProcessExecutor
) -> None:
    """Not a wait for ever."""

    @task(limit="one")
    async def inner() -> None:
        """Do nothing."""

    @task(limit="one")
    async def outer() -> None:
        await inner()

    with pytest.raises(ResourcesError, match="hold too much") as caught:
        run(drive, pool, lambda: outer().result())

    assert ["outer"] == [*caught.value.holders]


def test_callers_that_wait_for_what_each_other_holds_do_not_hang(
    drive: Drive, pool: ProcessExecutor
) -> None:
    """One of their calls is refused, and the other goes on."""
    gate = Gate(2)

    @task(limit="api")
    async def inner() -> str:
        return "had it"

    @task(limit="api")
    async def outer(_: int) -> str:
        await asyncio.to_thread(gate.enter)
        try:
            return await inner()
        except ResourcesError as error:
            return str(error)

    ends = run(drive, pool, lambda: results(outer.map(range(2))))

    assert ["had it"] == [each for each in ends if "hold too much" not in each]


def test_a_caller_keeps_its_place(drive: Drive, pool: ProcessExecutor) -> None:
    """What it calls takes a place of another limit."""
    gate = Gate(1)
    inner = through(gate, "async", limit="api")

    @task(limit="one")
    async def outer(number: int) -> None:
        await inner(number)

    run(drive, pool, lambda: results(outer.map(range(4))))

    assert 1 == gate.peak


def test_a_call_in_a_worker_of_what_a_caller_here_holds_is_refused(
    drive: Drive,
) -> None:
    """The limit's name is what counts."""
    with ProcessExecutor(1, limits={"one": 1}) as pool:

        @task(limit="one", executor="threads")
        def outer() -> Any:
            return in_a_worker().result()

        with pytest.raises(ResourcesError, match="hold too much"):
            run(drive, pool, lambda: outer().result())


@task(limit="one")
def in_a_worker() -> int:
    return os.getpid()


# ------------------------------------------------ rates


@pytest.mark.parametrize("kind", ["async", "threads", "inline"])
def test_a_rate_is_kept(drive: Drive, kind: str) -> None:
    """It needs no pool, and no named limit."""
    starts: list[float] = []

    def note(_: int) -> None:
        starts.append(time.monotonic())

    async def note_async(number: int) -> None:
        note(number)

    noting = (
        task(rate="5/s")(note_async)
        if kind == "async"
        else task(rate="5/s", executor=kind)(note)
    )
    began = time.monotonic()

    run(drive, "threads", lambda: results(noting.map(range(6))))

    assert 6 == len(starts)
    assert max(starts) - began >= 1.0


def test_tasks_without_a_rate_do_not_wait_for_it(drive: Drive) -> None:
    """A task that waits for hours is in no other task's way, and can be cancelled."""
    order: list[str] = []

    # The starts of a rate count over all runs of the program, so each of the two has
    # its own.
    @task(rate="1/day" if drive.is_async else "1/h")
    async def slow(number: int) -> None:
        order.append(f"slow {number}")

    @task
    async def fast() -> None:
        order.append("fast")

    def body() -> None:
        slow(0).result()
        waits = slow(1)
        fast().result()
        assert waits.cancel()

    run(drive, "threads", body)

    assert ["slow 0", "fast"] == order


def test_a_rate_counts_starts_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as it says in any such time."""
    now = [100.0]
    source = _clock.SystemClock()
    source.monotonic = lambda: now[0]
    monkeypatch.setattr(_clock, "present", source)
    rates, rate = TokenRates(), ("2/min of ask", "2/min")
    assert [None, None, 160.0] == [
        rates.try_start(name, rate, 1, print) for name in "abc"
    ]

    now[0] = 130.0
    assert 160.0 == rates.try_start("c", rate, 1, print)
    now[0] = 160.0
    assert [None, None, 220.0] == [
        rates.try_start(name, rate, 1, print) for name in "cde"
    ]


# ------------------------------------------------ priorities


@both
def test_a_higher_priority_goes_first(
    drive: Drive, pool: ProcessExecutor, kind: str
) -> None:
    """Of those that wait for the same place; equal ones in the order of their calls."""
    order: list[str] = []
    go = threading.Event()

    def note(name: str) -> None:
        order.append(name)
        if name == "first":
            assert go.wait(60)

    async def note_async(name: str) -> None:
        await asyncio.to_thread(note, name)

    noting = (
        task(limit="one")(note_async)
        if kind == "async"
        else task(limit="one", executor=kind)(note)
    )
    urgent = noting.with_options(priority=5)

    @task
    async def open_gate() -> None:
        go.set()

    def body() -> None:
        futures = [noting("first"), noting("second"), urgent("third"), urgent("fourth")]
        results([open_gate(), *futures])

    run(drive, pool, body)

    assert ["first", "third", "fourth", "second"] == order


# ------------------------------------------------ several programs


@both
def test_a_limit_of_all_programs_holds_here(
    drive: Drive, tmp_path: Path, kind: str
) -> None:
    """A place that another program has is none of ours, until that gives it back."""
    theirs = CrossProcessLimit(tmp_path / "api", 2)
    assert 1 == theirs.available(0, 0.0)
    gate = Gate(1)
    with ProcessExecutor(1, limits={"api": 2}, limits_folder=tmp_path) as pool:
        run(
            drive, pool, lambda: results(through(gate, kind, limit="api").map(range(4)))
        )
        assert 1 == gate.peak
        assert 2 == theirs.available(1, 0.0), "what nothing uses is given back"
        theirs.close()
        gate = Gate(2)
        run(
            drive, pool, lambda: results(through(gate, kind, limit="api").map(range(4)))
        )
    assert 2 == gate.peak


# ------------------------------------------------ turns of runs


def test_a_place_that_became_free_is_the_other_runs() -> None:
    """A run that asks again at once does not keep it for ever."""
    now, woken = [0.0], []
    limits = SharedLimits({"api": 1}, clock=lambda: now[0])
    demand = Demand(("api",))
    assert limits.try_start("a1", demand, "a", lambda: woken.append("a")) is None
    assert limits.try_start("b1", demand, "b", lambda: woken.append("b")) is not None

    limits.release("a1", demand)

    assert ["b"] == woken
    assert limits.try_start("a2", demand, "a", lambda: woken.append("a")) is not None
    assert limits.try_start("b1", demand, "b", lambda: woken.append("b")) is None
    limits.release("b1", demand)
    assert ["b", "a"] == [*dict.fromkeys(woken)]


def test_a_run_that_does_not_take_its_turn_keeps_nobody_waiting() -> None:
    """As one whose stream is not read."""
    now = [1.0]
    limits = SharedLimits({"api": 1}, clock=lambda: now[0])
    demand = Demand(("api",))
    assert limits.try_start("a1", demand, "a", list) is None
    assert limits.try_start("b1", demand, "b", list) is not None
    limits.release("a1", demand)
    again_at = limits.try_start("a2", demand, "a", list)
    assert again_at is not None

    now[0] = again_at
    assert limits.try_start("a2", demand, "a", list) is None
    limits.release("a2", demand)
    assert limits.try_start("a3", demand, "a", list) is None, "its turn is over"


# ------------------------------------------------ what is refused


@pytest.mark.parametrize("options", [{"cpus": 2}, {"memory": "1GB"}, {"gpus": 1}])
@both
def test_what_only_processes_have_is_refused(
    drive: Drive, pool: ProcessExecutor, kind: str, options: dict[str, Any]
) -> None:
    """Rather than to be ignored."""
    greedy = through(Gate(1), kind, limit="api", **options)

    with pytest.raises(ConfigurationError, match="only limit, rate and priority"):
        run(drive, pool, lambda: greedy(1).result())


@both
def test_a_limit_that_nobody_names_is_refused(drive: Drive, kind: str) -> None:
    """And the error says where it is named."""
    with pytest.raises(
        ResourcesError, match=r"the pool has 0.*ProcessExecutor\(limits="
    ):
        run(drive, "threads", lambda: through(Gate(1), kind, limit="api")(1).result())
