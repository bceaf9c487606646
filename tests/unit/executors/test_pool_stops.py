"""How a pool stops tasks, and what becomes of them when a worker ends: the test plays
workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import Any

import pytest

from flowpregel._core.records import Raised, Returned, Withdrawn
from flowpregel.errors import NodeTimeoutError, WorkerDiedError
from flowpregel.executors.base import Backlog
from flowpregel.executors.processes.coordinator import worker_process
from flowpregel.executors.processes.wire import protocol, serialization
from flowpregel.executors.processes.wire.guard_process import PROCESS_TAG
from flowpregel.policies import TimeoutPolicy
from tests.unit.executors.quick_pools import (
    LONG,
    Events,
    Order,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    job_of,
)


def begun(pool: PlayedPool, events: Events, *jobs: Any) -> tuple[PlayedWorker, Order]:
    """Return a worker that has all of *jobs*, which are short, and runs the first; and
    that.
    """
    pool.start([first := job_of()], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(first)
    pool.settle()
    pool.start(jobs, events)
    order = worker.order()
    while len(worker.orders) < len(jobs) - 1:
        worker.read(wait=True)
    return worker, order


# ------------------------------------------------ cancelling


@pytest.mark.parametrize("kill", [True, False])
def test_a_task_that_waits_is_withdrawn_and_never_sent(
    kill: bool, pool_of: PoolMaker
) -> None:
    """The others keep their turns."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(3)]
    pool.start(jobs, events)
    worker = pool.worker()

    pool.cancel(jobs[0].key, kill=kill)

    assert Withdrawn is type(events.outcome(jobs[0]))
    worker.ready()
    assert [jobs[1].key[0], jobs[2].key[0]] == [
        worker.run().task_id,
        worker.run().task_id,
    ]


def test_a_running_task_is_left_alone_unless_it_is_to_be_killed(
    pool_of: PoolMaker,
) -> None:
    """It ends as it ends."""
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, order = begun(pool, events, job)

    pool.cancel(job.key, kill=False)
    pool.settle()

    assert not worker.process.has_stop_signal()
    worker.end_task(order, "done")
    assert "done" == events.value(job)


def test_a_running_task_is_signalled_and_its_worker_goes_on(pool_of: PoolMaker) -> None:
    """It is withdrawn, whatever it had for a result; nothing is killed when it has
    ended.
    """
    pool, events = pool_of(1, grace=0.03), Events()
    job = job_of()
    worker, order = begun(pool, events, job)

    pool.cancel(job.key, kill=True)
    pool.settle()
    assert worker.process.has_stop_signal()
    assert order.number == worker.status[protocol.UNWANTED]
    worker.end_task(order, "done", flags=protocol.STOPPED)

    assert Withdrawn is type(events.outcome(job))
    pool.elapse(0.06)
    pool.start([late := job_of()], events)
    worker.run("late")
    assert "late" == events.value(late)


def test_a_task_that_had_ended_before_the_signal_has_its_result(
    pool_of: PoolMaker,
) -> None:
    """Its end was on its way."""
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, order = begun(pool, events, job)

    pool.cancel(job.key, kill=True)
    worker.end_task(order, "done")

    assert "done" == events.value(job)


def test_a_task_that_does_not_stop_is_killed_with_its_worker(
    pool_of: PoolMaker,
) -> None:
    """After the grace, and not before; those behind it run elsewhere."""
    grace = 0.05
    pool, events = pool_of(1, grace=grace), Events()
    jobs = [job_of() for _ in range(3)]
    worker, _ = begun(pool, events, *jobs)
    asked = time.monotonic()

    pool.cancel(jobs[0].key, kill=True)
    pool.cancel(jobs[0].key, kill=True)

    assert Withdrawn is type(events.outcome(jobs[0]))
    assert grace <= time.monotonic() - asked
    assert -9 == worker.process.exitcode
    other = pool.worker().ready()
    assert [jobs[1].key[0], jobs[2].key[0]] == [
        other.run().task_id,
        other.run().task_id,
    ]


def test_a_task_behind_another_is_withdrawn_and_that_goes_on(
    pool_of: PoolMaker,
) -> None:
    """No signal is meant for it."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(3)]
    worker, order = begun(pool, events, *jobs)

    pool.cancel(jobs[1].key, kill=True)

    assert Withdrawn is type(events.outcome(jobs[1]))
    assert not worker.process.has_stop_signal()
    worker.end_task(order, "done")
    assert "done" == events.value(jobs[0])


def test_a_run_that_is_to_end_warns_its_running_task_and_withdraws_the_rest(
    pool_of: PoolMaker,
) -> None:
    """The task sees that in its worker's status."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(3)]
    worker, order = begun(pool, events, *jobs)
    pool.start([waiting := job_of(len)], events)
    pool.settle()

    for job in (*jobs, waiting):
        pool.warn(job.key)

    ended = events.outcomes(jobs[1], jobs[2], waiting)
    assert [Withdrawn] * 3 == [type(each) for each in ended]
    assert order.number == worker.status[protocol.ENDING]
    assert not worker.process.has_stop_signal()
    worker.end_task(order, "last")
    assert "last" == events.value(jobs[0])


# ------------------------------------------------ timeouts


def timed_out(
    events: Events, job: Any, worker: PlayedWorker, order: Order
) -> NodeTimeoutError:
    """Return the error of *job*, whose time is over, as its worker answers the
    signal.
    """
    worker.end_task(order, Withdrawn(), flags=protocol.STOPPED)
    outcome = events.outcome(job)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, NodeTimeoutError)
    return outcome.error


def test_a_task_has_its_time_from_when_it_was_sent(pool_of: PoolMaker) -> None:
    """Signs of life do not prolong that."""
    pool, events = pool_of(1), Events()
    job = job_of(timeout=TimeoutPolicy(run_timeout=0.05))
    pool.start([job], events)
    worker = pool.worker()
    pool.elapse(0.06)
    sent = time.monotonic()
    worker.ready()
    order = worker.order()
    assert not worker.process.has_stop_signal()

    worker.send(protocol.BEAT, order.number)
    pool.until(worker.process.has_stop_signal)

    assert 0.05 <= time.monotonic() - sent
    error = timed_out(events, job, worker, order)
    assert ("run", 0.05) == (error.kind, error.timeout)


@pytest.mark.parametrize(
    ("refresh_on", "kind", "is_alive"),
    [
        ("auto", protocol.EMITTED, True),
        ("auto", protocol.BEAT, True),
        ("heartbeat", protocol.BEAT, True),
        ("heartbeat", protocol.EMITTED, False),
    ],
)
def test_a_task_that_shows_no_sign_of_life_is_stopped(
    refresh_on: Any, kind: int, is_alive: bool, pool_of: PoolMaker
) -> None:
    """Its time begins again with each, of those that count."""
    policy = TimeoutPolicy(idle_timeout=0.2, refresh_on=refresh_on)
    pool, events = pool_of(1, grace=LONG), Events()
    job = job_of(timeout=policy)
    pool.start([job], events)
    worker = pool.worker().ready()
    order = worker.order()
    began = time.monotonic()
    pool.elapse(0.02)

    signed = time.monotonic()
    worker.send(kind, order.number, serialization.pack("chunk").data)
    pool.until(worker.process.has_stop_signal)
    stopped = time.monotonic()

    if kind == protocol.EMITTED:
        assert "chunk" == events.chunk()
    silent = timed_out(events, job, worker, order).elapsed
    assert (
        silent <= time.monotonic() - signed if is_alive else stopped - began <= silent
    )


def test_a_task_that_was_held_back_has_its_whole_idle_time_again(
    pool_of: PoolMaker,
) -> None:
    """Its reader has caught up in the middle of an idle time."""
    idle = 0.2
    backlog = Backlog(limit=1)
    pool, events = pool_of(1, grace=LONG), Events(backlog)
    job = job_of(timeout=TimeoutPolicy(idle_timeout=idle))
    pool.start([job], events)
    worker = pool.worker().ready()
    order = worker.order()
    worker.send(protocol.EMITTED, order.number, serialization.pack("chunk").data)
    assert "chunk" == events.chunk()
    pool.elapse(1.75 * idle)
    assert not worker.process.has_stop_signal()

    caught_up = time.monotonic()
    backlog.clear()
    pool.until(worker.process.has_stop_signal)

    assert idle <= time.monotonic() - caught_up


def test_reading_a_result_may_take_what_is_left_and_the_grace(
    pool_of: PoolMaker,
) -> None:
    """A result that is never unpickled is no end."""
    pool, events = pool_of(1, grace=LONG), Events()
    job = job_of(timeout=TimeoutPolicy(run_timeout=60))
    pool.start([job], events)
    pool.worker().ready().run()

    seconds = events.next_unread().seconds  # type: ignore[union-attr]

    assert 60 < seconds < 60 + LONG


def test_the_shorter_of_two_timeouts_counts(pool_of: PoolMaker) -> None:
    """It is named."""
    pool, events = pool_of(1, grace=LONG), Events()
    job = job_of(timeout=TimeoutPolicy(run_timeout=60, idle_timeout=0.02))
    pool.start([job], events)
    worker = pool.worker().ready()
    order = worker.order()

    pool.until(worker.process.has_stop_signal)

    error = timed_out(events, job, worker, order)
    assert ("idle", 0.02) == (error.kind, error.timeout)


def test_a_timer_is_cancelled_when_its_task_has_ended(pool_of: PoolMaker) -> None:
    """However far away it is: the one that is left looks for unused workers."""
    pool, events = pool_of(1), Events()
    loop = pool.pool.loop
    pool.start([first := job_of()], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(first)
    pool.until(lambda: loop.timer_count == 1)
    job = job_of(timeout=TimeoutPolicy(run_timeout=3_600))
    pool.start([job], events)
    order = worker.order()
    pool.settle()
    assert 2 == loop.timer_count

    worker.end_task(order)
    events.value(job)

    pool.until(lambda: loop.timer_count == 1)


# ------------------------------------------------ how workers end


def died(events: Events, job: Any) -> WorkerDiedError:
    """Return the error of *job*, whose worker is gone."""
    outcome = events.outcome(job)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, WorkerDiedError)
    return outcome.error


def test_a_death_costs_the_task_that_ran_and_no_other(pool_of: PoolMaker) -> None:
    """Its error names the worker, how that ended, and what it wrote last."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(3)]
    worker, _ = begun(pool, events, *jobs)
    os.write(worker.stderr, b"first\n")
    worker.send(protocol.PRINTED, 0, b"out of luck\n", protocol.STDERR)

    worker.process.kill()

    error = died(events, jobs[0])
    assert (worker.pid, "killed by SIGKILL") == (error.pid, error.cause)
    assert "out of luck" in error.report
    assert "first" in error.report
    assert "peak memory" in error.report
    other = pool.worker().ready()
    assert [jobs[1].key[0], jobs[2].key[0]] == [
        other.run().task_id,
        other.run().task_id,
    ]


def test_the_time_of_a_task_that_died_with_its_worker_is_known(
    pool_of: PoolMaker,
) -> None:
    """It began when it was sent, as far as anybody knows."""
    before = time.time_ns()
    pool, events = pool_of(1), Events()
    worker, _ = begun(pool, events, job_of())
    sent = time.time_ns()

    worker.process.kill()

    span = events.next().span
    ended = time.time_ns()
    assert before <= span.began <= sent
    assert 0 <= span.seconds <= (ended - before) / 1e9
    assert worker.pid == span.pid


def test_a_worker_that_exits_by_itself_is_told_from_one_that_was_killed(
    pool_of: PoolMaker,
) -> None:
    """The exit code is in the error."""
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, _ = begun(pool, events, job)

    worker.process.end()

    assert "it exited with code 0" == died(events, job).cause


def test_an_end_that_was_sent_before_the_worker_died_counts(pool_of: PoolMaker) -> None:
    """It is in the link, which outlives the process."""
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, order = begun(pool, events, job)

    worker.end_task(order, "done")
    worker.process.kill()

    assert "done" == events.value(job)


def test_a_worker_that_dies_between_tasks_costs_nothing(pool_of: PoolMaker) -> None:
    """Another takes its place."""
    pool, events = pool_of(1), Events()
    pool.start([first := job_of()], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(first)

    worker.process.kill()

    replacement = pool.worker().ready()
    pool.start([job := job_of()], events)
    replacement.run("there")
    assert "there" == events.value(job)


def test_a_task_whose_workers_all_die_before_it_begins_ends(pool_of: PoolMaker) -> None:
    """It was tried four times."""
    pool, events = pool_of(1), Events()
    job = job_of()
    pool.start([job], events)
    for _ in range(4):
        assert events.is_empty()
        worker = pool.worker().ready()
        worker.read(wait=True)
        worker.process.kill()

    assert "SIGKILL" in died(events, job).cause


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"Segmentation fault, what now? Bytes.", "garbage"),
        # A frame of the right form about a task that it does not have.
        (None, "cannot read"),
    ],
)
def test_a_worker_that_sends_what_cannot_be_is_killed(
    data: bytes | None, cause: str, pool_of: PoolMaker
) -> None:
    """And the task that it ran is told so."""
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, _ = begun(pool, events, job)

    if data is None:
        worker.send(protocol.ENDED, 4_711, b"")
    else:
        worker.link.sendall(data)

    assert cause in died(events, job).cause
    assert -9 == worker.process.exitcode


def test_a_worker_that_has_closed_its_link_may_still_exit_by_itself(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How it ended is in the error then; one that stays is killed."""
    for seconds, cause in ((10 * LONG, "it exited with code 0"), (0.01, "link")):
        monkeypatch.setattr(worker_process, "_PARTING", seconds)
        pool, events = pool_of(1), Events()
        job = job_of()
        worker, _ = begun(pool, events, job)

        worker.link.shutdown(socket.SHUT_RDWR)
        pool.settle()
        if seconds > LONG:
            worker.process.end()

        assert cause in died(events, job).cause


def test_a_worker_that_sends_garbage_is_killed_at_once(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not exit by itself."""
    monkeypatch.setattr(worker_process, "_PARTING", 10 * LONG)
    pool, events = pool_of(1), Events()
    job = job_of()
    worker, _ = begun(pool, events, job)

    worker.link.sendall(b"Segmentation fault, what now? Bytes.")

    assert "garbage" in died(events, job).cause


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_task_has_started_ends_with_a_worker_that_was_killed_and_no_other(
    killed: bool, pool_of: PoolMaker
) -> None:
    """That which exits by itself may have meant what it left behind to live."""
    pool, events = pool_of(1, grace=0.01), Events()
    job = job_of()
    worker, _ = begun(pool, events, job)
    env = {**os.environ, PROCESS_TAG: worker.process.env[PROCESS_TAG]}
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env=env, start_new_session=True
    ) as started:
        if killed:
            pool.cancel(job.key, kill=True)
        else:
            worker.process.end()
        events.outcome(job)

        # The guard has done what it was told.
        pool.end()

        assert (-9 if killed else None) == (
            started.wait(LONG) if killed else started.poll()
        )


def test_a_task_that_was_stopped_as_its_worker_died_is_withdrawn(
    pool_of: PoolMaker,
) -> None:
    """It was to end anyway."""
    pool, events = pool_of(1, grace=LONG), Events()
    job = job_of()
    worker, _ = begun(pool, events, job)
    pool.cancel(job.key, kill=True)
    pool.settle()

    worker.process.kill()

    assert Withdrawn is type(events.outcome(job))


def test_a_task_that_ends_leaves_its_worker_free_for_the_next(
    pool_of: PoolMaker,
) -> None:
    """The end is told before anything else is sent."""
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(50)]
    pool.start(jobs, events)
    worker = pool.worker().ready()

    for _ in jobs:
        worker.run()

    assert [Returned] * 50 == [type(each) for each in events.outcomes(*jobs)]
