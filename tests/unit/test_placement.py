"""What a coordinator decides without a machine: which machine gets which tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task
from flowpregel.context import Job
from flowpregel.executors.cluster.allocations import AllocationDemand
from flowpregel.executors.cluster.host_slots import (
    Allocation,
    AllocationSize,
    HostSlots,
)
from flowpregel.executors.cluster.machine_needs import allocation_size
from flowpregel.executors.cluster.placement import HostPlacement, loads_of, place
from flowpregel.executors.cluster.remote_hosts import (
    MachineReport,
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.cluster.unfit_tasks import UnfitTasks, largest_amounts
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
            running.execution.worker.callers.add(running.execution.number)


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


ON_GPU = Needs({"cpus": 1.0, "gpus": 1.0, "memory": 2.0})


def booked_machines(booked: Sequence[str], **sizes: int) -> RemoteHosts:
    """Return idle machines with two GPUs and 8 of memory, and what is in the books."""
    hosts = machines(**sizes)
    for host in hosts.values():
        host.report.amounts = {"memory": 8.0, "gpus": 2.0}
        host.report.booked = booked
    return hosts


@pytest.mark.parametrize(
    ("needs", "booked", "size"),
    [
        (None, ["gpus", "memory"], None),
        (ONE_CPU, ["gpus", "memory"], None),
        (ON_GPU, ["gpus", "memory"], AllocationSize(1, 2)),
        (ON_GPU, ["memory"], AllocationSize(0, 2)),
        (ON_GPU, [], None),
        (Needs({"cpus": 1.0, "memory": 2.0}, is_measured=True), ["memory"], None),
    ],
)
def test_an_allocation_has_what_the_engine_counts(
    needs: Needs | None, booked: Sequence[str], size: AllocationSize | None
) -> None:
    """An estimate of the memory is no claim."""
    assert size == allocation_size(booked_machines(booked, a=1), needs)


def test_what_one_machine_does_not_count_is_not_allocated() -> None:
    """Tasks may run there, too. A machine that is too small does not matter."""
    hosts = booked_machines(["gpus", "memory"], a=1, b=1, small=1)
    hosts["b"].report.booked = ["gpus"]
    hosts["small"].report.booked = []
    hosts["small"].report.amounts = {}

    assert AllocationSize(gpus=1) == allocation_size(hosts, ON_GPU)


def test_while_no_machine_has_the_resources_the_engine_decides() -> None:
    """It may start one that has them."""
    assert AllocationSize(1, 2) == allocation_size(
        RemoteHosts(["gpus", "memory"]), ON_GPU
    )
    assert None is allocation_size(RemoteHosts(), ON_GPU)


def test_a_task_begins_where_it_has_an_allocation() -> None:
    """Tasks behind it, which need none, do not wait."""
    hosts = booked_machines(["gpus"], a=2, b=2)
    run(hosts["b"], None)
    assert [("a", [1])] == sent(hosts, queue_of(ON_GPU, None))

    hosts["b"].slots.allocations[7] = Allocation(
        AllocationSize(gpus=1), ["x"], batch_id=-1
    )
    assert [("b", [0])] == sent(hosts, queue_of(ON_GPU))


def placement_of(
    hosts: RemoteHosts, queue: TaskQueue, most: float = inf
) -> HostPlacement:
    """Return a placement; most are the tasks that limits allow to run at once."""
    ledger: Any = SimpleNamespace(most_at_once=lambda needs: most)
    return HostPlacement(queue, hosts, ledger, 60.0)


def test_the_demand_for_gpus_is_none_for_cpus() -> None:
    """The CPU is requested when the GPU is there."""
    hosts = booked_machines(["gpus", "memory"], a=2, b=2)
    queue = queue_of(ON_GPU, None, ON_GPU, None)

    batches, allocations = placement_of(hosts, queue).demand()

    assert (2, {AllocationSize(1, 2): AllocationDemand(2)}) == (
        batches,
        allocations,
    )


def test_no_more_memory_is_requested_than_there_are_cpus() -> None:
    """The engine sees the other tasks as requests for CPUs."""
    hosts = booked_machines(["memory"], a=2, b=1)
    placement = placement_of(hosts, queue_of(*[SMALL] * 7))

    batches, allocations = placement.demand()

    assert (4, 3) == (batches, allocations[AllocationSize(memory=2)].tasks)
    assert [] == placement.slot_addresses()


def test_a_task_that_waits_for_a_limit_holds_no_gpu() -> None:
    """The task that has the limit may take long."""
    hosts = booked_machines(["gpus", "memory"], a=2)
    needs = Needs({"cpus": 1.0, "gpus": 1.0, "api": 1.0})
    placement = placement_of(hosts, queue_of(needs, needs), most=1)
    assert {AllocationSize(gpus=1): AllocationDemand(1)} == placement.demand()[1]

    run(hosts["a"], API)

    assert (0, {}) == placement.demand()


@pytest.mark.parametrize("reason", ["refused", "too small"])
def test_an_allocation_is_requested_on_machines_that_can_run_its_task(
    reason: str,
) -> None:
    """Its memory is not in the books, so the engine would not know."""
    hosts = booked_machines(["gpus"], a=2, b=2)
    if reason == "refused":
        hosts["a"].refusal = "it has Python 3.8"
    else:
        hosts["a"].report.amounts = {"memory": 1.0, "gpus": 2.0}

    _, allocations = placement_of(hosts, queue_of(ON_GPU)).demand()

    assert {AllocationSize(gpus=1): AllocationDemand(1, ("b",))} == allocations


def test_an_estimate_is_never_more_than_the_machine_has() -> None:
    """The next attempt of a task that ran out of memory is alone on a machine."""
    hosts = machines(a=2)
    alone = Needs({"cpus": 64.0, "memory": 99.0}, is_measured=True, is_exclusive=True)

    assert [("a", [0])] == sent(hosts, queue_of(alone, ONE_CPU))


def test_a_task_that_fits_only_a_refused_machine_does_not_wait_for_it() -> None:
    """Its error names the largest machine that can run tasks."""
    hosts = machines(a=2, b=4)
    hosts["a"].refusal = ""
    hosts["b"].refusal = "it has Python 3.8"
    queue = queue_of(Needs({"cpus": 4.0}), WIDE)

    unfit = [*UnfitTasks(hosts, 60.0).overdue(queue, 100.0, can_grow=False)]

    assert [0] == [task.id for task in unfit]
    assert (2.0, "a") == largest_amounts(hosts)["cpus"]


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
