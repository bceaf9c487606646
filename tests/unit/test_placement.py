"""What a coordinator decides without a machine: which machine gets which tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task
from flowpregel.context import Job
from flowpregel.executors.cluster.placement import (
    UnfitTasks,
    largest_amounts,
    loads_of,
    place,
)
from flowpregel.executors.cluster.remote_hosts import (
    HostSlots,
    MachineReport,
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    Assignment,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
)
from flowpregel.executors.processes.wire.node_code import NodeCode

BIG = Needs({"cpus": 1.0, "memory": 8.0})
SMALL = Needs({"cpus": 1.0, "memory": 2.0})
WIDE = Needs({"cpus": 2.0})
API = Needs({"cpus": 1.0, "api": 1.0})
SHORT = 0.0001


def task(number: int, needs: Needs | None = None, seconds: float = 9.0) -> InFlight:
    """Return a task that waits."""
    planned = Task("t", Node(name="n"), Kind.PULL, None, "")
    job = Job(planned, StepContext("", "", 0, 1), key=("t", 1))
    nobody: Any = None
    code = NodeCode(b"digest", b"code", seconds)
    return InFlight(number, job, nobody, code, needs=needs)


def queue_of(*needs: Needs | None, seconds: float = 9.0) -> TaskQueue:
    """Return a queue of tasks, numbered from 0."""
    queue = TaskQueue()
    for number, needed in enumerate(needs):
        queue.add(task(number, needed, seconds))
    return queue


def machines(**sizes: int) -> RemoteHosts:
    """Return idle machines, each of which has 8 of memory."""
    hosts = RemoteHosts()
    for address, size in sizes.items():
        report = MachineReport(amounts={"memory": 8.0})
        report.cpus = size
        slots = HostSlots([*range(size)])
        hosts[address] = RemoteHost(address, slots, report=report, refusal="")
    return hosts


def run(host: RemoteHost, *needs: Needs | None, is_waiting: bool = False) -> None:
    """Let a machine run a batch for each of *needs*; do the tasks wait for calls?"""
    for needed in needs:
        number = len(host.batches)
        running = task(1000 + number, needed)
        host.batches[number] = RemoteBatch(number, host, [running])
        if is_waiting:
            running.execution.calls.add(1)


def plan_of(
    hosts: RemoteHosts, queue: TaskQueue, amounts: Mapping[str, float] | None = None
) -> Assignment:
    """Return what is decided."""
    loads = loads_of(hosts)
    limits = PoolLimits(len(hosts), amounts=amounts or {})
    return place(hosts, queue, loads, limits)


def sent(
    hosts: RemoteHosts, queue: TaskQueue, amounts: Mapping[str, float] | None = None
) -> list[tuple[str, list[int]]]:
    """Return the machines that get tasks, until none gets any, and the tasks."""
    batches = []
    while plan := plan_of(hosts, queue, amounts).sends:
        ((index, tasks),) = plan
        host = [*hosts.values()][index - len(loads_of(hosts))]
        queue.remove(tasks)
        number = len(host.batches)
        host.batches[number] = RemoteBatch(number, host, tasks)
        batches.append((host.address, [each.id for each in tasks]))
    return batches


def test_tasks_go_to_the_machine_with_the_least_load() -> None:
    """One by one, as long as there are free slots."""
    hosts = machines(a=2, b=2)
    run(hosts["a"], None)

    assert [("b", [0]), ("a", [1]), ("b", [2])] == sent(hosts, queue_of(*4 * [ONE_CPU]))


def test_short_tasks_that_take_a_cpu_go_together() -> None:
    """With tasks of the same needs only."""
    urgent = Needs({"cpus": 1.0})
    queue = queue_of(urgent, urgent, API, urgent, seconds=SHORT)

    assert [("a", [0, 1]), ("a", [2]), ("a", [3])] == sent(
        machines(a=3), queue, {"api": 1.0}
    )


def test_a_task_goes_to_a_machine_that_has_its_memory_free() -> None:
    """Also if another one has less to do."""
    hosts = machines(idle=4, half=4)
    hosts["idle"].report.amounts = {"memory": 4.0}
    run(hosts["half"], ONE_CPU)

    assert [("half", [0])] == sent(hosts, queue_of(BIG))


@pytest.mark.parametrize("address", ["a", "b"])
def test_a_large_task_reserves_the_machine_that_lacks_least(address: str) -> None:
    """Small tasks behind it go to the other machine, so neither kind starves."""
    hosts = machines(a=4, b=4)
    run(hosts[address], SMALL)
    (other,) = {"a", "b"} - {address}
    run(hosts[other], SMALL, SMALL)

    assert [(other, [1]), (other, [2])] == sent(
        hosts, queue_of(BIG, SMALL, SMALL, SMALL)
    )


def test_a_task_of_two_cpus_waits_until_one_machine_has_them() -> None:
    """And not until two machines have one each."""
    hosts = machines(a=2, b=2)
    run(hosts["a"], None)
    run(hosts["b"], None)
    queue = queue_of(WIDE)

    assert [] == sent(hosts, queue)
    hosts["b"].batches.clear()
    assert [("b", [0])] == sent(hosts, queue)


def test_a_waiting_caller_lends_its_cpus_and_keeps_its_memory() -> None:
    """As in the pool of one machine."""
    hosts = machines(a=1)
    run(hosts["a"], BIG, is_waiting=True)

    assert [("a", [0])] == sent(hosts, queue_of(ONE_CPU, SMALL))


def test_a_limit_counts_for_all_machines_together() -> None:
    """Tasks without it do not wait."""
    hosts = machines(a=2, b=2)
    run(hosts["a"], API)

    plan = plan_of(hosts, queue_of(API), {"api": 1.0})

    assert ([], {"api"}) == (plan.sends, plan.lacking)
    assert [("b", [1])] == sent(hosts, queue_of(API, ONE_CPU), {"api": 1.0})


def test_a_rate_that_is_spent_holds_its_tasks() -> None:
    """Its name is among what is lacking, so that a timer wakes the pool."""
    hosts = machines(a=2)
    queue = queue_of(Needs({"cpus": 1.0}, rate="1/s of n"))

    assert {"1/s of n"} == plan_of(hosts, queue, {"1/s of n": 0.0}).lacking
    assert [("a", [0])] == sent(hosts, queue, {"1/s of n": 1.0})


def test_a_call_whose_callers_hold_what_it_needs_is_stuck() -> None:
    """Nothing runs that could free it, on any machine."""
    hosts = machines(a=2, b=2)
    call = Needs({"cpus": 1.0, "memory": 4.0}, is_below=True)
    run(hosts["a"], BIG, is_waiting=True)
    run(hosts["b"], BIG, is_waiting=True)
    queue = queue_of(call)

    stuck = plan_of(hosts, queue).stuck
    assert stuck is not None
    assert (0, "memory") == (stuck[0].id, stuck[1])

    run(hosts["b"], SMALL)
    assert plan_of(hosts, queue).stuck is None


@pytest.mark.parametrize("refusal", [None, ""])
def test_a_call_is_not_stuck_while_a_machine_is_unknown_or_silent(
    refusal: str | None,
) -> None:
    """The machine may yet run it."""
    hosts = machines(a=2, b=2)
    run(hosts["a"], BIG, is_waiting=True)
    hosts["b"].report.amounts = {}
    hosts["b"].refusal = refusal
    hosts["b"].is_silent = refusal is not None

    plan = plan_of(hosts, queue_of(Needs({"cpus": 1.0, "memory": 4.0}, is_below=True)))

    assert plan.stuck is None


def test_an_estimate_is_never_more_than_the_machine_has() -> None:
    """The next attempt of a task that ran out of memory is alone on a machine."""
    hosts = machines(a=2)
    alone = Needs({"cpus": 64.0, "memory": 99.0}, is_measured=True, is_exclusive=True)

    assert [("a", [0])] == sent(hosts, queue_of(alone, ONE_CPU))


@pytest.mark.parametrize(
    ("can_grow", "refusal", "later"),
    [(False, "", 0.0), (True, "", 60.0), (False, None, 60.0)],
    ids=["all known", "adaptive", "unknown"],
)
def test_a_task_that_no_machine_can_run_does_not_wait_longer_than_it_makes_sense(
    can_grow: bool, refusal: str | None, later: float
) -> None:
    """There may be another machine, or one that has not answered."""
    hosts = machines(a=2, b=3)
    hosts["b"].refusal = refusal
    queue = queue_of(Needs({"cpus": 4.0}), WIDE)
    unfit = UnfitTasks(hosts, 60.0)

    first = [*unfit.overdue(queue, 100.0, can_grow)]
    assert later == 0 or [] == [*unfit.overdue(queue, 130.0, can_grow)]
    last = [*unfit.overdue(queue, 100.0 + later, can_grow)]

    assert later == 0 or [] == first
    assert [0] == [each.id for each in last]
    assert (3.0, "b") == largest_amounts(hosts)["cpus"]
