"""Which worker of a pool gets which task, and how workers come and go: the test plays
them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from flowpregel._core.records import Raised, Returned, Withdrawn
from flowpregel.errors import ExecutorUnavailableError, TaskSerializationError
from flowpregel.executors.processes.coordinator import worker_process
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.policies import Resources
from tests.unit.executors.quick_pools import (
    LONG,
    Events,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    call_of,
    job_of,
)

# The test's own process has other OS threads, of which none matters in a fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def idle_worker(pool: PlayedPool, events: Events, **of_node: Any) -> PlayedWorker:
    """Return a worker that has run one short task, and has nothing to do."""
    job = job_of(**of_node)
    pool.start([job], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(job)
    pool.settle()
    return worker


# ------------------------------------------------ who gets which task


def never_measured() -> None:
    """Stand for a task of which no call has ended, here or in another test."""


def test_workers_are_started_for_tasks_and_no_more_than_the_pools_size(
    pool_of: PoolMaker,
) -> None:
    """A task that finds no worker waits for the first that is free."""
    pool, events = pool_of(2), Events()
    jobs = [job_of(never_measured) for _ in range(3)]
    pool.start(jobs, events)
    first, second = pool.worker(), pool.worker()
    assert not pool.is_starting()
    assert not first.has_order()

    first.ready()
    second.ready()
    orders = {worker.order(): worker for worker in (first, second)}
    pool.settle()
    assert not first.has_order()
    assert not second.has_order()
    (_, busy), (ended, free) = orders.items()
    free.end_task(ended)
    third = free.order()

    assert {job.key[0] for job in jobs} == {order.task_id for order in (*orders, third)}
    assert not busy.has_order()


def test_a_pool_that_has_begun_keeps_all_its_workers(pool_of: PoolMaker) -> None:
    """From when the first has shown that they can start."""
    pool, events = pool_of(2), Events()
    pool.start([job_of()], events)
    worker = pool.worker()
    assert not pool.is_starting()

    worker.ready()

    assert pool.is_starting()


def test_short_tasks_go_together_and_all_but_the_first_need_a_token(
    pool_of: PoolMaker,
) -> None:
    """The first begins at once; the others can be taken back."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    jobs = [job_of() for _ in range(5)]

    pool.start(jobs, events)

    orders = [worker.order() for _ in jobs]
    assert [order.number for order in orders[1:]] == worker.take_tokens()
    assert 5 == len({order.number for order in orders})
    for order in orders:
        worker.end_task(order)
    assert [Returned] * 5 == [type(events.outcome(job)) for job in jobs]


def test_code_goes_to_a_worker_once(pool_of: PoolMaker) -> None:
    """It keeps that."""
    pool, events = pool_of(1), Events()
    pool.start([job_of(str)], events)
    worker = pool.worker().ready()
    assert worker.run().code
    pool.start([job_of(str)], events)
    assert not worker.run().code

    pool.start([job_of(repr)], events)

    assert worker.run().code


def test_a_busy_worker_gets_short_tasks_ahead_of_time(pool_of: PoolMaker) -> None:
    """However long it was idle before."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    # The machine may be too busy to send the second task while the first is short.
    for _ in range(50):
        pool.elapse(0.03)
        pool.start([job_of()], events)
        running = worker.order()
        pool.start([job_of()], events)
        pool.settle()
        if is_ahead := worker.has_order():
            break
        worker.end_task(running)
        worker.run()

    assert is_ahead


def test_nothing_is_sent_behind_a_task_that_takes_long_after_all(
    pool_of: PoolMaker,
) -> None:
    """Its kind was short before."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    pool.start([job_of()], events)
    running = worker.order()
    pool.elapse(0.03)

    pool.start([job_of()], events)
    pool.settle()

    assert not worker.has_order()
    worker.end_task(running)
    worker.run()


def test_a_worker_with_nothing_to_do_gets_what_waits_behind_others(
    pool_of: PoolMaker,
) -> None:
    """It does not matter who got it first."""
    pool, events = pool_of(2), Events()
    first = idle_worker(pool, events)
    second = pool.worker().ready()
    pool.settle()
    jobs = [job_of() for _ in range(4)]
    pool.start(jobs, events)
    first.order()
    running = second.order()
    pool.settle()
    (behind,) = first.orders

    second.end_task(running)
    second.run()

    again = second.order()
    assert again.task_id == behind.task_id
    assert [] == first.take_tokens()


def test_a_task_whose_turn_has_come_stays_with_its_worker(pool_of: PoolMaker) -> None:
    """Though another has nothing to do: it will begin at once."""
    pool, events = pool_of(3), Events()
    workers = [idle_worker(pool, events), *(pool.worker().ready() for _ in range(2))]
    pool.settle()
    pool.start([job_of(never_measured)], events)
    pool.settle()
    (busy,) = [worker for worker in workers if worker.has_order()]
    first, second = (worker for worker in workers if worker is not busy)
    pool.start([job_of() for _ in range(4)], events)
    running = first.order()
    pool.settle()
    assert first.has_order()

    first.end_task(running)
    for _ in range(2):
        second.run()
    for _ in range(3):
        events.next()
    pool.settle()

    assert not second.has_order()
    assert [first.orders[0].number] == first.take_tokens()


def test_tasks_stay_behind_others_while_no_more_may_run(pool_of: PoolMaker) -> None:
    """Though a worker has nothing to do: it was started while another waited."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    pool.start([job_of(repr), job_of(repr)], events)
    caller = worker.order()
    worker.request(protocol.CALLED, caller, 1, call_of(len, ""))
    other = pool.worker().ready()
    other.run()
    worker.end_task(caller)
    for _ in range(3):
        events.next()
    pool.settle()
    worker.orders.clear()  # what was taken back

    pool.start([job_of(), job_of()], events)
    pool.settle()
    pool.settle()

    busy = worker if worker.has_order() else other
    assert 2 == len(busy.orders)
    assert not (other if busy is worker else worker).has_order()


def test_the_tasks_behind_one_that_makes_a_call_go_to_others(
    pool_of: PoolMaker,
) -> None:
    """It may wait for long, and does not count as running until it is answered."""
    pool, events = pool_of(1), Events()
    first = idle_worker(pool, events)
    jobs = [job_of() for _ in range(3)]
    pool.start(jobs, events)
    caller = first.order()

    first.request(protocol.CALLED, caller, 1, call_of(len, ""))
    second = pool.worker().ready()
    for _ in jobs[1:]:
        second.run()

    assert [] == first.take_tokens()
    pool.settle()
    assert not pool.is_starting()


def test_nothing_is_put_behind_a_task_that_makes_calls(pool_of: PoolMaker) -> None:
    """Nor behind the next of its kind, however short that would be without."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    pool.start([job_of()], events)
    worker.request(protocol.CALLED, worker.order(), 1, call_of(len, ""))

    pool.start([job_of(), job_of()], events)

    other = pool.worker().ready()
    other.order()
    pool.settle()
    assert not other.has_order()
    assert not worker.has_order()


# ------------------------------------------------ how workers go


def test_a_worker_is_replaced_after_its_number_of_tasks(pool_of: PoolMaker) -> None:
    """It has one at a time, so that it never has more."""
    pool, events = pool_of(1, worker_max_tasks=2), Events()
    jobs = [job_of() for _ in range(4)]
    pool.start(jobs, events)
    worker = pool.worker().ready()
    for _ in range(2):
        assert not worker.has_frame(protocol.STOP)
        order = worker.order()
        assert not worker.has_order()
        worker.end_task(order)

    worker.frame(protocol.STOP)

    assert not worker.has_order()
    successor = pool.worker().ready()
    successor.run()


def test_a_task_that_was_taken_back_does_not_count(pool_of: PoolMaker) -> None:
    """It was another worker's in the end."""
    pool, events = pool_of(1, worker_max_tasks=2), Events()
    worker = idle_worker(pool, events)
    job = job_of()
    pool.start([job], events)
    # It came when another had made the worker unfit, which the pool did not know.
    worker.send(protocol.REFUSED, worker.order().number)

    worker.run()

    assert Returned is type(events.outcome(job))
    worker.frame(protocol.STOP)


@pytest.mark.parametrize(("most", "is_replaced"), [(1 << 10, True), (1 << 40, False)])
def test_a_worker_with_too_much_memory_is_replaced(
    most: int, is_replaced: bool, pool_of: PoolMaker
) -> None:
    """When its task has ended."""
    pool, events = pool_of(1, worker_max_rss=most), Events()
    worker = idle_worker(pool, events)

    assert is_replaced == worker.has_frame(protocol.STOP)
    worker.process.end()
    pool.worker()


def test_workers_beside_the_usual_number_go_when_they_are_idle(
    pool_of: PoolMaker,
) -> None:
    """There were more, because their tasks waited for calls."""
    pool, events = pool_of(1), Events()
    pool.start([job_of() for _ in range(12)], events)
    callers = []
    for _ in range(12):
        worker = pool.worker().ready()
        callers.append((worker, worker.order()))
        worker.request(protocol.CALLED, callers[-1][1], 1, call_of(len, ""))
    pool.settle()
    assert not pool.is_starting()

    for worker, order in callers:
        worker.end_task(order)
    for _ in range(24):
        events.next()
    pool.settle()

    stopped = [worker.has_frame(protocol.STOP) for worker, _ in callers]
    assert [False] * 10 + [True] * 2 == stopped


@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_that_a_task_has_changed_for_good_is_replaced(
    others: int, pool_of: PoolMaker
) -> None:
    """What was to run behind that task runs elsewhere."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    jobs = [job_of() for _ in range(1 + others)]
    pool.start(jobs, events)
    worker.run()

    worker.send(protocol.SPOILED, 0, b"the number of open files")

    worker.exit()
    successor = pool.worker().ready()
    for _ in range(others):
        successor.run()
    assert [Returned] * (1 + others) == [type(events.outcome(job)) for job in jobs]


def test_a_task_that_a_changed_worker_refuses_goes_to_another(
    pool_of: PoolMaker,
) -> None:
    """It was sent before the pool could know."""
    pool, events = pool_of(1), Events()
    worker = idle_worker(pool, events)
    job = job_of()
    pool.start([job], events)
    refused = worker.order()

    worker.send(protocol.SPOILED)
    pool.start([job_of()], events)
    pool.settle()
    assert not worker.has_order()
    assert not worker.has_frame(protocol.STOP)
    worker.send(protocol.REFUSED, refused.number)

    worker.frame(protocol.STOP)
    pool.worker().ready().run("there")
    assert "there" == events.value(job)


def test_a_task_for_a_process_of_its_own_has_a_worker_that_ends_with_it(
    pool_of: PoolMaker,
) -> None:
    """No other task gets that."""
    pool, events = pool_of(2), Events()
    fresh = Resources(isolation="fresh")
    pool.start([job_of(resources=fresh)], events)
    worker = pool.worker()
    assert worker.settings.kind.is_fresh

    worker.ready().run()

    worker.frame(protocol.STOP)
    pool.start([job_of()], events)
    pool.settle()
    assert not worker.has_order()


def test_a_gpu_goes_to_a_worker_of_another_kind_and_only_its_idle_user_ends(
    pool_of: PoolMaker,
) -> None:
    """What that has allocated there is freed; a worker with nothing to do and no GPU
    stays.
    """
    pool, events = pool_of(4, gpus=("0", "1")), Events()
    plain = idle_worker(pool, events)
    two_threads = {"resources": Resources(gpus=1, cpus=2)}
    first = worker_of_kind(pool, events, **two_threads)
    assert ("0",) == first.settings.kind.gpus
    busy_job = job_of(resources=Resources(gpus=1, cpus=2))
    pool.start([busy_job], events)
    busy = first.order()

    second = worker_of_kind(pool, events, resources=Resources(gpus=1))
    assert ("1",) == second.settings.kind.gpus
    assert not first.has_frame(protocol.STOP)
    first.end_task(busy)
    events.value(busy_job)
    third = worker_of_kind(pool, events, resources=Resources(gpus=2))

    assert ("0", "1") == third.settings.kind.gpus
    assert first.has_frame(protocol.STOP)
    assert second.has_frame(protocol.STOP)
    assert not plain.has_frame(protocol.STOP)


def worker_of_kind(pool: PlayedPool, events: Events, **of_node: Any) -> PlayedWorker:
    """Return the worker with GPUs that is started for a task, which it has run."""
    job = job_of(**of_node)
    pool.start([job], events)
    while not (worker := pool.worker()).settings.kind.gpus:
        pass  # one of those that the pool keeps
    worker.ready().run()
    events.value(job)
    pool.settle()
    return worker


def test_workers_that_were_idle_for_long_end_and_the_others_stay(
    pool_of: PoolMaker,
) -> None:
    """Their time begins when they have nothing more to do."""
    idle_after = 0.05
    pool, events = pool_of(1, idle_after=idle_after), Events()
    pool.start([job_of()], events)
    worker = pool.worker().ready()
    order = worker.order()
    pool.elapse(3 * idle_after)
    assert not worker.has_frame(protocol.STOP)
    idle_from = time.monotonic()

    worker.end_task(order)
    worker.exit()

    assert idle_after <= time.monotonic() - idle_from
    assert not pool.is_starting()


# ------------------------------------------------ workers that do not start


def failed_initializer() -> bytes:
    """Return what a worker sends whose initializer has failed."""
    return messages.pack_outcome(Raised(ValueError("no model")), "initializer")


def test_tasks_end_when_three_workers_in_a_row_have_not_started(
    pool_of: PoolMaker,
) -> None:
    """With what kept them from it."""
    pool, events = pool_of(1), Events()
    jobs = [job_of(), job_of()]
    pool.start(jobs, events)
    for _ in range(3):
        assert events.is_empty()
        worker = pool.worker()
        worker.send(protocol.FAILED, 0, failed_initializer())
        worker.process.end()

    for outcome in events.outcomes(*jobs):
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, ExecutorUnavailableError)
        assert "no model" in str(outcome.error)
    assert not pool.is_starting()


def test_one_worker_that_starts_is_enough(pool_of: PoolMaker) -> None:
    """The count of failures begins again."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(2)]
    pool.start(jobs, events)
    for _ in range(2):
        pool.worker().process.end()
    worker = pool.worker().ready()
    worker.run()
    events.value(jobs[0])
    worker.order()
    worker.process.kill()
    events.outcome(jobs[1])
    pool.start([late := job_of()], events)
    for _ in range(2):
        pool.worker().process.end()

    pool.worker().ready().run("late")

    assert "late" == events.value(late)


def test_a_worker_that_takes_too_long_to_start_is_killed(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its initializer hangs; the error says how long it was waited for."""
    monkeypatch.setattr(worker_process, "_START_TIMEOUT", 0.05)
    pool, events = pool_of(1), Events()
    job = job_of()
    pool.start([job], events)
    for _ in range(3):
        pool.worker()

    outcome = events.outcome(job)

    assert isinstance(outcome, Raised)
    assert "it was not ready after 0 seconds" in str(outcome.error)


def test_a_worker_that_never_got_ready_is_named_with_how_it_ended(
    pool_of: PoolMaker,
) -> None:
    """There is no other hint."""
    pool, events = pool_of(1), Events()
    job = job_of()
    pool.start([job], events)
    for _ in range(3):
        pool.worker().process.kill()

    outcome = events.outcome(job)

    assert isinstance(outcome, Raised)
    assert "SIGKILL" in str(outcome.error)


# ------------------------------------------------ the end of a pool


def test_a_pool_that_is_closed_withdraws_its_tasks_and_ends_its_workers(
    pool_of: PoolMaker,
) -> None:
    """Those that are idle may exit by themselves."""
    pool, events = pool_of(2, grace=LONG), Events()
    job = job_of()
    pool.start([job], events)
    workers = [pool.worker().ready(), pool.worker().ready()]
    pool.settle()
    idle, busy = sorted(workers, key=PlayedWorker.has_order)

    pool.pool.loop.call(pool.pool.close)

    assert Withdrawn is type(events.outcome(job))
    idle.exit()
    pool.close()
    assert [0, -9] == [idle.process.exitcode, busy.process.exitcode]


def test_a_pool_that_is_closed_takes_no_more_tasks(pool_of: PoolMaker) -> None:
    """Each ends with an error that says so."""
    pool, events = pool_of(1), Events()
    waiting = [job_of(), job_of()]
    pool.start(waiting, events)
    pool.worker()
    pool.pool.loop.call(pool.pool.close)
    assert [Withdrawn] * 2 == [type(each) for each in events.outcomes(*waiting)]
    late = job_of()

    pool.start([late], events)

    outcome = events.outcome(late)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, ExecutorUnavailableError)


# ------------------------------------------------ what cannot be started


def test_a_task_that_cannot_be_packed_ends_and_the_others_run(
    pool_of: PoolMaker,
) -> None:
    """Its error names the argument."""
    pool, events = pool_of(1), Events()
    jobs = [job_of(len, threading.Lock()), job_of()]

    pool.start(jobs, events)

    outcome = events.outcome(jobs[0])
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, TaskSerializationError)
    assert "args[0]" in str(outcome.error)
    pool.worker().ready().run("done")
    assert "done" == events.value(jobs[1])


def test_a_fork_cannot_use_the_pool_of_its_parent(pool_of: PoolMaker) -> None:
    """Nor end it: the workers are the parent's."""
    pool, events = pool_of(1), Events()
    pool.start([job_of()], events)
    worker = pool.worker().ready()
    order = worker.order()

    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(int(LONG))
        try:
            pool.start([job := job_of()], refused := Events())
            outcome = refused.outcome(job)
            assert isinstance(outcome, Raised)
            assert isinstance(outcome.error, ExecutorUnavailableError)
            pool.close()
            code = 0
        finally:
            os._exit(code)

    _, status = os.waitpid(pid, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    worker.end_task(order)
    assert Returned is type(events.next().outcome)
