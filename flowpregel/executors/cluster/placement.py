"""The decisions of a coordinator, without I/O: which machine gets which waiting tasks.

`place` is for machines what `assign` is for the workers of one machine, and it is used
while a task in the pool has needs. The slots of limits, and rates, are counted for all
machines together. CPUs, memory and GPUs are counted for each machine. A batch also
needs a slot of the engine there. If its task takes several CPUs, the ledger of slots
requests the others when the task has begun.

`place` goes through the queue in order. The first task whose needs are free gets the
machine with the least load among those that have what the task needs. A task whose
needs are not free reserves what it lacks: the slots of limits, and the resources of the
one machine that lacks least. So tasks behind it never starve it.
"""

from __future__ import annotations

from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import islice, takewhile
from math import inf
from typing import Any, Final

from flowpregel.executors.base import JobKey
from flowpregel.executors.cluster.remote_hosts import RemoteHost, RemoteHosts
from flowpregel.executors.processes.coordinator.assign import (
    LARGEST_BATCH,
    ONE_CPU,
    ROUNDING,
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
"""The name of the resource that a task lacks if no known machine could ever run it, or
if machines have not answered.
"""


def amounts_on(needs: Needs, totals: Mapping[str, float]) -> dict[str, float]:
    """Return the amounts of a machine's resources that tasks with *needs* take on this
    machine.

    Args:
        needs: The needs.
        totals: The amounts that the machine has. An estimate of the memory, and the
            CPUs of a task that runs alone, are never more.
    """
    amounts: dict[str, float] = {}
    for name in OF_THE_MACHINE:
        amount = needs.amounts.get(name, 0.0)
        is_estimate = name == "memory" and needs.is_measured
        if is_estimate or needs.is_exclusive:
            amount = min(amount, totals.get(name, amount))
        if amount:
            amounts[name] = amount
    return amounts


def _resources_on(host: RemoteHost, task: InFlight) -> Resources | None:
    """Return the resources that *task* takes on *host*, for the pool of that machine.

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
    """Return the fields of a task in a batch, which `RemotePoolHost.run` documents.

    Args:
        host: The machine that gets the batch.
        task: The task.
    """
    planned = task.job.task
    return (
        task.execution.number,
        planned.name,
        planned.depth,
        planned.timeout,
        _resources_on(host, task),
        task.contexts,
        task.code.digest,
        task.body,
    )


class FreeMachine:
    """The resources of a machine that are not assigned yet.

    Args:
        host: The machine.
    """

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self.totals: Mapping[str, float] = host.totals
        self.amounts: dict[str, float] = dict(host.totals)
        self.reserved: set[str] = set()
        """The names of the resources that a waiting task has reserved."""
        for batch in host.batches.values():
            self._subtract(batch.load)

    def _subtract(self, load: WorkerLoad) -> None:
        """Subtract what a batch takes. A task that waits for calls lends its CPUs."""
        is_waiting = load.state is WorkerState.WAITING
        for name, amount in load.held.items():
            is_lent = is_waiting and name == "cpus"
            if name in self.amounts and not is_lent:
                self.amounts[name] -= amount

    def suits(self, needs: Needs) -> bool:
        """Return whether the machine could run tasks with *needs* if it ran no other
        tasks.
        """
        return not self._shortage(needs, self.totals)

    def lacking(self, needs: Needs) -> dict[str, float]:
        """Return the amounts that tasks with *needs* lack on this machine, by name."""
        lacking = self._shortage(needs, self.amounts)
        if not needs.is_below:
            for name in self.reserved & needs.amounts.keys():
                lacking.setdefault(name, 0.0)
        return lacking

    def _shortage(
        self,
        needs: Needs,
        available: Mapping[str, float],
    ) -> dict[str, float]:
        shortage: dict[str, float] = {}
        for name, amount in amounts_on(needs, self.totals).items():
            missing = amount - available.get(name, 0.0)
            if missing > ROUNDING:
                shortage[name] = missing
        return shortage

    def missing_share(self, needs: Needs) -> float:
        """Return the parts of the machine that tasks with *needs* lack, in total."""
        share = 0.0
        for name, amount in self.lacking(needs).items():
            share += amount / self.totals[name]
        return share


class FreeMachines:
    """The resources of all machines that are not assigned yet.

    Args:
        hosts: The machines.
        loads: The loads of the batches, and of the machines.
        limits: The amounts of the limits and rates.
    """

    def __init__(
        self,
        hosts: RemoteHosts,
        loads: Sequence[WorkerLoad],
        limits: PoolLimits,
    ) -> None:
        self.machines: list[FreeMachine] = [
            FreeMachine(host) for host in hosts.values()
        ]
        self._shared: dict[str, float] = dict(limits.amounts)
        """The free slots of each limit, and the free starts of each rate."""
        self.is_quiet: bool = True
        """True if no machine runs a task."""
        for load in loads:
            self._subtract(load)
        self.reserved: set[str] = set()
        """The names of the limits and rates for which a task waits."""
        self.blocked: dict[Needs | None, tuple[InFlight, set[str]]] = {}
        """The needs that are not free, each with the first task that has them and the
        names of the resources that the task lacks.
        """

    def _subtract(self, load: WorkerLoad) -> None:
        if load.state is WorkerState.BUSY:
            self.is_quiet = False
        for name, amount in load.held.items():
            if name in self._shared:
                self._shared[name] -= amount

    def machine_for(self, task: InFlight) -> FreeMachine | None:
        """Return the machine for *task*, or reserve what the task lacks and return
        None.
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
        """Return the machine with the least load that has what *needs* lists."""
        candidates: list[FreeMachine] = []
        for machine in self.machines:
            if machine.host.has_slot and not machine.lacking(needs):
                candidates.append(machine)  # noqa: PERF401 - read as a step
        return min(
            candidates,
            key=_load_of,
            default=None,
        )

    def _reserve(self, needs: Needs) -> set[str]:
        """Reserve resources for waiting tasks with *needs*, on one machine.

        The machine is the one on which the smallest share of the needs is missing. The
        other machines remain free for other tasks, and no machine is reserved that
        could never run the tasks.

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
    """Return the load of each batch, followed by an empty load for each machine: the
    next batch of that machine.

    Args:
        hosts: The machines.
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
    """Return the next batch for one of *hosts*, if a task of *queue* can start.

    Args:
        hosts: The machines.
        queue: The tasks that wait.
        loads: The loads, as `loads_of` returns them. The batch is for one of the last,
            which are those of the machines.
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
    """Return the batch that begins with *first*, and continues with *others*.

    The machine runs the tasks of a batch side by side, so tasks that take more than a
    CPU are sent one by one.
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


class UnfitTasks:
    """The waiting tasks that no machine could run, even if it ran no other tasks.

    Args:
        hosts: The machines.
        timeout: Seconds for which such tasks wait while there may be another machine.
    """

    def __init__(
        self,
        hosts: RemoteHosts,
        timeout: float,
    ) -> None:
        self._hosts = hosts
        self._timeout = timeout
        self._since: dict[Needs | None, float] = {}
        """The time since which tasks with these needs wait."""

    def overdue(
        self,
        queue: TaskQueue,
        now: float,
        can_grow: bool,
    ) -> Iterator[InFlight]:
        """Yield the tasks of *queue* that should not wait any longer.

        Args:
            queue: The tasks that wait.
            now: The present time.
            can_grow: True if the engine may get further machines.
        """
        before = self._since
        self._since = {}
        for needs in self._needs_among(queue.counts):
            self._since[needs] = before.get(needs, now)
        for host in self._hosts.values():
            can_grow = can_grow or not host.is_known
        patience = self._timeout if can_grow else 0.0
        for task in tuple(queue):
            since = self._since.get(task.needs, inf)
            if since + patience <= now:
                yield task

    def _needs_among(self, waiting: Iterable[Needs | None]) -> Iterator[Needs]:
        """Yield those of the *waiting* needs that no machine has."""
        machines = [FreeMachine(host) for host in self._hosts.values()]
        for needs in waiting:
            if needs is None or not machines:
                continue
            is_suited = False
            for machine in machines:
                is_suited = is_suited or machine.suits(needs)
            if not is_suited:
                yield needs


def largest_amounts(hosts: RemoteHosts) -> dict[str, tuple[float, str]]:
    """Return the largest amount of each resource that a machine has, and the name of
    this machine.

    Args:
        hosts: The machines.
    """
    largest: dict[str, tuple[float, str]] = {}
    for host in hosts.values():
        for name, amount in host.totals.items():
            candidate = (amount, host.label)
            largest[name] = max(candidate, largest.get(name, candidate))
    return largest


class HostPlacement:
    """The choice of machines for the tasks of a coordinator.

    Args:
        queue: The tasks that wait.
        hosts: The machines.
        ledger: The limits, the rates, and the tasks that take them.
        timeout: Seconds for which a task waits for a machine that can run it, if there
            may be another machine.
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
        """Do the same as `next_batch`, while a task in the queue or in flight has
        needs.
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
        """Return whether a waiting task needs memory or GPUs, which only the handshake
        of a machine reports.
        """
        for needs in self._queue.counts:
            if needs is None:
                continue
            if "memory" in needs.amounts or "gpus" in needs.amounts:
                return True
        return False

    def slot_addresses(self) -> list[str]:
        """Return the addresses of the machines that can run a waiting task, or an empty
        list if all can, known or not.
        """
        addresses: list[str] = []
        for host in self._hosts.values():
            machine = FreeMachine(host)
            is_suited = False
            for needs in self._queue.counts:
                is_suited = is_suited or machine.suits(needs or ONE_CPU)
            if is_suited and not host.refusal:
                addresses.append(host.address)
        return addresses if len(addresses) < len(self._hosts) else []

    def note_machines(self) -> None:
        """Note what the machines have, which may have changed."""
        self._ledger.note_machines(largest_amounts(self._hosts))

    def refuse_unfit(
        self,
        now: float,
        can_grow: bool,
    ) -> None:
        """End the tasks that no machine can run.

        Args:
            now: The present time.
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
                # No machine has all the resources: each lacks a different one.
                self._ledger.refuse(task, max(amounts))

    def startable_count(self) -> int:
        """Return the number of waiting tasks that further machines would run."""
        total = 0
        for needs, waiting in self._queue.counts.items():
            most = self._ledger.most_at_once(needs or ONE_CPU)
            total += int(min(waiting, most))
        return total
