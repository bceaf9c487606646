"""The decisions of a coordinator, without I/O: which machine gets which waiting tasks.

`place` does for machines what `assign` does for the workers of one machine. It is used
while a task in the pool has needs (resources that it takes while it runs). Limits and
rates apply to all machines together, CPUs, memory and GPUs to each machine. On its
machine, a batch also needs a slot, which is the engine's permission to run it. If the
task takes several CPUs, further slots are requested when it has begun. If the engine
itself tracks GPUs or memory, a task that takes them also needs an allocation (a
reservation by the engine) there.

`place` goes through the queue in order. The first task whose needs are free gets the
machine with the least load among those that have enough free resources. A task whose
needs are not free reserves what it lacks: slots of limits, and resources of the one
machine on which it lacks least. So it never starves because of tasks behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from flowpregel.executors.base import JobKey
from flowpregel.executors.cluster.allocations import (
    AllocationDemand,
    SizeTurns,
    assign_allocation,
)
from flowpregel.executors.cluster.host_slots import AllocationSize
from flowpregel.executors.cluster.machine_needs import (
    allocation_size,
    amounts_on,
    hosts_for,
    shortage,
)
from flowpregel.executors.cluster.remote_hosts import (
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.cluster.slots import MOST_REQUESTS
from flowpregel.executors.cluster.unfit_tasks import UnfitTasks, largest_amounts
from flowpregel.executors.processes.coordinator.assign import (
    LARGEST_BATCH,
    ONE_CPU,
    Assignment,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    stuck_task,
)
from flowpregel.executors.processes.coordinator.resources import (
    OF_THE_MACHINE,
    ResourceLedger,
)
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.policies import Resources

_NO_MACHINE: Final = "cpus"
"""The name of the resource that a task is said to lack if no known machine could ever
run it, or if some machines have not reported their resources.
"""


def _resources_on(host: RemoteHost, task: InFlight) -> Resources | None:
    """Return the resources that *task* takes on *host*, in the form in which the pool
    of that machine gets them.

    Limits and rates are left out, because the coordinator counts them.
    """
    needs = task.needs
    declared = task.job.task.node.resources
    if needs is None:
        return None
    if declared is None and not needs.is_measured:
        return None
    declared = declared or Resources()
    amounts = amounts_on(needs, host.totals)
    cpus = amounts["cpus"] if needs.is_exclusive else declared.cpus
    memory = amounts.get("memory", declared.memory)
    return Resources(
        cpus=cpus,
        memory=memory if memory is None else int(memory),
        gpus=declared.gpus,
        priority=task.priority,
        isolation=declared.isolation,
    )


def order_of(host: RemoteHost, task: InFlight) -> tuple[Any, ...]:
    """Return the order for a task in a batch: the fields that `RemotePoolHost.run`
    documents.

    Args:
        host: The machine that gets the batch.
        task: The task, which is in the batch.
    """
    planned = task.job.task
    return (
        task.execution.number,
        planned.name,
        planned.depth,
        planned.timeout,
        _resources_on(host, task),
        task.execution.worker.gpus,
        task.contexts,
        task.code.digest,
        task.body,
    )


class FreeMachine:
    """The resources of a machine that are not assigned yet.

    Args:
        host: The machine, with the batches that it already has.
    """

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self.totals: Mapping[str, float] = host.totals
        self.amounts: dict[str, float] = dict(host.totals)
        self.reserved: set[str] = set()
        """The names of the resources of this machine that a waiting task has
        reserved.
        """
        for batch in host.batches.values():
            self._subtract(batch.load)

    def _subtract(self, load: WorkerLoad) -> None:
        """Subtract the resources that a batch takes. A task that waits for the calls
        that it has made lends its CPUs to other tasks, so these are not subtracted.
        """
        is_waiting = load.state is WorkerState.WAITING
        for name, amount in load.held.items():
            is_lent = is_waiting and name == "cpus"
            if name in self.amounts and not is_lent:
                self.amounts[name] -= amount

    def suits(self, needs: Needs) -> bool:
        """Return whether the machine could run a task with *needs* if it ran nothing
        else.
        """
        return not shortage(needs, self.totals, self.totals)

    def lacking(self, needs: Needs) -> dict[str, float]:
        """Return how much of each resource a task with *needs* lacks on this machine
        now, by name. A resource that is reserved for another task is lacking too.
        """
        lacking = shortage(needs, self.totals, self.amounts)
        if not needs.is_below:
            for name in self.reserved & needs.amounts.keys():
                lacking.setdefault(name, 0.0)
        return lacking

    def missing_share(self, needs: Needs) -> float:
        """Return the sum of the fractions of the machine's resources that a task with
        *needs* lacks.
        """
        share = 0.0
        for name, amount in self.lacking(needs).items():
            share += amount / self.totals[name]
        return share


class FreeMachines:
    """The resources of all machines that are not assigned yet.

    Args:
        hosts: The machines of the cluster.
        loads: The loads, as `loads_of` returns them.
        limits: The amounts of the limits and rates.
    """

    def __init__(
        self,
        hosts: RemoteHosts,
        loads: Sequence[WorkerLoad],
        limits: PoolLimits,
    ) -> None:
        self._hosts = hosts
        self.machines: list[FreeMachine] = [
            FreeMachine(host) for host in hosts.values()
        ]
        self._shared: dict[str, float] = dict(limits.amounts)
        """The free slots of each limit, and the number of tasks that each rate allows
        to start now.
        """
        self.is_quiet: bool = True
        """True if no machine runs a task."""
        for load in loads:
            self._subtract(load)
        self.reserved: set[str] = set()
        """The names of the limits and rates for which a task waits."""
        self.blocked: dict[Needs | None, tuple[InFlight, set[str]]] = {}
        """The needs that cannot be met now, each with the first task that has them and
        the names of the resources that this task lacks.
        """

    def _subtract(self, load: WorkerLoad) -> None:
        if load.state is WorkerState.BUSY:
            self.is_quiet = False
        for name, amount in load.held.items():
            if name in self._shared:
                self._shared[name] -= amount

    def machine_for(self, task: InFlight) -> FreeMachine | None:
        """Return a machine for *task*. If there is none now, reserve what the task
        lacks, and return None.
        """
        needs = task.needs or ONE_CPU
        lacking = self._lacking_limits(needs)
        self.reserved |= lacking
        machine = self._machine_with(needs)
        if machine is None:
            lacking |= self._reserve(needs)
        if not lacking:
            return machine
        self.blocked[task.needs] = task, lacking
        return None

    def _lacking_limits(self, needs: Needs) -> set[str]:
        names = needs.amounts.keys() - {*OF_THE_MACHINE}
        if needs.rate is not None:
            names.add(needs.rate)
        lacking: set[str] = set()
        for name in names:
            is_reserved = name in self.reserved and not needs.is_below
            if is_reserved or self._shared[name] < 1:
                lacking.add(name)
        return lacking

    def _machine_with(self, needs: Needs) -> FreeMachine | None:
        """Return the machine with the least load among those that can run a task with
        *needs* now.
        """
        size = allocation_size(self._hosts, needs)
        candidates: list[FreeMachine] = []
        for machine in self.machines:
            host = machine.host
            has_allocation = size is None or host.free_allocation(size) is not None
            if has_allocation and host.has_slot and not machine.lacking(needs):
                candidates.append(machine)
        return min(
            candidates,
            key=_load_of,
            default=None,
        )

    def _reserve(self, needs: Needs) -> set[str]:
        """Reserve resources for waiting tasks with *needs*, on one machine.

        It is the machine on which the task lacks the smallest share of the resources,
        among those that could run it at all. The other machines remain free for other
        tasks.

        Returns:
            The names of the resources that are reserved.
        """
        suitable: list[FreeMachine] = []
        is_complete = True
        for machine in self.machines:
            is_complete = is_complete and machine.host.is_known
            if machine.host.is_open and machine.suits(needs):
                suitable.append(machine)
        if not suitable:
            return {_NO_MACHINE}
        chosen = min(
            suitable,
            key=lambda machine: machine.missing_share(needs),
        )
        names = {*chosen.lacking(needs)}
        chosen.reserved |= names
        if names and is_complete:
            return names
        return {_NO_MACHINE}


def _load_of(machine: FreeMachine) -> float:
    return machine.host.load


def loads_of(hosts: RemoteHosts) -> list[WorkerLoad]:
    """Return the loads (see `WorkerLoad`) that `place` gets: one for each batch on a
    machine, and then an idle one for each machine, which stands for the next batch of
    that machine.

    Args:
        hosts: The machines of the cluster.
    """
    loads: list[WorkerLoad] = []
    for host in hosts.values():
        for batch in host.batches.values():
            loads.append(batch.load)  # noqa: PERF401 - read as a step
    idle = WorkerLoad(WorkerState.IDLE)
    return loads + [idle] * len(hosts)


def place(
    hosts: RemoteHosts,
    queue: TaskQueue,
    loads: Sequence[WorkerLoad],
    limits: PoolLimits,
    passing: Collection[str] = (),
) -> Assignment:
    """Return an assignment with the next batch and its machine, if a task of *queue*
    can start now.

    Args:
        hosts: The machines of the cluster.
        queue: The tasks that wait.
        loads: The loads, as `loads_of` returns them. The batch is assigned to one of
            the idle loads at the end, which stand for the machines.
        limits: The amounts of the limits and rates.
        passing: The names of the limits and rates that may become free although no task
            ends.
    """
    free = FreeMachines(
        hosts,
        loads,
        limits,
    )
    result = Assignment(lacking=free.reserved)
    waiting = queue.waiting(free.blocked)
    for task in waiting:
        machine = free.machine_for(task)
        if machine is None:
            continue
        index = len(loads) - len(hosts)
        index += free.machines.index(machine)
        tasks = _batch_from(
            hosts,
            queue,
            task,
            waiting,
        )
        result.sends.append((index, tasks))
        return result
    if free.blocked and free.is_quiet:
        blocked = free.blocked.values()
        result.stuck = stuck_task(blocked, {*passing, _NO_MACHINE})
    return result


def _batch_from(
    hosts: RemoteHosts,
    queue: TaskQueue,
    first: InFlight,
    others: Iterator[InFlight],
) -> list[InFlight]:
    """Return a batch of *first* and of those *others* after it that have the same
    needs.

    The machine runs the tasks of a batch at the same time if it can, so tasks that take
    more than one CPU are sent one by one.
    """
    needs = first.needs
    if needs is not None:
        takes_more = needs.amounts != ONE_CPU.amounts
        if takes_more or needs.is_alone:
            return [first]
    alike = takewhile(lambda task: task.needs is needs, others)
    tasks = [first, *islice(alike, LARGEST_BATCH - 1)]
    size = hosts.batch_size(tasks, queue.counts[needs])
    return tasks[:size]


class ClusterDemand(NamedTuple):
    """The slots and allocations of the engine that the waiting tasks need."""

    batches: int
    """The number of batches that wait for a slot and need no allocation."""
    allocations: Mapping[AllocationSize, AllocationDemand]


class HostPlacement:
    """The choice of machines for the tasks of a coordinator.

    Args:
        queue: The tasks that wait.
        hosts: The machines of the cluster.
        ledger: The ledger of the limits and rates, and of the tasks that take them.
        timeout: Seconds for which a task waits that no machine can run, if the engine
            may get further machines.
    """

    def __init__(
        self,
        queue: TaskQueue,
        hosts: RemoteHosts,
        ledger: ResourceLedger,
        timeout: float,
    ) -> None:
        self._queue = queue
        self._hosts = hosts
        self._ledger = ledger
        self._unfit = UnfitTasks(hosts, timeout)
        self._turns = SizeTurns()

    def next_batch(
        self,
        tasks: Mapping[JobKey, InFlight],
    ) -> tuple[RemoteHost, list[InFlight]] | None:
        """Take the next batch out of the queue, and return its machine and its tasks.

        Args:
            tasks: All tasks of the coordinator.

        Returns:
            None if no task can start now.
        """
        queue = self._queue
        if not queue.count:
            return None
        if self._ledger.count:
            return self._next_placed(tasks)
        host = self._hosts.next_for(queue)
        if host is None:
            return None
        size = self._hosts.batch_size(queue, queue.count)
        return host, queue.take(size)

    def _next_placed(
        self,
        tasks: Mapping[JobKey, InFlight],
    ) -> tuple[RemoteHost, list[InFlight]] | None:
        """Do the same as `next_batch` if a task in the queue or on a machine has needs
        (declared resources, limits or rates), which the choice of a machine must
        respect.
        """
        hosts = [*self._hosts.values()]
        if self._must_meet_all():
            for host in hosts:
                host.is_used = True
        loads = loads_of(self._hosts)
        plan = self._ledger.assign(
            self._queue,
            loads,
            PoolLimits(len(hosts)),
            tasks,
            partial(place, self._hosts),
        )
        for index, batch in plan.sends:
            self._queue.remove(batch)
            return hosts[index - len(loads)], batch
        return None

    def _must_meet_all(self) -> bool:
        """Return whether a waiting task needs memory or GPUs. All machines then get a
        handshake, because only its answer contains the amounts.
        """
        for needs in self._queue.counts:
            if needs is None:
                continue
            if "memory" in needs.amounts or "gpus" in needs.amounts:
                return True
        return False

    def allocate(self, batch: RemoteBatch) -> None:
        """Assign an allocation on the batch's machine to *batch*, if its task needs
        one.
        """
        size = allocation_size(self._hosts, batch.load.needs)
        if size is not None:
            assign_allocation(batch, size)
            self._turns.note_batch(size)

    def slot_addresses(self) -> list[str]:
        """Return the addresses of the machines on which a slot is of use: they can run
        a waiting task that needs no allocation of GPUs. Return an empty list if all
        machines can.
        """
        suitable: list[RemoteHost] = []
        for needs in self._queue.counts:
            size = allocation_size(self._hosts, needs)
            if size is None or not size.gpus:
                suitable += hosts_for(self._hosts, needs or ONE_CPU)
        addresses = list(dict.fromkeys(host.address for host in suitable))
        return addresses if len(addresses) < len(self._hosts) else []

    def note_machines(self) -> None:
        """Pass the present amounts of the machines' resources to the ledger."""
        self._ledger.note_machines(largest_amounts(self._hosts))

    def refuse_unfit(
        self,
        now: float,
        can_grow: bool,
    ) -> None:
        """End, with an error, the tasks that no machine can run.

        Args:
            now: The present time on the clock of the `EngineWatch`.
            can_grow: True if the engine may get further machines.
        """
        if not self._ledger.count:
            return
        self.note_machines()
        tasks = self._unfit.overdue(
            self._queue,
            now,
            can_grow,
        )
        for task in tasks:
            amounts = amounts_on(task.needs or ONE_CPU, {})
            for name, amount in amounts.items():
                most, _ = self._ledger.largest.get(name, (0.0, ""))
                if amount > most:
                    self._ledger.refuse(task, name)
                    break
            else:
                # For each resource, some machine has enough, but no machine has enough
                # of all. The error names only one of the resources.
                self._ledger.refuse(task, max(amounts))

    def demand(self) -> ClusterDemand:
        """Return the slots and allocations of the engine that the waiting tasks need
        now.
        """
        waiting = 0
        startable = 0
        allocations: dict[AllocationSize, AllocationDemand] = {}
        for needs, number in self._queue.counts.items():
            most = self._ledger.most_at_once(needs or ONE_CPU)
            count = int(min(number, most))
            size = allocation_size(self._hosts, needs)
            if needs is None or size is None:
                waiting += number
                startable += count
                continue
            # No allocation is requested for tasks that must wait for a slot of a limit,
            # so that they hold no GPU while they wait.
            earlier = allocations.get(size, AllocationDemand(0))
            free = max(0, most - self._limit_users(needs))
            count = int(min(number, free))
            count += earlier.tasks
            if not count:
                continue
            demand = self._allocation_demand(needs, size, count)
            allocations[size] = demand
            if not size.gpus:
                # Slots are requested for the remaining tasks, so that an engine that
                # starts machines on demand learns of them.
                waiting += count - demand.tasks
                startable += count - demand.tasks
        batches = self._hosts.batch_count(self._queue, waiting)
        return ClusterDemand(
            min(batches, startable),
            self._turns.choose(allocations),
        )

    def _limit_users(self, needs: Needs) -> int:
        """Count the batches that hold a slot of each limit in *needs*, and return the
        greatest count.
        """
        names = needs.amounts.keys() - {*OF_THE_MACHINE}
        users = Counter[str]()
        for host in self._hosts.values():
            for batch in host.batches.values():
                users.update(names & batch.load.held.keys())
        return max(users.values(), default=0)

    def _allocation_demand(
        self,
        needs: Needs,
        size: AllocationSize,
        count: int,
    ) -> AllocationDemand:
        """Return the demand of *count* waiting tasks for allocations of one size.

        The engine's GPUs themselves limit allocations with GPUs. Allocations of memory
        alone are limited to the number of CPUs, because each of their tasks needs one
        too.
        """
        suitable = hosts_for(self._hosts, needs)
        most = MOST_REQUESTS
        if not size.gpus:
            hosts = suitable or self._hosts.values()
            most = max(1, sum(host.report.cpus for host in hosts))
        addresses = [host.address for host in suitable]
        is_free = True
        for host in self._hosts.values():
            is_suited = host.address in addresses or host.refusal is None
            is_free = is_free and is_suited
        return AllocationDemand(
            min(count, most),
            () if is_free else tuple(addresses),
        )
