"""What the pool decides, without I/O or a clock, while tasks are there that say what they take.

`assign_by_needs` goes through the queue in its order. A task whose needs are free starts; one
whose needs are not keeps what it lacks from those behind it, so that small tasks never starve
a large one. A task that waits for its calls lends its CPUs, as it does its worker, and holds
the rest. So that nobody waits for ever for what its own caller holds, the calls of a task
that holds something are not kept from anything by those before them; and when nothing runs
and nothing can start, the first of them is named, to be refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowpregel.executors.processes.assign import (
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    WorkerState,
)
from flowpregel.executors.processes.protocol import WorkerKind

ONE_CPU: Final = Needs({"cpus": 1.0})
"""What a task takes that says nothing."""
_ROUNDING: Final = 1e-6


@dataclass(slots=True)
class Assignment:
    """What the pool is to do now."""

    starts: list[WorkerKind] = field(default_factory=list)
    """The workers to start."""
    sends: list[tuple[int, InFlight]] = field(default_factory=list)
    """The index of a worker, and the task that it gets."""
    lacking: set[str] = field(default_factory=set)
    """The names of what tasks wait for."""
    stuck: tuple[InFlight, str] | None = None
    """A task, and the name of what it lacks, which tasks hold that wait for their calls."""


class _Free:
    """What has not been given away yet."""

    def __init__(self, workers: Sequence[WorkerLoad], limits: PoolLimits) -> None:
        self.amounts = dict(limits.amounts)
        self._gpus = [*limits.gpus]
        for worker in workers:
            is_busy = worker.state is WorkerState.BUSY
            for name, amount in worker.held.items():
                if is_busy or name != "cpus":
                    self.amounts[name] -= amount
            if "gpus" in worker.held:
                self._use(worker.kind)
        states = [each.state for each in workers]
        self._kinds = {
            index: workers[index].kind
            for state in (WorkerState.IDLE, WorkerState.STARTING)
            for index in range(len(workers))
            if states[index] is state
        }
        """Of the workers that have no task."""
        self.places = limits.size - states.count(WorkerState.BUSY)
        self.is_quiet = WorkerState.BUSY not in states
        """Whether nothing runs."""
        self.kept: set[str] = set()
        """The names of what nobody gets, because tasks before lack it."""

    def _use(self, kind: WorkerKind) -> None:
        self._gpus = [gpu for gpu in self._gpus if gpu not in kind.gpus]

    def take(self, needs: Needs) -> set[str]:
        """Give away what a task needs; or return the names of what it cannot have now."""
        wanted = needs.amounts if needs.rate is None else {**needs.amounts, needs.rate: 1}
        kept = set() if needs.is_below else self.kept
        lacking = {
            name
            for name, amount in wanted.items()
            if name in kept or amount > self.amounts[name] + _ROUNDING
        }
        # A guess keeps no task from running alone.
        if lacking and not (self.is_quiet and needs.is_measured and lacking == {"memory"}):
            return lacking
        self.places -= 1
        self.is_quiet = False
        for name, amount in wanted.items():
            self.amounts[name] -= amount
        return set()

    def take_worker(self, needs: Needs) -> int | WorkerKind:
        """Return the index of the worker that a task gets, or the kind of one to start."""
        count = int(needs.amounts.get("gpus", 0))
        found: int | WorkerKind
        found = kind = WorkerKind(needs.threads, tuple(self._gpus[:count]))
        for index, each in self._kinds.items():
            is_free = len(each.gpus) == count and {*each.gpus} <= {*self._gpus}
            if each.threads == needs.threads and is_free:
                found, kind = index, self._kinds.pop(index)
                break
        if count:
            self._use(kind)
        return found


def assign_by_needs(
    queue: TaskQueue,
    workers: Sequence[WorkerLoad],
    limits: PoolLimits,
    passing: Collection[str] = (),
) -> Assignment:
    """Return what to do next with the tasks of *queue*.

    Args:
        queue: The tasks that wait.
        workers: What the workers do.
        limits: How many there may be, and what there is of each resource.
        passing: The names of what comes without a task's end: rates, places that other
            programs hold.
    """
    free, result = _Free(workers, limits), Assignment()
    blocked: list[tuple[InFlight, set[str]]] = []
    for task in queue:
        if free.places < 1:
            break
        needs = task.needs or ONE_CPU
        if lacking := free.take(needs):
            free.kept |= lacking
            blocked.append((task, lacking))
            continue
        worker = free.take_worker(needs)
        if isinstance(worker, WorkerKind):
            result.starts.append(worker)
        elif workers[worker].state is WorkerState.IDLE:
            result.sends.append((worker, task))
    result.lacking = free.kept
    lasting = [(task, lacking - {*passing}) for task, lacking in blocked]
    if free.is_quiet and all(lacking for _, lacking in lasting):
        below = (each for each in lasting if each[0].needs and each[0].needs.is_below)
        result.stuck = next(((task, min(lacking)) for task, lacking in below), None)
    return result
