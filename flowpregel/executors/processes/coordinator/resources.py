"""The ledger of a pool: the amounts of resources that it has (CPUs, memory, GPUs, slots
of limits, rates), and those that tasks take.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from flowpregel._core.records import Raised
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors.base import JobKey
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    Assignment,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    assign,
)
from flowpregel.executors.processes.coordinator.crash_report import forget_peak, peak_of
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.memory_retries import MemoryRetries
from flowpregel.executors.processes.wire.protocol import PoolSettings, WorkerKind
from flowpregel.executors.resources import (
    CrossProcessLimit,
    RateWindow,
    folder_of_limit,
    holders_above,
    limits_folder_of,
    saver_of,
)
from flowpregel.policies import Resources
from flowpregel.units import bytes_of

OF_THE_MACHINE: Final = ("cpus", "memory", "gpus")
_MEASURED_FROM: Final = 0.005
"""The shortest duration, in seconds, of tasks whose memory is measured. A measurement
opens two files, which would slow down shorter tasks.
"""
Decide: TypeAlias = Callable[
    [TaskQueue, Sequence[WorkerLoad], PoolLimits, Collection[str]], Assignment
]
"""A function with the signature of `assign`, which decides which worker gets which
tasks.
"""


# ------------------------------------------------ resources of the machine


def amounts_of(
    limits: Mapping[str, float | str] | None, cpus: int
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the amounts of a pool's resources, and the names of the GPUs.

    If *limits* does not name a resource, the amount of this machine is used.

    Raises:
        ConfigurationError: A value in *limits* is not an amount.
    """
    gpus = _gpus()
    amounts: dict[str, float] = {"cpus": cpus, "memory": _memory(), "gpus": len(gpus)}
    amounts |= amounts_in(limits)
    count = int(amounts["gpus"])
    if count > len(gpus):
        # The user states more GPUs than this program has found. All of them then get
        # their numbers as names.
        gpus = tuple(str(number) for number in range(count))
    return amounts, gpus[:count]


def amounts_in(limits: Mapping[str, float | str] | None) -> dict[str, float]:
    """Return the amounts in *limits*, which a user has passed.

    Raises:
        ConfigurationError: A value in *limits* is not an amount.
    """
    amounts: dict[str, float] = {}
    for name, value in (limits or {}).items():
        amount: Any = value
        if name == "memory":
            amount = bytes_of(amount)
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not amount > 0:
            raise ConfigurationError(
                f"limits[{name!r}] is {value!r}; use a number greater than 0"
            )
        amounts[name] = amount
    return amounts


def _gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this program may use, as in
    ``CUDA_VISIBLE_DEVICES``.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _gpus_in(visible)
    numbers: list[str] = []
    for entry in Path("/dev").iterdir():
        match = re.fullmatch(r"nvidia(\d+)", entry.name)
        if match is not None:
            numbers.append(match[1])
    return tuple(sorted(numbers, key=int))


def _gpus_in(visible: str) -> tuple[str, ...]:
    """Return the names of the GPUs in *visible*, the value of
    ``CUDA_VISIBLE_DEVICES``.
    """
    names: list[str] = []
    for part in visible.split(","):
        name = part.strip()
        if name in ("", "-1"):
            # CUDA ignores all names after the first invalid one.
            break
        names.append(name)
    return tuple(names)


def _memory() -> int:
    """Return the memory of the machine or the container, in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # The cgroup has no memory limit if the file contains "max", or does not exist.
    with suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


# ------------------------------------------------ the resources in use


class ResourceLedger:
    """The resources of a pool, and the tasks that take them.

    A ledger is used on the I/O thread only.

    Args:
        settings: The settings of the pool.
        loop: The I/O loop.
        finish: A function that ends a task whose needs can never be met.
    """

    def __init__(
        self,
        settings: PoolSettings,
        loop: IOLoop,
        finish: Callable[[InFlight, Raised], None],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._finish = finish
        self._timer_due = inf
        """The monotonic time of the timer for the next change of amounts that a waiting
        task needs, or infinity if no timer is set.
        """
        self._needs: dict[object, Needs] = {}
        self._fitting: set[Needs] = set()
        """The needs that were checked already: the pool can meet them when it runs
        nothing else.
        """
        self.clock: Callable[[], float] = time.monotonic
        self._measured: set[InFlight] = set()
        """The running tasks whose peak memory the kernel measures. The peak of the
        worker was reset when the task was sent.
        """
        self.memory_retries: MemoryRetries = MemoryRetries(settings.amounts)
        self.largest: Mapping[str, tuple[float, str]] = {}
        """The largest amount of each resource that a single machine of a cluster has,
        and the name of that machine. It is empty for the pool of this machine.
        """
        self._rates: dict[str, RateWindow] = {}
        self._shared: dict[str, CrossProcessLimit] = {}
        self._limit_names: dict[str, str] = {}
        """The names of the limits that all programs of a store share, by the resource
        names under which this ledger records their slots (see `_counted_as`).
        """
        for name in settings.amounts if settings.limits_folder else ():
            if name not in OF_THE_MACHINE:
                self._shared[name] = self._open_limit(name, settings.limits_folder)
        self.count: int = 0
        """The number of tasks in the pool with special needs (`InFlight.needs` is not
        None).
        """
        _ledgers.add(self)

    def _open_limit(self, name: str, folder: str) -> CrossProcessLimit:
        """Open a named limit (a number of slots) that programs share through the lock
        files of a folder.
        """
        count = int(self._settings.amounts[name])
        # When a slot of the limit becomes free, a call that does nothing wakes the I/O
        # loop, which assigns waiting tasks at the end of each turn.
        wake = partial(self._loop.call, lambda: None)
        return CrossProcessLimit(folder_of_limit(folder, name), count, wake)

    def _counted_as(self, name: str, folder: str | None) -> str:
        """Return the resource name under which this ledger records the slots of a
        limit.

        A limit that all programs of a store share is a separate resource for each
        store.

        Args:
            name: The name of the limit.
            folder: The folder of the store's limits, or None if its programs do not
                share them.
        """
        if not folder:
            return name
        counted_as = f"{name} in {folder}"
        if counted_as not in self._shared and name in self._settings.amounts:
            self._shared[counted_as] = self._open_limit(name, folder)
        self._limit_names[counted_as] = name
        return counted_as

    def note(self, task: InFlight, tasks: Mapping[JobKey, InFlight]) -> None:
        """Set the needs of *task*, and end the task with an error if the pool can never
        meet them.

        *tasks* are all tasks of the pool. The callers of *task* among them hold their
        resources until *task* has ended, so these are never free for it.

        Raises:
            OSError: The files of a limit that programs share cannot be opened.
        """
        called = task.job.task
        resources = called.node.resources
        callers: list[InFlight] = []
        if called.parent is not None:
            callers = _callers_of(task, tasks)
        task.priority = _priority_among(resources, callers)
        is_below = any(map(_holds_something, callers))
        is_retry = self.memory_retries.has_noted(task)
        if resources is None and not is_below and not is_retry:
            return
        folder = None
        if resources and resources.limit and self._settings.limits_scope == "store":
            folder = limits_folder_of(saver_of(task.job.run))
        home = called.node.home or called.name
        key = (home, resources, is_below, folder)
        needs = self._needs.get(key)
        if needs is None:
            needs = self._needs_of(home, resources, is_below, folder)
            self._needs[key] = needs
        if is_retry:
            needs = self.memory_retries.needs_after(task, needs)
        task.needs = needs
        self.count += 1
        # The same needs are checked only once, unless callers of the task hold
        # resources, since then the result depends on the callers.
        if called.parent is not None or needs not in self._fitting:
            self._check(task, needs, callers)

    def _check(self, task: InFlight, needs: Needs, callers: Sequence[InFlight]) -> None:
        """End *task* with an error if it needs more resources than *callers* leave
        free.
        """
        for name, amount in needs.amounts.items():
            limit_name = self._limit_names.get(name, name)
            total = self._settings.amounts.get(limit_name, 0)
            holders: list[str] = []
            held = 0.0
            if amount <= total:
                holders, held = _held_by_callers(task, limit_name, callers)
            is_guess = name == "memory" and needs.is_measured
            if amount + held > total and not is_guess:
                self.refuse(task, name, holders)
                return
        if task.job.task.parent is None:
            self._fitting.add(needs)

    def refuse(self, task: InFlight, name: str, holders: Iterable[str] = ()) -> None:
        """End *task* with an error, because it can never get the resource *name*.

        Args:
            task: The task to end.
            name: The name under which this ledger records the resource.
            holders: The names of the tasks that hold the resource.
        """
        amount = task.needs.amounts[name] if task.needs else 0
        name = self._limit_names.get(name, name)
        total = self._settings.amounts.get(name, 0)
        machine = ""
        if name in self.largest:
            total, machine = self.largest[name]
        error = ResourcesError(
            task.job.task.name, name, amount, total, sorted({*holders}), machine
        )
        self._loop.call(partial(self._finish, task, Raised(error)))

    def _needs_of(
        self,
        home: str,
        resources: Resources | None,
        is_below: bool,
        folder: str | None,
    ) -> Needs:
        """Return the needs that all calls of a task share.

        All calls share this one object. So when the memory of one call was measured,
        the later ones get the new estimate.
        """
        resources = resources or Resources(memory=0)
        amounts: dict[str, float] = {"cpus": resources.cpus or 1}
        if resources.memory:
            amounts["memory"] = bytes_of(resources.memory)
        if resources.gpus:
            amounts["gpus"] = resources.gpus
        for name in resources.limit:
            amounts[self._counted_as(name, folder)] = 1
        threads = None
        if resources.cpus is not None:
            threads = max(1, int(resources.cpus))
        if threads == self._settings.share:
            # Any worker has this number of threads, so the task needs no special
            # worker.
            threads = None
        rate = None
        # If the calls have different costs (``cost=``), the run itself keeps to the
        # rate before it passes a call to the pool. The pool keeps only to rates without
        # costs.
        if resources.rate is not None and resources.cost is None:
            rate = f"{resources.rate} of {home}"
            self._rates.setdefault(rate, RateWindow(resources.rate))
        return Needs(
            amounts,
            threads,
            rate,
            is_measured=resources.memory is None,
            is_below=is_below,
            is_fresh=resources.isolation == "fresh",
        )

    def assign(
        self,
        queue: TaskQueue,
        loads: Sequence[WorkerLoad],
        limits: PoolLimits,
        tasks: Mapping[JobKey, InFlight],
        decide: Decide = assign,
    ) -> Assignment:
        """Return the plan of *decide* for the tasks of *queue*, made with the present
        amounts of all resources. Set a timer for the next change of an amount that a
        task waits for.

        *tasks* are all tasks of the pool. If all of them wait for each other's
        resources (a deadlock), one of them is ended with an error.
        """
        limits, changes = self._current_amounts(loads, limits)
        passing = {name for name, at in changes.items() if at < inf}
        plan = decide(queue, loads, limits, passing)
        self._give_back(loads, plan)
        due = min((changes[name] for name in plan.lacking & passing), default=inf)
        if due < self._timer_due:
            # The timer only wakes the I/O loop, which assigns waiting tasks at the end
            # of each turn.
            self._timer_due = due
            self._loop.call_at(due, self._forget_timer)
        if plan.stuck is not None and _all_wait(tasks):
            stuck, name = plan.stuck
            self._refuse_stuck(stuck, name, tasks.values())
        return plan

    def _refuse_stuck(
        self, stuck: InFlight, name: str, tasks: Iterable[InFlight]
    ) -> None:
        """End the task *stuck* with an error that names those of *tasks* that hold the
        resource *name*, which *stuck* lacks.
        """
        begun = [task for task in tasks if task.execution.worker is not None]
        holders = [holder.job.task.name for holder in _holders(name, begun)]
        self.refuse(stuck, name, holders)

    def _current_amounts(
        self, loads: Sequence[WorkerLoad], limits: PoolLimits
    ) -> tuple[PoolLimits, dict[str, float]]:
        """Return *limits* with the present amounts of all resources, and, for the rates
        and shared limits, the times at which more may become free.
        """
        now = self.clock()
        sources: dict[str, RateWindow | CrossProcessLimit] = {
            **self._rates,
            **self._shared,
        }
        amounts = dict(self._settings.amounts)
        for name, source in sources.items():
            amounts[name] = source.available(_used(name, loads), now)
        changes = {name: source.next_change_at(now) for name, source in sources.items()}
        return limits._replace(amounts=amounts, gpus=self._settings.gpus), changes

    def _give_back(self, loads: Sequence[WorkerLoad], plan: Assignment) -> None:
        """Release the slots of shared limits that neither a worker's tasks nor the
        tasks that *plan* sends need.
        """
        for name, limit in self._shared.items():
            count = _used(name, loads)
            for index, tasks in plan.sends:
                # A task that is sent ahead of time to a busy worker needs no further
                # slot: it will use that of the worker's running task.
                if not loads[index].held:
                    count += len(_holders(name, tasks[:1]))
            limit.give_back(count)

    def _forget_timer(self) -> None:
        self._timer_due = inf

    def resize(self, settings: PoolSettings) -> None:
        """Use the new settings of the pool from now on.

        Args:
            settings: The new settings.
        """
        self._settings = settings
        self.memory_retries.totals = settings.amounts

    def most_at_once(self, needs: Needs) -> float:
        """Return the maximum number of tasks with *needs* that can run at the same
        time.
        """
        most = inf
        for name, amount in needs.amounts.items():
            limit_name = self._limit_names.get(name, name)
            most = min(most, self._settings.amounts.get(limit_name, 0) / amount)
        return most

    def note_machines(self, largest: Mapping[str, tuple[float, str]]) -> None:
        """Set the largest amounts that a single machine of the cluster has.

        Args:
            largest: The amount of each resource, and the name of the machine that has
                it.
        """
        self.largest = largest
        totals = {name: amount for name, (amount, _) in largest.items()}
        self.memory_retries.totals = totals

    def count_start(self, task: InFlight) -> None:
        """Note the start of *task* for its rate, if it has one."""
        if task.needs is not None and task.needs.rate is not None:
            self._rates[task.needs.rate].add(self.clock())

    def start(self, task: InFlight) -> None:
        """Note that *task* was sent to its worker, which is a process of this
        machine.
        """
        self.count_start(task)
        needs = task.needs or ONE_CPU
        if needs.is_measured and task.code.seconds > _MEASURED_FROM:
            forget_peak(task.execution.worker.pid)
            self._measured.add(task)

    def measure(self, task: InFlight | None, peak: int | None) -> None:
        """Update the estimated memory of calls such as *task*: it has used *peak*
        bytes, or, if *peak* is None, the peak that the kernel has measured for its
        worker.
        """
        if task is None or task.needs is None or not task.needs.is_measured:
            return
        if peak is None:
            peak = peak_of(task.execution.worker.pid)
        amounts = task.needs.amounts
        # The estimate is limited to what the pool has, because a task could never get
        # more.
        used = min(peak, self._settings.amounts["memory"])
        amounts["memory"] = max(used, amounts.get("memory", 0))

    def end(self, task: InFlight) -> None:
        """Note that *task*, which has special needs, has ended. Its worker may be alive
        or dead.
        """
        self.count -= 1
        if task in self._measured:
            self._measured.remove(task)
            execution = task.execution
            seconds = self.clock() - execution.sent
            if execution.worker is not None and seconds > _MEASURED_FROM:
                self.measure(task, None)
        if self.count == 0:
            for limit in self._shared.values():
                limit.give_back(0)

    def settings_of(self, kind: WorkerKind) -> PoolSettings:
        """Return the settings for workers of *kind*."""
        env = {**self._settings.env}
        if kind.threads is not None:
            env |= dict.fromkeys(self._settings.capped, str(kind.threads))
        if kind.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(kind.gpus)
        return replace(self._settings, kind=kind, env=env)

    def close(self) -> None:
        """Release the slots of shared limits, which other programs may need."""
        for limit in self._shared.values():
            limit.close()


def _priority_among(resources: Resources | None, callers: Sequence[InFlight]) -> int:
    """Return the higher of two priorities: that of the task itself, in *resources*, and
    that of the nearest caller.
    """
    priority = None if resources is None else resources.priority
    if not callers:
        return priority or 0
    # no mutant: The nearest caller has inherited too, so it has the highest.
    inherited = callers[0].priority
    return inherited if priority is None else max(inherited, priority)


def _holds_something(caller: InFlight) -> bool:
    """Return whether *caller* holds resources beyond its CPUs, which it lends while it
    waits for its calls.
    """
    return caller.needs is not None and len(caller.needs.amounts) > 1


def _used(name: str, loads: Sequence[WorkerLoad]) -> int:
    """Return how many slots of the limit *name* the tasks of the workers take."""
    return sum(int(worker.held.get(name, 0)) for worker in loads)


def _callers_of(task: InFlight, tasks: Mapping[JobKey, InFlight]) -> list[InFlight]:
    """Return the tasks of the pool that wait for *task*, the nearest first."""
    callers: list[InFlight] = []
    waiting = task.job.task.parent
    while waiting is not None:
        key = (waiting.id, waiting.attempt.number)
        caller = tasks.get(key)
        if caller is not None:
            callers.append(caller)
        waiting = waiting.parent
    return callers


def _holders(name: str, tasks: Iterable[InFlight]) -> dict[InFlight, float]:
    """Return those of *tasks* that take some of the resource *name*, each with the
    amount.
    """
    amounts: dict[InFlight, float] = {}
    for task in tasks:
        if task.needs is not None and name in task.needs.amounts:
            amounts[task] = task.needs.amounts[name]
    return amounts


def _held_by_callers(
    task: InFlight, name: str, callers: Sequence[InFlight]
) -> tuple[list[str], float]:
    """Return the names of the callers of *task* that hold some of the resource *name*,
    and the amount that they hold.

    *callers* are the callers in this pool. A waiting caller lends its CPUs, so it holds
    none.
    """
    if name == "cpus":
        return [], 0.0
    if name not in OF_THE_MACHINE:
        # A named limit has slots for callers outside of this pool too, so all callers
        # are searched for them, not only *callers*.
        holders = holders_above(task.job.task, name)
        return holders, len(holders)
    amounts = _holders(name, callers)
    names = [caller.job.task.name for caller in amounts]
    return names, sum(amounts.values())


def _all_wait(tasks: Mapping[JobKey, InFlight]) -> bool:
    """Return whether all calls for which *tasks* wait are themselves among *tasks*, so
    that none of the tasks can continue.

    If a task waits for a call on another executor, that call may end, and the task then
    continues.
    """
    open_calls = 0
    called_tasks = 0
    for task in tasks.values():
        open_calls += len(task.execution.calls)
        if _callers_of(task, tasks):
            called_tasks += 1
    return called_tasks >= open_calls


_ledgers: WeakSet[ResourceLedger] = WeakSet()
"""Every ledger of this program that is in use."""


def _close_ledgers_after_fork() -> None:
    # The slots of shared limits are file locks of the parent process. This process only
    # closes its copies of the descriptors.
    for ledger in _ledgers:
        ledger.close()


os.register_at_fork(after_in_child=_close_ledgers_after_fork)
