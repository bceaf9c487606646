"""Limits and rates for the tasks of a run that run in this process.

A task takes one slot of each limit that it names. It is in one of three states: it
waits in a group of tasks with the same needs; it runs, and occupies its slots; or it
has ended, and its slots are free. `start_ready` is called after every batch of events,
when another run has released a slot, and at `deadline`. It starts the tasks that can
start, by priority, and sets the next deadline. It checks only the first task of each
group.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from operator import attrgetter
from typing import Any, Final

from flowpregel._core.effects import Ended, Event
from flowpregel._core.records import Arguments, Raised, Task
from flowpregel.context import Job
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors.base import Executor, Mailbox
from flowpregel.executors.rates import LOCAL_RATES, TokenRates, rates_of
from flowpregel.executors.resources import (
    Demand,
    SharedLimits,
    callers_of,
    holders_above,
    saver_of,
)
from flowpregel.executors.shared import CapturedArguments, Shared
from flowpregel.policies import rate_of

_BYTES_A_SLOT: Final = 1 << 20
"""The number of bytes of input for which a job takes one more slot in an executor's
queue.
"""
_MOST_AHEAD: Final = 31
"""The greatest number of calls whose starts a run books in advance. If the next call
has a rate, the run books start times under this rate for the calls behind it too.
"""
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def slots_of(job: Job) -> int:
    """Return the number of slots in an executor's queue that *job* takes.

    An executor keeps the pickled inputs of all its jobs. It may have thousands of small
    jobs, but must not have a thousand copies of one large array. So jobs with large
    inputs wait in the run, where their inputs are references. The size is a cheap
    estimate: it counts the arguments, not the values inside them.
    """
    task_input = job.task.input
    if isinstance(task_input, CapturedArguments):
        return 1 + task_input.nbytes // _BYTES_A_SLOT
    values: Any = (task_input,)
    if isinstance(task_input, Arguments):
        values = (*task_input.args, *task_input.kwargs.values())
    elif isinstance(task_input, dict):
        values = task_input.values()
    size = 0
    for value in values:
        if type(value) not in _NUMBERS:
            size += _size_of_value(value)
    return 1 + size // _BYTES_A_SLOT


def _size_of_value(value: Any) -> int:
    """Return the size of a string or an array in bytes, or 0 for any other value."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    # The attribute is looked up on the type, because a user's `__getattr__` may run any
    # code. The size of a `Shared` handle is 0, because its value is already in shared
    # memory.
    if not hasattr(type(value), "nbytes") or isinstance(value, Shared):
        return 0
    try:
        return int(value.nbytes)
    except Exception:  # noqa: BLE001 - a user's property may raise anything
        return 0


class ConcurrencyLimit:
    """A limit on the number of running tasks, and the queue of waiting tasks, by
    priority.

    Args:
        most: The number of slots that there are for all running tasks together.
        slots: A function that returns the number of slots that a job takes, or None if
            each job takes one slot.
    """

    def __init__(self, most: int, slots: Callable[[Job], int] | None = None) -> None:
        self._most = most
        self._slots_of_job = slots
        self._used = 0
        self._running: dict[str, int] = {}
        """The number of slots that each running task takes, by task id."""
        self._waiting: dict[float, OrderedDict[str, Job]] = {}
        """The waiting jobs, by priority and task id."""

    @property
    def room(self) -> int:
        """The number of slots that are free now. It is negative if the last task that
        started takes more slots than were free.
        """
        return self._most - self._used

    def enter(self, task_id: str) -> None:
        """Count the slots of a task that starts without having waited in this queue."""
        self._used += 1 - self._running.get(task_id, 0)
        self._running[task_id] = 1

    def acquire(self, jobs: Sequence[Job], *, first: bool = False) -> list[Job]:
        """Add *jobs* to the waiting jobs, in front of all others if *first*. Return the
        waiting jobs that may start now.
        """
        if first:
            for job in reversed(jobs):
                queue = self._waiting.setdefault(inf, OrderedDict())
                queue[job.task.id] = job
                queue.move_to_end(job.task.id, last=False)
            return self.release(())
        for job in jobs:
            queue = self._waiting.setdefault(job.priority, OrderedDict())
            queue[job.task.id] = job
        return self.release(())

    def release(self, task_ids: Iterable[str]) -> list[Job]:
        """Free the slots of tasks that have ended or wait for calls, and return the
        jobs that may start now.
        """
        for task_id in task_ids:
            self._used -= self._running.pop(task_id, 0)
        ready: list[Job] = []
        while self._waiting and self._used < self._most:
            priority = max(self._waiting)
            queue = self._waiting[priority]
            task_id, job = queue.popitem(last=False)
            if not queue:
                del self._waiting[priority]
            slots = 1 if self._slots_of_job is None else self._slots_of_job(job)
            self._used += slots - self._running.get(task_id, 0)
            self._running[task_id] = slots
            ready.append(job)
        return ready

    def has(self, task_id: str) -> bool:
        """Return whether a job waits. Any OS thread may call this."""
        return any(task_id in queue for queue in [*self._waiting.values()])

    def withdraw(self, task_id: str) -> Job | None:
        """Remove a waiting job and return it, or None if the job does not wait."""
        for priority, queue in self._waiting.items():
            job = queue.pop(task_id, None)
            if job is None:
                continue
            if not queue:
                del self._waiting[priority]
            return job
        return None


@dataclass(frozen=True, slots=True)
class _GroupKey:
    """The needs that tasks of one group have in common. The tasks of a group start in
    the order of their arrival.
    """

    limits: SharedLimits
    demand: Demand
    executor: Executor
    concurrency: ConcurrencyLimit | None
    """The limit on the number of tasks that run at once (``max_concurrency``)."""
    priority: int
    rates: TokenRates
    """The object that counts the rates, which limit how often the tasks start."""
    is_nested: bool
    """True if a caller of the tasks may occupy slots. Then the tasks may overtake
    earlier tasks that wait for slots, because the caller keeps its slots until it has
    their results.
    """

    @property
    def names(self) -> set[tuple[SharedLimits, str]]:
        """The names of the limits and of the rate, each with the object that counts
        it.
        """
        return {(self.limits, name) for name in self.demand.names}


@dataclass(slots=True, eq=False)
class _Group:
    """A group of waiting tasks that have the same needs (see `_GroupKey`)."""

    key: _GroupKey
    jobs: OrderedDict[str, tuple[int, Job]] = field(default_factory=OrderedDict)
    """The number of each job in the order of arrival, and the job, by task id."""
    ahead: set[str] = field(default_factory=set)
    """The ids of the tasks behind the group's first task, if start times may have been
    booked for them in advance.
    """

    @property
    def turn(self) -> tuple[int, int]:
        """The sort key of the group: by priority, then by arrival."""
        first, _ = next(iter(self.jobs.values()))
        return -self.key.priority, first


class AdmissionQueue:
    """The tasks of a run, and of the runs nested in it, that wait for limits and rates.

    Args:
        mailbox: The event queue of the run, which gets an `Ended` event for each task
            that can never start. An event in it wakes the run.
        free: A function that returns the number of further jobs that an executor would
            start at once.
        begin: A function that starts a job.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        free: Callable[[Executor], float],
        begin: Callable[[Job], None],
    ) -> None:
        self._mailbox = mailbox
        self._free = free
        self._begin = begin
        self._groups: dict[_GroupKey, _Group] = {}
        self._running: dict[str, _GroupKey] = {}
        """The needs of each running task (the key of the group it was in), by task
        id.
        """
        self._costs: dict[str, float] = {}
        """The cost of each waiting task that has a rate, by task id."""
        self._known: set[SharedLimits] = set()
        self._count = 0
        self.deadline: int | None = None
        """The time, in monotonic nanoseconds, at which a waiting task may start even if
        no event arrives.
        """

    def add(
        self,
        jobs: Iterable[Job],
        limits: SharedLimits,
        concurrency: ConcurrencyLimit | None,
    ) -> None:
        """Start those of *jobs* that can start, and queue the others.

        Args:
            jobs: The jobs of tasks that take slots of limits, or have a rate.
            limits: The limits that the jobs take slots of.
            concurrency: The limit of tasks that run at once, if there is one.
        """
        for job in jobs:
            self._add(job, limits, concurrency)
        self.start_ready()

    def _add(
        self, job: Job, limits: SharedLimits, concurrency: ConcurrencyLimit | None
    ) -> None:
        task = job.task
        demand = _demand_of(job)
        try:
            _check_slots(task, demand, limits)
            cost = _cost_of(task)
        except Exception as error:  # noqa: BLE001 - the task fails with it
            self._mailbox.post(Ended(*job.key, Raised(error)))
            return
        self._costs[task.id] = cost
        holders = {caller.id for caller in _callers_with_resources(task)}
        key = _GroupKey(
            limits=limits,
            demand=demand,
            executor=job.executor,
            concurrency=concurrency,
            priority=job.priority,
            rates=_rates_of(job),
            is_nested=bool(holders),
        )
        group = self._groups.get(key)
        if group is None:
            group = _Group(key)
            self._groups[key] = group
        self._count += 1
        group.jobs[task.id] = self._count, job
        self._known.add(limits)
        if holders:
            limits.note_nested(task.id, demand, holders)

    def start_ready(self) -> None:
        """Start the tasks that can start now, by priority, and set the next
        deadline.
        """
        self.deadline = None
        if not self._groups:
            return
        lacking: set[tuple[SharedLimits, str]] = set()
        earliest = inf
        for group in sorted(self._groups.values(), key=attrgetter("turn")):
            names = group.key.names
            if names & lacking and not group.key.is_nested:
                continue
            again_at = self._start_group(group)
            if again_at is not None:
                # The slots that the waiting task lacks are reserved for it. Otherwise
                # tasks that need fewer slots could take them again and again, and the
                # task would never start.
                lacking |= names
                earliest = min(earliest, again_at)
            if not group.jobs:
                del self._groups[group.key]
        self.deadline = None if earliest == inf else ceil(earliest * 1e9)
        self._refuse_stuck()
        if not self._groups:
            self._leave()

    def _start_group(self, group: _Group) -> float | None:
        """Start tasks of *group*. Return the time at which to try the next task again,
        or None if that task waits for an event.
        """
        key = group.key
        while group.jobs and self._room(key) >= 1:
            task_id, (_, job) = next(iter(group.jobs.items()))
            try:
                again_at = self._try_start(task_id, group)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                del group.jobs[task_id]
                self._mailbox.post(Ended(*job.key, Raised(error)))
                continue
            if again_at is not None:
                return again_at
            del group.jobs[task_id]
            self._running[task_id] = key
            if key.concurrency is not None:
                key.concurrency.enter(task_id)
            self._begin(job)
        self._give_back_ahead(group)
        return None

    def _try_start(self, task_id: str, group: _Group) -> float | None:
        """Take the slots that the first task of a group needs and the cost of the task
        from its rate, and return None. If that is not possible now, return the time at
        which to try again.

        Raises:
            Exception: The store of the rate cannot be changed.
        """
        key = group.key
        demand = key.demand
        again_at: float | None = None
        if demand.rate is not None:
            ahead: dict[str, float] = {}
            if key.rates.must_ask(task_id):
                ahead = self._next_costs(group)
                group.ahead = set(ahead)
            again_at = key.rates.try_start(
                task_id,
                (demand.rate_name, demand.rate),
                self._costs[task_id],
                self._mailbox.post,
                ahead,
            )
        if again_at is None:
            again_at = key.limits.try_start(task_id, demand, self, self._mailbox.post)
        return again_at

    def _next_costs(self, group: _Group) -> dict[str, float]:
        """Return the costs, by task id, of the tasks behind the first task of a group,
        as far as there is room for them (see `_room`).
        """
        # No times are booked in advance for tasks with a limit: at the booked time,
        # such a task might still wait for a slot.
        if group.key.demand.limits:
            return {}
        most = min(self._room(group.key) - 1, _MOST_AHEAD)
        task_ids = islice(group.jobs, 1, int(most) + 1)
        return {task_id: self._costs[task_id] for task_id in task_ids}

    def _give_back_ahead(self, group: _Group) -> None:
        """Cancel the booked start times of tasks for which there is no room now,
        because these tasks would start later than booked.
        """
        for task_id in group.ahead:
            if task_id in group.jobs:
                group.key.rates.forget(task_id)
        group.ahead = set()

    def _room(self, key: _GroupKey) -> float:
        """Return the number of tasks with this key that may start now. It is bounded by
        the run's limit on running tasks and, if the tasks have a rate, by the number of
        further tasks that the executor would start at once.
        """
        room = inf if key.concurrency is None else key.concurrency.room
        # A task without a rate may occupy its slots while it waits for an OS thread.
        # But a start that is counted by a rate must happen at once.
        if key.demand.rate is None:
            return room
        return min(room, self._free(key.executor))

    def _refuse_stuck(self) -> None:
        """Find the first task that can never start because its callers occupy the slots
        that it needs, and let it fail.
        """
        nested = {
            group.key.limits for group in self._groups.values() if group.key.is_nested
        }
        for limits in nested:
            for task_id, name in limits.stuck().items():
                job = self.withdraw(task_id)
                if job is not None:
                    self._refuse(job, name, limits.limits[name])
                    break

    def _refuse(self, job: Job, limit: str, total: float) -> None:
        """Let a task fail, because its callers occupy all *total* slots of a limit."""
        task = job.task
        holders = [caller.name for caller in _callers_with_resources(task)]
        error = ResourcesError(task.name, limit, 1, total, holders)
        self._mailbox.post(Ended(*job.key, Raised(error)))

    def advance(self, events: Iterable[Event]) -> None:
        """Release the slots of tasks that have ended, and start tasks that can start
        now.
        """
        for event in events:
            if isinstance(event, Ended):
                self._release(event.task_id)
        self.start_ready()

    def _release(self, task_id: str) -> None:
        self._costs.pop(task_id, None)
        key = self._running.pop(task_id, None)
        if key is not None:
            key.limits.release(task_id, key.demand)
            key.rates.forget(task_id)

    def correct_cost(self, task_id: str, tokens: float) -> None:
        """Correct the cost that a rate has counted for a running task."""
        key = self._running.get(task_id)
        if key is not None:
            key.rates.spent(task_id, tokens)

    def has(self, task_id: str) -> bool:
        """Return whether a job waits. Any OS thread may call this."""
        return any(task_id in group.jobs for group in [*self._groups.values()])

    def withdraw(self, task_id: str) -> Job | None:
        """Remove a waiting job and return it, or None if the job does not wait."""
        for group in self._groups.values():
            if task_id not in group.jobs:
                continue
            _, job = group.jobs.pop(task_id)
            group.key.limits.forget_nested(task_id)
            group.key.rates.forget(task_id)
            if not group.jobs:
                del self._groups[group.key]
            if not self._groups:
                self._leave()
            return job
        return None

    def _leave(self) -> None:
        """Remove the run from the queues of runs that wait for a slot of a limit, so
        that other runs get the slot.
        """
        for limits in self._known:
            limits.leave(self)

    def close(self) -> None:
        """Release all slots at the end of the run."""
        for task_id in list(self._running):
            self._release(task_id)
        for group in self._groups.values():
            for task_id in group.jobs:
                group.key.limits.forget_nested(task_id)
                group.key.rates.forget(task_id)
        self._groups.clear()
        self._leave()


def _demand_of(job: Job) -> Demand:
    """Return the slots and the rate that a job, whose node has resources, waits for in
    the run.
    """
    node = job.task.node
    resources = node.resources
    assert resources is not None
    names = tuple(dict.fromkeys(resources.limit))
    if job.executor.capabilities.admits:
        # The executor itself enforces the limits, so the run does not count them.
        names = ()
    return Demand(names, resources.rate, node.home or node.name)


def _callers_with_resources(task: Task) -> list[Task]:
    """Return the callers of *task*, direct and indirect, whose nodes have resources."""
    return [caller for caller in callers_of(task) if caller.node.resources is not None]


def _rates_of(job: Job) -> TokenRates:
    """Return the rates that count the start of a job: if the run has a store, those of
    all programs that use the store, and otherwise those of this program.
    """
    saver = saver_of(job.run)
    return rates_of(saver) if hasattr(saver, "change_rate") else LOCAL_RATES


def _cost_of(task: Task) -> float:
    """Return the cost of a task. The rate of the task limits the sum of the costs.

    Raises:
        ResourcesError: The cost is greater than the rate.
        ConfigurationError: The cost is not a number, or is less than 0.
        Exception: The user's ``cost=`` function has raised it.
    """
    resources = task.node.resources
    if resources is None or resources.rate is None or resources.cost is None:
        return 1.0
    arguments = task.input
    if isinstance(arguments, Arguments):
        cost: Any = resources.cost(*arguments.args, **arguments.kwargs)
    else:
        cost = resources.cost(arguments)
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if not is_number or not cost >= 0:
        raise ConfigurationError(
            f"the cost of {task.name!r} is {cost!r}; cost= must return a number of 0 "
            "or more"
        )
    most, _ = rate_of(resources.rate)
    if cost > most:
        raise ResourcesError(task.name, f"rate {resources.rate}", cost, most, [])
    return float(cost)


def _check_slots(task: Task, demand: Demand, limits: SharedLimits) -> None:
    """Check that a task needs no more slots of each limit than there are, and no more
    than its callers leave free.

    Raises:
        ResourcesError: The task needs more slots of a limit.
    """
    for name in demand.limits:
        total = limits.limits.get(name, 0)
        holders = holders_above(task, name)
        if total < 1:
            raise ResourcesError(task.name, name, 1, total, [])
        if total < 1 + len(holders):
            raise ResourcesError(task.name, name, 1, total, holders)
