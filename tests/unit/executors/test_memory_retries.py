"""The needs of a call whose last attempt ran out of memory."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.effects import Emitted, Notice
from flowpregel._core.records import Raised
from flowpregel.context import Job
from flowpregel.errors import OUT_OF_MEMORY, WorkerDiedError
from flowpregel.executors.base import Backlog
from flowpregel.executors.processes.coordinator import crash_report
from flowpregel.executors.processes.coordinator.assign import InFlight, Needs
from flowpregel.executors.processes.coordinator.memory_retries import MemoryRetries
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.policies import RetryPolicy
from tests.unit.executors.quick_pools import (
    Events,
    Order,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    job_of,
)

ALONE = RetryPolicy(on_memory="alone")
MORE = RetryPolicy(on_memory=2.0)
NOT_FOR_MEMORY = RetryPolicy()
NO_MEMORY = Raised(MemoryError())
AMOUNTS = {"cpus": 8.0, "memory": 10.0 * (1 << 20), "gpus": 0.0}


def next_attempt(job: Job) -> Job:
    """Return the job of the next attempt of a task."""
    number = job.task.attempt.number + 1
    task = replace(job.task, attempt=replace(job.task.attempt, number=number))
    return replace(job, task=task, key=(task.id, number))


def fail_for_memory(
    pool: PlayedPool, events: Events, worker: PlayedWorker, **of_node: Any
) -> Job:
    """Have a call end with a MemoryError, and start its next attempt."""
    pool.start([job := job_of(**of_node)], events)
    worker.end_task(worker.order(), NO_MEMORY, flags=protocol.NO_MEMORY)
    assert isinstance(events.outcome(job), Raised)
    pool.start([again := next_attempt(job)], events)
    return again


def busy_workers(
    pool: PlayedPool, events: Events, count: int
) -> list[tuple[PlayedWorker, Order]]:
    """Return *count* workers, each with the call that it runs."""
    workers = []
    for _ in range(count):
        pool.start([job_of()], events)
        worker = pool.worker().ready()
        workers.append((worker, worker.order()))
    return workers


def idle_worker(pool: PlayedPool, events: Events) -> PlayedWorker:
    """Return the worker of a pool of one, which has run a call."""
    ((worker, order),) = busy_workers(pool, events, 1)
    worker.end_task(order)
    events.next()
    return worker


def test_an_attempt_alone_waits_for_the_others_and_the_others_for_it(
    pool_of: PoolMaker,
) -> None:
    """No call runs beside it: not one that ran before, nor one that comes later."""
    pool, events = pool_of(2, amounts=AMOUNTS), Events()
    (first, running), (second, short) = busy_workers(pool, events, 2)
    second.end_task(short)
    events.next()

    again = fail_for_memory(pool, events, second, retry=(ALONE,))
    pool.start([later := job_of()], events)
    pool.settle()
    assert not second.has_order()

    first.end_task(running)
    events.next()
    pool.settle()
    workers = [worker for worker in (first, second) if worker.has_order()]
    assert 1 == len(workers)
    assert again.task.id == workers[0].orders[0].task_id
    workers[0].run("done")
    assert "done" == events.value(again)
    pool.settle()
    assert later.task.id == workers[0].order().task_id


def test_idle_workers_end_before_an_attempt_alone(pool_of: PoolMaker) -> None:
    """What they hold is missing to it."""
    pool, events = pool_of(2, amounts=AMOUNTS), Events()
    (first, running), (second, short) = busy_workers(pool, events, 2)
    second.end_task(short)
    first.end_task(running)
    events.next()
    events.next()

    pool.start([job := job_of(retry=(ALONE,))], events)
    pool.settle()
    busy, idle = (first, second) if first.has_order() else (second, first)
    busy.end_task(busy.order(), NO_MEMORY, flags=protocol.NO_MEMORY)
    events.outcome(job)
    pool.start([next_attempt(job)], events)
    pool.settle()

    chosen, other = (busy, idle) if busy.has_order() else (idle, busy)
    assert chosen.has_order()
    assert other.has_frame(protocol.STOP)


def failed_task(*policies: RetryPolicy) -> InFlight:
    """Return a task whose last attempt has ended."""
    return InFlight(1, job_of(retry=policies), Events(), NodeCode(b"", b""))


@pytest.mark.parametrize(
    ("peak", "claim", "next_claim"),
    [
        (1, 0.0, 2.0),
        (1, 3.0, 6.0),
        (4, 3.0, 8.0),
        (8, 8.0, 10.0),
        (0, 0.0, 10.0),
    ],
    ids=["peak", "claim", "peak over claim", "all there is", "unknown"],
)
def test_an_attempt_with_more_claims_a_multiple(
    peak: int, claim: float, next_claim: float
) -> None:
    """Of what the last attempt used, or of what it claimed if that is more."""
    retries = MemoryRetries({"cpus": 8.0, "memory": 10.0})
    task = failed_task(NOT_FOR_MEMORY, MORE)
    task.needs = Needs({"cpus": 1.0, "memory": claim})

    retries.note(task, peak)

    needs = retries.needs_after(task, task.needs)
    assert {"cpus": 1.0, "memory": next_claim} == needs.amounts
    assert needs.is_measured, "a call is never refused for an estimate"
    assert not needs.is_exclusive
    assert task.needs is retries.needs_after(task, task.needs), "once is enough"


def test_a_call_without_such_a_policy_is_not_remembered() -> None:
    """Its next attempt needs what the first one needed."""
    retries = MemoryRetries({"cpus": 8.0, "memory": 10.0})
    task = failed_task(NOT_FOR_MEMORY)

    retries.note(task, 1)

    assert not retries.has_noted(task)


def test_the_run_gets_a_notice(pool_of: PoolMaker) -> None:
    """It names the call, what it used, and what happens next."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events(Backlog())
    worker = idle_worker(pool, events)

    again = fail_for_memory(pool, events, worker, retry=(MORE,))

    emitted = events.next()
    assert isinstance(emitted, Emitted)
    assert isinstance(emitted.payload, Notice)
    assert again.task.id == emitted.task_id
    text = "ran out of memory (it used 1 MB): it is tried again, and claims 2 MB"
    assert f"str() {text}" == emitted.payload.text


def test_a_pool_remembers_a_bounded_number_of_calls() -> None:
    """A run that has ended makes no further attempt of its calls."""
    retries = MemoryRetries({"cpus": 8.0, "memory": 10.0})
    tasks = [failed_task(ALONE) for _ in range(1100)]

    for task in tasks:
        retries.note(task, 1)

    assert not retries.has_noted(tasks[0])
    assert retries.has_noted(tasks[-1])
    assert 1024 == len([task for task in tasks if retries.has_noted(task)])


@pytest.mark.parametrize("closes_link", [False, True])
def test_each_worker_that_the_kernel_killed_counts(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch, closes_link: bool
) -> None:
    """The kernel may kill two at a time, and one may close its link long before."""
    kills = 0
    monkeypatch.setattr(crash_report, "count_oom_kills", lambda: kills)
    pool, events = pool_of(2, amounts=AMOUNTS), Events()
    workers = busy_workers(pool, events, 2)
    kills = 2

    causes = []
    for worker, _ in workers:
        if closes_link:
            worker.link.shutdown(socket.SHUT_RDWR)
        else:
            worker.process.kill()
        ended = events.next()
        assert isinstance(ended.outcome, Raised)
        assert isinstance(ended.outcome.error, WorkerDiedError)
        causes.append(ended.outcome.error.cause)

    assert [OUT_OF_MEMORY] * 2 == causes
