"""What tasks take of a pool's resources, and what is refused: the test plays the
workers.
"""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel._core.records import Raised
from flowpregel.context import Job, RunInfo
from flowpregel.errors import ExecutorUnavailableError, ResourcesError
from flowpregel.executors.processes.coordinator.assign import (
    Execution,
    InFlight,
    Needs,
)
from flowpregel.executors.processes.coordinator.crash_report import peak_of
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.policies import Resources
from tests.other_programs import OtherProgram
from tests.unit.executors.quick_pools import (
    SHORT,
    Events,
    Order,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    call_of,
    job_of,
)

AMOUNTS = {"cpus": 8.0, "memory": 8.0, "gpus": 2.0, "api": 1.0}


def outer() -> None:
    """Stand for a task that calls another."""


def inner() -> None:
    """Stand for a task that is called."""


def waiting(
    pool: PlayedPool, events: Events, resources: Resources, parent: Any = None
) -> tuple[Job, PlayedWorker, Order]:
    """Return a task that waits for a call that it has made, and its worker."""
    job = job_of(outer, resources=resources, parent=parent)
    pool.start([job], events)
    worker = pool.worker().ready()
    order = worker.order()
    worker.request(protocol.CALLED, order, 1, call_of(inner))
    events.call()
    return job, worker, order


def refusal(events: Events, job: Job) -> ResourcesError:
    """Return why *job* was refused."""
    outcome = events.outcome(job)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, ResourcesError)
    return outcome.error


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        (Resources(cpus=8), Resources(cpus=8)),
        (Resources(memory=5), Resources(memory=3)),
        (Resources(gpus=1), Resources(gpus=1)),
        (Resources(limit="api"), Resources(memory=8)),
    ],
    ids=["cpus", "memory", "gpus", "another"],
)
def test_a_call_gets_what_its_caller_lends_or_leaves(
    held: Resources, asked: Resources, pool_of: PoolMaker
) -> None:
    """A task that waits for its calls lends its CPUs, and keeps the rest."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    caller, _, _ = waiting(pool, events, held)

    pool.start([job := job_of(inner, resources=asked, parent=caller.task)], events)

    pool.worker().ready().run("done")
    assert "done" == events.value(job)


@pytest.mark.parametrize(
    ("held", "asked", "name", "amounts"),
    [
        (Resources(memory=5), Resources(memory=4), "memory", (4, 8)),
        (Resources(gpus=2), Resources(gpus=1), "gpus", (1, 2)),
        (Resources(limit="api"), Resources(limit="api"), "api", (1, 1)),
    ],
    ids=["memory", "gpus", "limit"],
)
def test_a_call_that_needs_what_its_callers_keep_is_refused(
    held: Resources,
    asked: Resources,
    name: str,
    amounts: tuple[float, float],
    pool_of: PoolMaker,
) -> None:
    """It would wait for ever; the error names who holds it, however far above."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    caller, _, _ = waiting(pool, events, held)
    between, _, _ = waiting(pool, events, Resources(memory=0), caller.task)

    pool.start([job := job_of(inner, resources=asked, parent=between.task)], events)

    error = refusal(events, job)
    assert (name, *amounts) == (error.resource, error.requested, error.available)
    assert ["outer"] == [*error.holders]


def test_a_caller_that_is_in_no_pool_keeps_its_place_as_well(
    pool_of: PoolMaker,
) -> None:
    """Though the same call has run by itself before."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    resources = Resources(limit="api")
    outside = job_of(outer, resources=resources).task
    pool.start([alone := job_of(inner, resources=resources)], events)
    pool.worker().ready().run("done")
    assert "done" == events.value(alone)

    pool.start([job := job_of(inner, resources=resources, parent=outside)], events)

    error = refusal(events, job)
    assert ("api", ["outer"]) == (error.resource, [*error.holders])


@pytest.mark.parametrize(
    ("asked", "name", "amounts"),
    [
        (Resources(cpus=9), "cpus", (9, 8)),
        (Resources(memory=9), "memory", (9, 8)),
        (Resources(gpus=3), "gpus", (3, 2)),
        (Resources(limit="unknown"), "unknown", (1, 0)),
    ],
)
def test_a_task_that_needs_more_than_there_is_is_refused(
    asked: Resources, name: str, amounts: tuple[float, float], pool_of: PoolMaker
) -> None:
    """Whoever calls it: those hold nothing that would help."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    caller, _, _ = waiting(
        pool, events, Resources(cpus=1, memory=1, gpus=1, limit="api")
    )

    for parent in (None, caller.task):
        pool.start([job := job_of(inner, resources=asked, parent=parent)], events)

        error = refusal(events, job)
        assert (name, *amounts) == (error.resource, error.requested, error.available)
        assert () == tuple(error.holders)


def test_what_a_task_takes_is_free_when_it_has_ended(pool_of: PoolMaker) -> None:
    """And not before: the second waits, though a worker is idle."""
    pool, events = pool_of(2, amounts=AMOUNTS), Events()
    jobs = [job_of(inner, resources=Resources(limit="api")) for _ in range(2)]
    pool.start(jobs, events)
    workers = [pool.worker().ready() for _ in range(2)]
    pool.settle()
    (first,) = [worker for worker in workers if worker.has_order()]
    order = first.order()
    pool.settle()
    assert not any(worker.has_order() for worker in workers)

    first.end_task(order, "first")
    assert "first" == events.value(jobs[0])
    pool.settle()

    (second,) = [worker for worker in workers if worker.has_order()]
    second.run("second")
    assert "second" == events.value(jobs[1])


def test_calls_that_wait_for_what_each_others_callers_hold_do_not_wait_for_ever(
    pool_of: PoolMaker,
) -> None:
    """One of them is refused, and told who holds it; then the other has its turn."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    held = Resources(memory=3)
    callers = [waiting(pool, events, held) for _ in range(2)]
    jobs = [
        job_of(inner, resources=Resources(memory=4), parent=caller.task)
        for caller, _, _ in callers
    ]

    pool.start(jobs, events)

    error = refusal(events, jobs[0])
    assert ("memory", 4, 8) == (error.resource, error.requested, error.available)
    assert ["outer"] == [*error.holders]
    caller, worker, order = callers[0]
    worker.end_task(order)
    events.value(caller)
    pool.until(worker.has_order)
    worker.run("done")
    assert "done" == events.value(jobs[1])


def test_a_place_that_programs_share_is_given_back_when_no_task_needs_it(
    pool_of: PoolMaker, tmp_path: Path
) -> None:
    """And not before."""
    pool = pool_of(1, amounts=AMOUNTS, limits_folder=str(tmp_path))
    events = Events()
    other_program = OtherProgram(tmp_path / "api")
    pool.start([job := job_of(resources=Resources(limit="api"))], events)
    worker = pool.worker().ready()
    order = worker.order()
    assert 0 == other_program.available(0, 0.0)

    worker.end_task(order)
    events.value(job)

    other_program.take_when_free()
    other_program.close()


class StoredRun(RunInfo):
    """A run whose store has a folder of locks."""

    committer: Any


def test_a_task_whose_limit_cannot_be_opened_fails(
    pool_of: PoolMaker, tmp_path: Path
) -> None:
    """At once, with the reason; other tasks run."""
    (tmp_path / "limits").touch()
    pool, events = pool_of(1, amounts=AMOUNTS, limits_scope="store"), Events()
    run = StoredRun(run_id="run")
    saver = SimpleNamespace(locks_folder=str(tmp_path))
    object.__setattr__(run, "committer", SimpleNamespace(saver=saver))
    limited = job_of(inner, resources=Resources(limit="api"), run=run)
    plain = job_of(outer, run=run)

    pool.start([limited, plain], events)

    outcome = events.outcome(limited)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, ExecutorUnavailableError)
    assert "'inner'" in str(outcome.error)
    assert str(tmp_path) in str(outcome.error)
    pool.worker().ready().run("done")
    assert "done" == events.value(plain)
    assert 0 == pool.pool.resources.count


def test_a_task_that_names_no_cpus_takes_one(pool_of: PoolMaker) -> None:
    """As one that says nothing."""
    pool, events = pool_of(2, amounts={**AMOUNTS, "cpus": 2.0}), Events()
    resources = Resources(memory=1)
    pool.start([job_of(inner, resources=resources) for _ in range(2)], events)
    workers = [pool.worker().ready() for _ in range(2)]

    for worker in workers:
        worker.order()


def test_the_call_of_a_task_that_keeps_nothing_waits_behind_a_large_one(
    pool_of: PoolMaker,
) -> None:
    """Its caller lends all that it takes, so that the large one can begin."""
    pool, events = pool_of(2, amounts={**AMOUNTS, "cpus": 2.0}), Events()
    only_cpus = Resources(memory=0)
    pool.start([job_of(inner, resources=only_cpus)], events)
    busy = pool.worker().ready()
    order = busy.order()
    caller, _, _ = waiting(pool, events, only_cpus)
    other_run = RunInfo(run_id="other")
    large = job_of(outer, resources=Resources(cpus=2, memory=0), run=other_run)
    pool.start([large], Events())
    pool.settle()

    pool.start([job_of(inner, parent=caller.task)], events)

    idle = pool.worker().ready()
    pool.settle()
    assert not idle.has_order()
    busy.end_task(order)
    assert "outer" == pool.worker().ready().run().name


@pytest.mark.parametrize("is_shared", [False, True])
def test_calls_that_wait_for_the_places_of_each_others_callers_do_not_wait_for_ever(
    is_shared: bool, pool_of: PoolMaker, tmp_path: Path
) -> None:
    """No other program can give back what this one holds itself."""
    amounts = {**AMOUNTS, "disk": 1.0}
    folder = str(tmp_path) if is_shared else ""
    pool, events = pool_of(1, amounts=amounts, limits_folder=folder), Events()
    first, _, _ = waiting(pool, events, Resources(limit="api", memory=0))
    second, _, _ = waiting(pool, events, Resources(limit="disk", memory=0))
    jobs = [
        job_of(inner, resources=Resources(limit=name, memory=0), parent=caller.task)
        for name, caller in (("disk", first), ("api", second))
    ]

    pool.start(jobs, events)

    error = refusal(events, jobs[0])
    assert ("disk", 1, 1) == (error.resource, error.requested, error.available)
    assert ["outer"] == [*error.holders]


@pytest.mark.parametrize(
    ("resources", "at_once"),
    [(Resources(), 1), (Resources(memory=0), 2)],
    ids=["measured", "stated"],
)
def test_memory_that_is_not_stated_is_what_an_earlier_call_took(
    resources: Resources, at_once: int, pool_of: PoolMaker
) -> None:
    """Here that is all there is: calls of the task run one by one from then on."""
    pool, events = pool_of(2, amounts={**AMOUNTS, "memory": 1.0}), Events()
    jobs = [job_of(inner, resources=resources) for _ in range(3)]
    pool.start(jobs[:1], events)
    workers = [pool.worker().ready()]
    order = workers[0].order()
    pool.elapse(0.01)  # of shorter ones the memory is not measured
    workers[0].end_task(order, seconds=1.0)
    events.value(jobs[0])
    workers.append(pool.worker().ready())
    pool.settle()

    pool.start(jobs[1:], events)
    pool.settle()

    assert at_once == sum(worker.has_order() for worker in workers)


@pytest.mark.parametrize(
    ("is_measured", "seconds", "is_reset"),
    [(True, inf, True), (True, SHORT, False), (False, inf, False)],
    ids=["measured", "short", "stated"],
)
def test_the_peak_of_a_worker_is_reset_only_for_a_task_whose_memory_is_measured(
    is_measured: bool, seconds: float, is_reset: bool, pool_of: PoolMaker
) -> None:
    """The record of any other attempt has the peak of the process since its start."""
    execution = Execution(SimpleNamespace(pid=os.getpid()))
    needs = Needs({"cpus": 1.0}, is_measured=is_measured)
    code = NodeCode(b"", b"", seconds)
    task = InFlight(1, job_of(), Events(), code, execution=execution, needs=needs)
    content = b"x" * (64 << 20)
    peak = peak_of(os.getpid())
    del content

    pool_of().pool.resources.start(task)

    # The kernel's own count is not exact to the page.
    assert is_reset is (peak - peak_of(os.getpid()) > 32 << 20)


def test_a_worker_of_a_kind_is_told_its_gpus_and_its_threads(
    pool_of: PoolMaker,
) -> None:
    """By the variables that libraries read; a plain one is told the pool's share."""
    env = {"OMP_NUM_THREADS": "8", "OWN": "1"}
    pool = pool_of(
        1, amounts=AMOUNTS, capped=("OMP_NUM_THREADS",), env=env, gpus=("3", "5")
    )
    events = Events()
    pool.start([job := job_of(inner, resources=Resources(gpus=2, cpus=2))], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(job)
    pool.start([job_of()], events)

    plain = pool.worker()

    assert {
        "OMP_NUM_THREADS": "2",
        "OWN": "1",
        "CUDA_VISIBLE_DEVICES": "3,5",
    } == worker.settings.env
    assert env == plain.settings.env


@pytest.mark.parametrize(
    ("lower", "higher"),
    [(-1, None), (None, 1), (-1, 0), (0, 1)],
)
def test_a_task_without_a_priority_has_that_of_zero(
    lower: int | None, higher: int | None, pool_of: PoolMaker
) -> None:
    """So -1 comes after it, and 1 before."""
    pool, events = pool_of(1, amounts=AMOUNTS), Events()
    jobs = [
        job_of(inner, resources=Resources(memory=1, priority=priority))
        for priority in (lower, higher)
    ]

    pool.start(jobs, events)

    assert jobs[1].key[0] == pool.worker().ready().order().task_id
