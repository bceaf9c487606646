"""A pool whose number of workers changes while it works: the test plays the workers."""

from __future__ import annotations

import os

from flowpregel.executors.processes.wire import protocol
from tests.unit.executors.quick_pools import (
    Events,
    Order,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    job_of,
)


def busy_worker(pool: PlayedPool, events: Events) -> tuple[PlayedWorker, Order]:
    """Return the next worker, with the call that it runs."""
    pool.start([job_of()], events)
    worker = pool.worker().ready()
    return worker, worker.order()


def test_a_pool_that_grows_starts_workers_for_what_waits(pool_of: PoolMaker) -> None:
    """As many as there are calls, up to the new size."""
    pool, events = pool_of(1), Events()
    busy_worker(pool, events)
    pool.start([job_of(), job_of()], events)
    assert not pool.is_starting()

    pool.pool.request_size(3, None)

    second, third = pool.worker().ready(), pool.worker().ready()
    assert second.order().number != third.order().number
    assert not pool.is_starting()


def test_a_pool_that_shrinks_lets_running_calls_end(pool_of: PoolMaker) -> None:
    """A worker that is one too many ends after its call; what waits goes to the
    others.
    """
    pool, events = pool_of(2), Events()
    first, running = busy_worker(pool, events)
    second, other = busy_worker(pool, events)
    pool.start([waiting := job_of()], events)

    pool.pool.request_size(1, None)
    pool.settle()
    assert not first.has_frame(protocol.STOP)
    assert not second.has_frame(protocol.STOP)

    first.end_task(running)
    events.next()
    first.exit()
    second.end_task(other)
    events.next()
    assert waiting.task.id == second.order().task_id
    assert not pool.is_starting()


def test_idle_workers_end_at_once_if_there_are_too_many(pool_of: PoolMaker) -> None:
    """The pool starts no others in their place."""
    pool, events = pool_of(2), Events()
    workers = [busy_worker(pool, events), busy_worker(pool, events)]
    for worker, order in workers:
        worker.end_task(order)
        events.next()

    pool.pool.request_size(1, None)
    pool.settle()

    stopped = [worker for worker, _ in workers if worker.has_frame(protocol.STOP)]
    assert 1 == len(stopped)
    stopped[0].process.end()
    assert not pool.is_starting()


def test_a_nice_value_holds_at_once_and_for_new_workers(pool_of: PoolMaker) -> None:
    """A worker restores its own value after each call, so another one replaces it."""
    pool, events = pool_of(1), Events()
    worker, order = busy_worker(pool, events)
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 1

    pool.pool.request_size(None, nice)
    pool.settle()

    assert nice == os.getpriority(os.PRIO_PROCESS, worker.pid)
    pool.start([job_of()], events)
    worker.end_task(order)
    events.next()
    worker.exit()
    following = pool.worker()
    assert nice == following.settings.nice
    following.ready().order()


def test_an_equal_request_changes_nothing(pool_of: PoolMaker) -> None:
    """It is repeated as long as another program watches the run."""
    pool, events = pool_of(1), Events()
    worker, _ = busy_worker(pool, events)
    pool.pool.request_size(1, 3)
    pool.settle()
    settings = pool.pool.settings

    pool.pool.request_size(1, 3)
    pool.settle()

    assert settings is pool.pool.settings
    assert not worker.has_frame(protocol.STOP)


def test_a_worker_with_another_nice_value_gets_no_calls_ahead_of_time(
    pool_of: PoolMaker,
) -> None:
    """Calls that are known to be short go to the worker that replaces it."""
    pool, events = pool_of(1), Events()
    worker, order = busy_worker(pool, events)
    worker.end_task(order)
    events.next()
    pool.start([job_of()], events)
    order = worker.order()

    pool.pool.request_size(None, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    pool.start([following := job_of()], events)
    pool.settle()
    assert not worker.has_order()

    worker.end_task(order)
    events.next()
    worker.exit()
    assert following.task.id == pool.worker().ready().order().task_id


def test_a_pool_that_shrank_sends_no_calls_ahead_to_superfluous_workers(
    pool_of: PoolMaker,
) -> None:
    """Otherwise two workers would share short calls for as long as there are any."""
    pool, events = pool_of(2), Events()
    first, order = busy_worker(pool, events)
    first.end_task(order)
    events.next()
    pool.start([job_of(), job_of()], events)
    second = pool.worker().ready()
    running, other = first.order(), second.order()

    pool.pool.request_size(1, None)
    pool.start([job_of(), job_of()], events)
    pool.settle()
    assert not first.has_order()
    assert not second.has_order()

    first.end_task(running)
    events.next()
    first.exit()
    second.end_task(other)
    events.next()
    second.order()
