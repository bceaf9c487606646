"""What the pool decides once tasks say what they take, without a process or a clock."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task
from flowpregel.context import Job, RunInfo
from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes.coordinator.assign import (
    OLDEST_EVERY,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    assign,
)
from flowpregel.executors.processes.coordinator.resources import RateWindow, amounts_of
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import PLAIN, WorkerKind

UNKNOWN = float("inf")
THERE = {"cpus": 4.0, "memory": 8.0, "gpus": 2.0, "api": 1.0}
IDLE = WorkerLoad(WorkerState.IDLE)
FOUR = PoolLimits(4, amounts=THERE, gpus=("0", "1"))


def task(
    number: int, run: str = "run", *, seconds: float = UNKNOWN, **of_task: Any
) -> InFlight:
    """Return a task that waits."""
    job = Job(
        Task("t", Node(name="n"), Kind.CALL, None, ""),
        StepContext("", "", 0, 1),
        RunInfo(run_id=run),
        ("t", 1),
    )
    nobody: Any = None
    return InFlight(
        number, job, nobody, NodeCode(b"digest", b"code", seconds), **of_task
    )


def needs(threads: int | None = None, **amounts: float) -> Needs:
    """Return what a task takes, one CPU at least."""
    return Needs({"cpus": 1.0, **amounts}, threads)


def busy(state: WorkerState = WorkerState.BUSY, **held: float) -> WorkerLoad:
    """Return a worker that has a task."""
    return WorkerLoad(state, UNKNOWN, PLAIN, {"cpus": 1.0, **held})


def queue_of(*waiting: Needs | None) -> TaskQueue:
    """Return tasks that wait, numbered from 0."""
    queue = TaskQueue()
    for number, each in enumerate(waiting):
        queue.add(task(number, needs=each))
    return queue


WAITING = WorkerState.WAITING
GUESS = Needs({"cpus": 1.0, "memory": 9.0}, is_measured=True)
ONE_GPU, OTHER_GPU = WorkerKind(None, ("0",)), WorkerKind(None, ("1",))


@pytest.mark.parametrize(
    ("queue", "workers", "starts", "sends"),
    [
        # What is free is given away, in order.
        ([needs(cpus=2), needs(cpus=2)], 4 * [IDLE], [], {0: [0], 1: [1]}),
        ([needs(cpus=3), needs(cpus=1)], 4 * [IDLE], [], {0: [0], 1: [1]}),
        ([needs(api=1), needs(api=1), None], 4 * [IDLE], [], {0: [0], 1: [2]}),
        ([needs(memory=5), needs(memory=5), needs()], 4 * [IDLE], [], {0: [0], 1: [2]}),
        ([needs()], [busy(api=1), IDLE], [], {1: [0]}),
        # What a task lacks is kept for it: nobody behind it gets that.
        ([needs(cpus=4), needs(cpus=1), None], [busy(), IDLE], [], {}),
        ([needs(memory=8), needs(memory=1)], [busy(memory=1), IDLE], [], {}),
        ([needs(memory=8), needs(api=1)], [busy(memory=1), IDLE], [], {1: [1]}),
        # An estimate of its memory makes a task wait, unless it would run alone.
        ([GUESS], [busy(memory=1), IDLE], [], {}),
        ([GUESS], [IDLE], [], {0: [0]}),
        # A task that waits for its calls lends its CPUs, and keeps the rest.
        ([needs(cpus=4)], [busy(WAITING, cpus=4), IDLE], [], {1: [0]}),
        ([needs(memory=4)], [busy(WAITING, memory=5), IDLE], [], {}),
        # Workers are started for what has none that is fit.
        ([needs(threads=2), needs()], [IDLE], [WorkerKind(2)], {0: [1]}),
        ([needs(gpus=1), needs(gpus=1)], [IDLE], [ONE_GPU, OTHER_GPU], {}),
        ([needs(gpus=1)], [WorkerLoad(WorkerState.IDLE, kind=OTHER_GPU)], [], {0: [0]}),
        ([needs(gpus=1)], [WorkerLoad(WorkerState.STARTING, kind=OTHER_GPU)], [], {}),
        (
            [needs(gpus=1)],
            [WorkerLoad(WorkerState.BUSY, UNKNOWN, ONE_GPU, {"gpus": 1})],
            [OTHER_GPU],
            {},
        ),
        # Tasks that say nothing are given to plain workers only.
        (
            [None, None],
            [WorkerLoad(WorkerState.IDLE, kind=ONE_GPU)],
            [PLAIN, PLAIN],
            {},
        ),
        (5 * [None], 3 * [busy()] + 2 * [IDLE], [], {3: [0]}),
    ],
)
def test_what_is_free_is_given_away(
    queue: list[Needs | None], workers: list[WorkerLoad], starts: Any, sends: Any
) -> None:
    """And no more than that."""
    plan = assign(queue_of(*queue), workers, FOUR)

    assert starts == plan.starts
    assert sends == {index: [each.id for each in tasks] for index, tasks in plan.sends}


def test_the_call_of_a_task_that_holds_something_is_not_kept_waiting_by_others() -> (
    None
):
    """They may wait for what its caller holds."""
    queue = queue_of(
        needs(memory=6), Needs({"cpus": 1.0, "memory": 2.0}, is_below=True)
    )

    plan = assign(queue, [busy(WAITING, memory=4), IDLE], FOUR)

    assert [1] == [each.id for _, tasks in plan.sends for each in tasks]


@pytest.mark.parametrize(
    ("passing", "stuck"), [((), True), (("memory",), False), (("api",), True)]
)
def test_a_task_is_stuck_if_nothing_runs_and_nothing_can(
    passing: tuple[str, ...], stuck: bool
) -> None:
    """Unless what it lacks comes by itself."""
    queue = queue_of(Needs({"cpus": 1.0, "memory": 5.0}, is_below=True))

    plan = assign(queue, 2 * [busy(WAITING, memory=4)], FOUR, passing)

    assert stuck == (plan.stuck is not None)


def calls_of_a_pass(queue: TaskQueue, workers: list[WorkerLoad]) -> int:
    """Return how many functions are called while it is decided what *workers* get."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    assign(queue, workers, FOUR)  # fills the caches of `isinstance`
    gc.collect()
    gc.disable()  # finalizers of other tests would count
    sys.setprofile(note)
    try:
        assign(queue, workers, FOUR)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_what_cannot_start_is_looked_at_once_however_much_of_it_waits() -> None:
    """A task in front of the others or behind them costs the same."""
    one_place, large, any_task = needs(api=1), needs(memory=8), needs(memory=1)
    few = queue_of(*2 * [one_place, large], any_task)
    many = queue_of(*1_000 * [one_place, large], any_task)
    workers = [busy(api=1, memory=1), *2 * [IDLE]]

    assert calls_of_a_pass(few, workers) == calls_of_a_pass(many, workers)


def short_queue_of(*waiting: Needs | None) -> TaskQueue:
    """Return tasks that wait and are known to take next to no time."""
    queue = TaskQueue()
    for number, each in enumerate(waiting):
        queue.add(task(number, seconds=1e-5, needs=each))
    return queue


API, LARGE = needs(api=1), needs(memory=8)
RATE, FRESH = Needs({"cpus": 1.0}, rate="r"), Needs({"cpus": 1.0}, is_fresh=True)
SHORT_BUSY = WorkerLoad(WorkerState.BUSY, 1e-5, PLAIN, API.amounts, API)


@pytest.mark.parametrize(
    ("queue", "workers", "sends"),
    [
        # One after the other they need one place, and no more than their share goes
        # together.
        (30 * [API], 4 * [IDLE], {0: 8}),
        ([*8 * [API], *8 * [None]], 2 * [IDLE], {0: 2, 1: 2}),
        # A task of another kind ends a batch.
        ([API, None, API, None], 2 * [IDLE], {0: 1, 1: 1}),
        # Each start counts, or takes a worker of its own.
        (9 * [RATE], [IDLE], {0: 1}),
        (
            9 * [FRESH],
            [WorkerLoad(WorkerState.IDLE, kind=WorkerKind(is_fresh=True))],
            {0: 1},
        ),
        # What a busy worker gets behind its tasks takes the same as they do,
        ([*8 * [None], *8 * [API]], [SHORT_BUSY], {}),
        (
            9 * [None],
            [WorkerLoad(WorkerState.BUSY, 1e-5, PLAIN, {"cpus": 1.0})],
            {0: 2},
        ),
        # and is not kept for a task before.
        ([LARGE, *8 * [Needs({"cpus": 1.0, "memory": 1.0})]], [busy(memory=1)], {}),
    ],
)
def test_short_tasks_that_take_the_same_go_together(
    queue: list[Needs | None], workers: list[WorkerLoad], sends: Any
) -> None:
    """As tasks do that say nothing."""
    amounts = {**THERE, "r": 9.0}

    plan = assign(short_queue_of(*queue), workers, FOUR._replace(amounts=amounts))

    assert sends == {index: len(tasks) for index, tasks in plan.sends}


@pytest.mark.parametrize(("earlier", "sends"), [([], {0: 4, 1: 1}), ([LARGE], {1: 1})])
def test_a_busy_worker_gets_no_tasks_that_take_what_an_earlier_task_waits_for(
    earlier: list[Needs | None], sends: Any
) -> None:
    """A row of small tasks behind each other would starve a large one."""
    small = needs(memory=1)
    worker = WorkerLoad(WorkerState.BUSY, 1e-5, PLAIN, small.amounts, small)
    queue = short_queue_of(*earlier, None, *8 * [small])

    plan = assign(queue, [worker, IDLE], PoolLimits(2, amounts=THERE))

    assert sends == {index: len(tasks) for index, tasks in plan.sends}


# ------------------------------------------------ whose turn it is


def test_a_task_that_says_nothing_has_no_priority_over_one_that_says_none() -> None:
    """Nor the other way round."""
    assert 0 == task(1).priority


def test_runs_take_turns() -> None:
    """A run of two tasks waits for one task of a run of two hundred, not for all."""
    queue = TaskQueue()
    for number in range(200):
        queue.add(task(number, "large"))
    (first,) = queue.take(1)
    for number in (200, 201):
        queue.add(task(number, "small"))

    turns = [queue.take(1)[0].job.run.run_id for _ in range(4)]

    assert "large" == first.job.run.run_id
    assert 2 == turns.count("small")
    assert ["small", "large", "small", "large"] in (turns, turns[::-1])


def test_higher_priorities_go_first_and_none_waits_for_ever() -> None:
    """Each fourth turn is that of the longest wait."""
    queue = TaskQueue()
    queue.add(task(0, priority=-1))
    for number in range(1, 20):
        queue.add(task(number, priority=5))

    taken = [queue.take(1)[0].id for _ in range(OLDEST_EVERY)]

    assert 0 in taken
    assert [1, 2] == taken[:2]
    assert len({*taken}) == OLDEST_EVERY


def test_all_tasks_are_taken_once_whatever_their_order() -> None:
    """In batches over runs and priorities too."""
    queue = TaskQueue()
    for number in range(100):
        queue.add(task(number, f"run {number % 3}", priority=number % 2))

    taken = [each.id for _ in range(15) for each in queue.take(7)]

    assert [*range(100)] == sorted(taken)
    assert 0 == queue.count


# ------------------------------------------------ rates, and what there is


def test_a_rate_counts_what_started_within_its_time() -> None:
    """Any window of that length has no more."""
    log = RateWindow("2/min")
    log.add(100.0)
    log.add(110.0)

    assert 0 == log.available(0, 159.9)
    assert 160.0 == log.next_change_at(159.9)
    assert 1 == log.available(0, 160.0)
    assert 2 == log.available(0, 170.0)


def test_the_machine_is_what_nothing_is_said_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its GPUs are those that the program may use."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")

    amounts, gpus = amounts_of({"memory": "2GB", "api": 4}, 8)

    assert {"cpus": 8, "memory": 2e9, "gpus": 2, "api": 4} == amounts
    assert ("3", "GPU-5") == gpus
    assert ("3",) == amounts_of({"gpus": 1}, 8)[1]
    assert ("0", "1", "2") == amounts_of({"gpus": 3}, 8)[1]
    assert amounts_of(None, 8)[0]["memory"] > 1 << 28


@pytest.mark.parametrize(("said", "there"), [("-1", ()), ("", ()), ("2,-1,3", ("2",))])
def test_a_gpu_that_is_none_hides_those_behind_it(
    said: str, there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for CUDA: a program that hides its GPUs has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)

    amounts, gpus = amounts_of(None, 8)

    assert (len(there), there) == (amounts["gpus"], gpus)


@pytest.mark.parametrize(
    "wrong", [{"api": 0}, {"api": "many"}, {"memory": "lots"}, {"a": True}]
)
def test_amounts_that_cannot_be_are_refused(wrong: Any) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError):
        amounts_of(wrong, 2)
