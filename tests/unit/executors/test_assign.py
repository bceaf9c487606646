"""What the pool decides without a process: which worker gets which tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import pytest

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task, TaskOrigin
from flowpregel.context import Job
from flowpregel.executors.processes.coordinator.assign import (
    BATCH_SECONDS,
    ONE_CPU,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    assign,
)
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import PLAIN, WorkerKind

UNKNOWN = float("inf")
TINY = BATCH_SECONDS / 100
STARTING, IDLE, BUSY = (
    WorkerLoad(WorkerState.STARTING),
    WorkerLoad(WorkerState.IDLE),
    WorkerLoad(WorkerState.BUSY),
)
STOPPING = WorkerLoad(WorkerState.STOPPING)
LONG = WorkerLoad(WorkerState.BUSY, UNKNOWN)
PARENT = WorkerLoad(WorkerState.WAITING, UNKNOWN)


@pytest.mark.parametrize(
    ("queue", "workers", "limits", "starts", "sends"),
    [
        # Starting workers.
        ([], [], PoolLimits(4), 0, []),
        ([UNKNOWN], [], PoolLimits(4), 1, []),
        (9 * [UNKNOWN], [], PoolLimits(4), 4, []),
        (9 * [UNKNOWN], [STARTING, LONG], PoolLimits(4), 2, []),
        ([], [IDLE], PoolLimits(4, keep=4), 3, []),
        ([UNKNOWN], [STOPPING], PoolLimits(1), 1, []),
        ([], [STOPPING, PARENT], PoolLimits(1, keep=1), 1, []),
        # Tasks of unknown length go one by one, and no more of them run than there is
        # room for.
        (9 * [UNKNOWN], [IDLE, IDLE], PoolLimits(2), 0, [(0, 1), (1, 1)]),
        (9 * [UNKNOWN], [LONG, IDLE], PoolLimits(2), 0, [(1, 1)]),
        (9 * [UNKNOWN], [LONG, LONG, IDLE], PoolLimits(2), 0, []),
        ([UNKNOWN], [IDLE, IDLE], PoolLimits(2), 0, [(0, 1)]),
        # A worker whose task waits for its calls does not count.
        (9 * [UNKNOWN], [PARENT, PARENT], PoolLimits(2), 2, []),
        (9 * [UNKNOWN], [PARENT, LONG, IDLE], PoolLimits(2), 0, [(2, 1)]),
        # Short tasks go together: for some milliseconds, and leaving some for the
        # others.
        (1000 * [TINY], [IDLE, LONG], PoolLimits(2), 0, [(0, 100)]),
        (20 * [TINY], [IDLE, LONG], PoolLimits(2), 0, [(0, 10)]),
        ([TINY, TINY, UNKNOWN, TINY], [IDLE, IDLE], PoolLimits(2), 0, [(0, 2), (1, 1)]),
        (9 * [TINY], [IDLE], PoolLimits(1, batch=1), 0, [(0, 1)]),
        # A worker with little left to do gets its next tasks; the last go to the first
        # free.
        (1000 * [TINY], [BUSY], PoolLimits(1), 0, [(0, 100)]),
        (9 * [TINY], [BUSY], PoolLimits(1, batch=4), 0, [(0, 4)]),
        (3 * [TINY], [BUSY, LONG], PoolLimits(2), 0, [(0, 1)]),
        ([TINY], [BUSY, LONG], PoolLimits(2), 0, []),
        (
            1000 * [TINY],
            [WorkerLoad(WorkerState.BUSY, 2 * BATCH_SECONDS)],
            PoolLimits(1),
            0,
            [],
        ),
        # Nothing is put behind a task that may hold it up.
        (1000 * [TINY], [LONG, PARENT], PoolLimits(1), 0, []),
        (9 * [UNKNOWN], [BUSY], PoolLimits(1), 0, []),
        (9 * [TINY], [BUSY], PoolLimits(1, batch=1), 0, []),
    ],
)
def test_tasks_are_assigned(
    queue: list[float],
    workers: list[WorkerLoad],
    limits: PoolLimits,
    starts: int,
    sends: Any,
) -> None:
    """By what waits, what the workers do, and how many there may be."""
    waiting = TaskQueue()
    for number, seconds in enumerate(queue):
        waiting.add(task(number, seconds=seconds))

    plan = assign(waiting, workers, limits)

    assert starts * [PLAIN] == plan.starts
    assert sends == [(index, len(tasks)) for index, tasks in plan.sends]
    assert [*range(len(queue))][: sum(size for _, size in sends)] == [
        each.id for _, tasks in plan.sends for each in tasks
    ]


LOADS = (
    STARTING,
    IDLE,
    BUSY,
    PARENT,
    STOPPING,
    WorkerLoad(WorkerState.IDLE, kind=WorkerKind(threads=2)),
)
PLENTY = {"cpus": 1e6}
"""More CPUs than the workers can hold, as a number that is compared."""


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize(
    "needs", [[None], [None, None], [ONE_CPU], [Needs({"cpus": 2}, is_fresh=True)]]
)
def test_a_single_task_goes_where_it_goes_when_resources_are_compared(
    size: int, keep: int, needs: Sequence[Needs | None]
) -> None:
    """The shortcut for a single task saves time, and changes no decision."""
    waiting = TaskQueue()
    for number, needed in enumerate(needs):
        waiting.add(task(number, needs=needed))
    limits = PoolLimits(size, keep)

    for workers in chain(product(LOADS), product(LOADS, LOADS)):
        plan = assign(waiting, workers, limits)

        assert assign(waiting, workers, limits._replace(amounts=PLENTY)) == plan


def test_a_single_task_waits_for_the_cpus_that_a_worker_holds() -> None:
    """An idle worker alone is not enough."""
    waiting = TaskQueue()
    waiting.add(task(1))
    holder = WorkerLoad(WorkerState.BUSY, UNKNOWN, held={"cpus": 2.0})

    plan = assign(waiting, [holder, IDLE], PoolLimits(2, amounts={"cpus": 2.0}))

    assert ([], {"cpus"}) == (plan.sends, plan.lacking)


# ------------------------------------------------ the queue


def task(
    number: int, *, seconds: float = TINY, needs: Needs | None = None, **of_task: Any
) -> InFlight:
    """Return a task that waits."""
    planned = Task("t", Node(name="n"), Kind.PULL, None, "", **of_task)
    job = Job(planned, StepContext("", "", 0, 1), key=("t", 1))
    nobody: Any = None
    code = NodeCode(b"digest", b"code", seconds)
    return InFlight(number, job, nobody, code, needs=needs)


def test_nothing_is_sent_ahead_while_a_caller_that_goes_on_exceeds_the_cpus() -> None:
    """A caller lends its CPUs while it waits, and takes them back at once."""
    waiting = TaskQueue()
    for number in range(9):
        waiting.add(task(number, seconds=TINY))
    short = WorkerLoad(WorkerState.BUSY, TINY, held={"cpus": 1})
    caller = WorkerLoad(WorkerState.BUSY, UNKNOWN, held={"cpus": 4}, needs=Needs({}))

    exceeded = assign(waiting, [short, caller], PoolLimits(2, amounts={"cpus": 4}))
    enough = assign(waiting, [short, caller], PoolLimits(2, amounts={"cpus": 5}))

    assert [] == exceeded.sends
    assert [(0, 4)] == [(index, len(tasks)) for index, tasks in enough.sends]


def test_called_tasks_go_before_their_callers_siblings() -> None:
    """And first come, first served among equals."""
    queue = TaskQueue()
    shallow, later = task(1), task(3)
    deep = task(2, origin=TaskOrigin(depth=2))
    for each in (shallow, deep, later):
        queue.add(each)

    assert [deep, shallow] == queue.take(2)
    assert [later] == queue.take(10)
    assert 0 == queue.count


def test_tasks_that_were_taken_back_wait_first_and_in_their_order() -> None:
    """Those that were withdrawn wait no more."""
    queue = TaskQueue()
    first, second, third, gone = (task(number) for number in range(4))
    for each in (third, gone, first, second):
        queue.add(each)
    for _ in range(2):
        queue.remove([gone])

    assert [first, second, third] == [*queue]
    assert [first, second] == queue.take(2)
    assert [third] == [*queue]


def test_a_task_with_a_timeout_shares_no_batch() -> None:
    """Its time begins when it is sent."""
    assert TINY == task(1).seconds
    assert UNKNOWN == task(1, timeout=object()).seconds


def test_one_task_that_was_held_up_does_not_end_batches() -> None:
    """Half a second for the operating system says nothing about the others."""
    code = NodeCode(b"digest", b"code")
    assert UNKNOWN == code.seconds
    for seconds in (20e-6, 0.5):
        code.measured(seconds)

    assert code.seconds < BATCH_SECONDS / 100


def test_a_slow_first_task_is_forgotten_soon() -> None:
    """It has imported what the others use."""
    code = NodeCode(b"digest", b"code")
    for seconds in (0.5, *(10 * [TINY])):
        code.measured(seconds)

    assert code.seconds < BATCH_SECONDS
