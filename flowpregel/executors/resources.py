"""The concurrency limits of tasks that run outside of a worker pool.

`SharedLimits` tracks which tasks of this process hold a slot of a limit. A worker pool
does the same for its own tasks. Rates are counted by `flowpregel.executors.rates`.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote
from weakref import WeakSet

from flowpregel._core.records import Task
from flowpregel.policies import rate_of

LimitsScope: TypeAlias = Literal["pool", "store"]
"""The calls that share the named limits of an executor: those of the executor, or those
of all programs that use the same store.
"""
LIMITS: Final = "limits"
"""The name of the folder of the slots (lock files), in the folder of a store's lock
files.
"""
_LOOK_EVERY: Final = 0.9
"""Seconds after which the program tries again to lock slots that other programs hold,
if it was not woken before. It may not be woken, because not all slots of a large limit
are watched.
"""
_MOST_WATCHED: Final = 8
"""The number of slots of a limit that are watched at once, each by an OS thread."""
_TURN: Final = 0.1
"""Seconds for which a freed slot is reserved for the run whose turn it is."""


class RateWindow:
    """The sliding window of a rate: the start times of the latest calls in a worker
    pool.

    Args:
        rate: The rate, such as ``"60/min"``.
    """

    def __init__(self, rate: str) -> None:
        self._most, self._seconds = rate_of(rate)
        self._starts: deque[float] = deque()

    def available(self, used: int, now: float) -> int:
        """Return the number of calls that may start at the time *now*."""
        while self._starts and self._starts[0] + self._seconds <= now:
            self._starts.popleft()
        return self._most - len(self._starts)

    def add(self, now: float) -> None:
        """Note that a call starts."""
        self._starts.append(now)

    def next_change_at(self, now: float) -> float:
        """Return the time at which one more call may start, or infinity if no call has
        started within the period of the rate.
        """
        return self._starts[0] + self._seconds if self._starts else inf


class Limit:
    """The slots of a limit that this program alone uses.

    Args:
        count: The number of slots.
    """

    def __init__(self, count: float) -> None:
        self._count = count

    def available(self, used: int, now: float) -> float:
        """Return the number of slots that tasks of this program may hold now."""
        return self._count

    def give_back(self, used: int) -> None:
        """Release all slots but the *used* ones, so that other programs can take
        them.
        """

    def next_change_at(self, now: float) -> float:
        """Return the time at which to try again for a slot, or infinity if only a task
        of this program can free a slot.
        """
        return inf

    def close(self) -> None:
        """Release all slots."""


class CrossProcessLimit(Limit):
    """The slots of a limit that all programs which name the same folder share.

    Each slot is a file. The process that has locked the file holds the slot until it
    unlocks the file or ends in any way.

    While other programs hold the slots, an OS thread waits for the lock of each slot,
    and wakes the program when it gets the lock.

    Args:
        folder: The folder of the files.
        count: The number of slots.
        wake: A function that is called, on any OS thread, when a slot may be free.
    """

    def __init__(
        self, folder: Path, count: int, wake: Callable[[], object] = lambda: None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(count)
        self._paths = [folder / str(number) for number in range(count)]
        self._files = [_open_slot(path) for path in self._paths]
        self._held: list[int] = []
        self._wake = wake
        self._watched: set[Path] = set()
        """The files for whose locks an OS thread waits."""

    def available(self, used: int, now: float) -> int:
        """Try to hold one slot more than the *used* ones, and return the number of
        slots that this program holds.
        """
        for file in self._files:
            if len(self._held) <= used and file not in self._held:
                # If another program holds this slot, the next one is tried.
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._held.append(file)
        if len(self._held) <= used:
            self._watch()
        return len(self._held)

    def _watch(self) -> None:
        """Wait for the locks of the slots that other programs hold."""
        for path, file in zip(self._paths, self._files, strict=True):
            if len(self._watched) >= _MOST_WATCHED:
                return
            if file in self._held or path in self._watched:
                continue
            self._watched.add(path)
            thread = threading.Thread(
                target=self._wait_for,
                args=(path,),
                name="flowpregel-limit",
                daemon=True,
            )
            thread.start()

    def _wait_for(self, path: Path) -> None:
        """Wait until the lock of a slot is free, and wake the program."""
        # If the folder was removed, the error is ignored, because there are no slots
        # any more.
        with suppress(OSError):
            file = _open_slot(path)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                # The lock is released explicitly, because a forked process may have a
                # copy of the descriptor.
                fcntl.flock(file, fcntl.LOCK_UN)
            finally:
                os.close(file)
        self._watched.discard(path)
        if self._files:
            self._wake()

    def give_back(self, used: int) -> None:
        """Release slots until this program holds only as many as are *used*."""
        while len(self._held) > used:
            fcntl.flock(self._held.pop(), fcntl.LOCK_UN)

    def next_change_at(self, now: float) -> float:
        """Return the time at which to try again, or infinity if this program holds all
        slots.
        """
        return now + _LOOK_EVERY if len(self._held) < len(self._files) else inf

    def close(self) -> None:
        """Release all slots. In a forked process, the parent keeps its slots."""
        while self._files:
            os.close(self._files.pop())
        self._held.clear()


def folder_of_limit(folder: str, name: str) -> Path:
    """Return the folder of the slots of a limit.

    Args:
        folder: The folder of the limits.
        name: The name of the limit.
    """
    return Path(folder) / quote(name, safe="")


def saver_of(run: Any) -> Any:
    """Return the saver of the run with this context, or None if the run has no saver in
    this process.
    """
    committer = getattr(run, "committer", None)
    return getattr(committer, "saver", None)


def limits_folder_of(saver: Any) -> str | None:
    """Return the folder of the limits that the programs of a store share.

    Args:
        saver: The saver of the store, or None.

    Returns:
        The folder. It is empty if the store has no lock files, as on a server, and None
        if no other program uses the store.
    """
    locks_folder: str | None = getattr(saver, "locks_folder", None)
    if not locks_folder:
        return locks_folder
    return os.path.join(locks_folder, LIMITS)


def _open_slot(path: Path) -> int:
    """Return a descriptor of the file of a slot, which is created if it does not
    exist.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def priority_of(task: Task) -> int:
    """Return the highest priority among *task* and its callers, or 0 if none of them
    has one.
    """
    highest: int | None = None
    caller: Task | None = task
    while caller is not None:
        resources = caller.node.resources
        if resources is not None and resources.priority is not None:
            highest = (
                resources.priority
                if highest is None
                else max(highest, resources.priority)
            )
        caller = caller.parent
    return highest or 0


def callers_of(task: Task) -> list[Task]:
    """Return the tasks that wait for *task*, the nearest first."""
    callers, caller = [], task.parent
    while caller is not None:
        callers.append(caller)
        caller = caller.parent
    return callers


def holders_above(task: Task, name: str) -> list[str]:
    """Return the names of the callers of *task* that hold a slot of the limit
    *name*.
    """
    return [
        caller.name
        for caller in callers_of(task)
        if caller.node.resources is not None and name in caller.node.resources.limit
    ]


@dataclass(frozen=True, slots=True)
class Demand:
    """The slots and the rate that a task needs in order to start."""

    limits: Sequence[str] = ()
    rate: str | None = None
    """A rate such as ``"60/min"``."""
    home: str = ""
    """The name of the task for whose calls the rate is defined."""

    @property
    def rate_name(self) -> str:
        """The name of the rate, or an empty string if there is none."""
        return "" if self.rate is None else f"{self.rate} of {self.home}"

    @property
    def names(self) -> set[str]:
        """The names of the limits and of the rate, if there is one."""
        return {*self.limits, self.rate_name} - {""}


@dataclass(slots=True, eq=False)
class _WaitingRun:
    """A run whose tasks lack a slot."""

    wake: Callable[[], None]
    names: Collection[str]
    """The names of the limits whose slots the run lacks."""
    until: float = 0.0
    """The time until which freed slots are reserved for the run, or 0 if it is not the
    run's turn.
    """


@dataclass(frozen=True, slots=True)
class _NestedCall:
    """A task that waits for slots while its callers hold slots."""

    limits: Sequence[str]
    holders: Collection[str]
    """The ids of the callers."""


class SharedLimits:
    """The named limits of an executor, for all runs of this program.

    Any OS thread may use the limits. A run requests slots whenever its tasks may start,
    and is woken when a slot that it lacks becomes free. Runs that lack slots of the
    same limit take turns.

    Args:
        limits: The number of slots of each limit.
        folder: A folder. All programs that name the same folder share the limits. If it
            is empty, the limits are not shared.
        clock: A function that returns monotonic seconds.
        scope: The calls that share the limits.
    """

    def __init__(
        self,
        limits: Mapping[str, float] | None = None,
        folder: str = "",
        clock: Callable[[], float] = time.monotonic,
        scope: LimitsScope = "pool",
    ) -> None:
        self.limits: dict[str, float] = dict(limits or {})
        self.clock = clock
        self.scope = scope
        self._folder = folder
        self._lock = threading.Lock()
        self._holders: dict[str, set[str]] = {name: set() for name in self.limits}
        """The ids of the tasks that hold a slot, by limit."""
        self._slots: dict[str, Limit] = {}
        """The slots of each limit, made when first needed."""
        self._runs: dict[object, _WaitingRun] = {}
        """The waiting runs, in the order of their turns."""
        self._nested: dict[str, _NestedCall] = {}
        """The waiting calls of tasks that hold slots, by task id."""
        self._of_stores: dict[str, SharedLimits] = {}
        """The limits of the programs of each store, by their folder."""
        _all_limits.add(self)

    def of_store(self, folder: str | None) -> SharedLimits:
        """Return the limits of the runs of a store.

        Args:
            folder: The folder of the store's limits, or None for runs whose store is
                not shared.
        """
        if self.scope == "pool" or not folder:
            return self
        with self._lock:
            if folder not in self._of_stores:
                limits = SharedLimits(self.limits, folder, self.clock)
                self._of_stores[folder] = limits
            return self._of_stores[folder]

    def try_start(
        self, task_id: str, demand: Demand, run: object, wake: Callable[[], None]
    ) -> float | None:
        """Take the slots that a task needs.

        If some of the slots are not free, none is taken.

        Args:
            task_id: The id of the task.
            demand: The demand of the task.
            run: The run of the task.
            wake: A function that is called, on any OS thread, when a slot that the run
                lacks may be free.

        Returns:
            None if the task can start, or else the time at which to try again.
        """
        with self._lock:
            now = self.clock()
            again_at = self._again_at(demand, run, now)
            if again_at is None:
                wakes = self._take(task_id, demand, run, now)
            else:
                waiting = self._runs.setdefault(run, _WaitingRun(wake, ()))
                waiting.names, waiting.until = {*waiting.names, *demand.limits}, 0.0
                wakes = []
            self._give_back_unused(demand.limits)
        _call(wakes)
        return again_at

    def _take(
        self, task_id: str, demand: Demand, run: object, now: float
    ) -> Sequence[Callable[[], None]]:
        """Take the slots for a task.

        Returns:
            The functions to call, which wake the run whose turn is next.
        """
        for name in demand.limits:
            self._holders[name].add(task_id)
        self._nested.pop(task_id, None)
        waiting = self._runs.get(run)
        if waiting is None or not {*waiting.names} & {*demand.limits}:
            return []
        del self._runs[run]  # The run has had its turn, so it waits no more.
        return self._next_turns(demand.limits)

    def _again_at(self, demand: Demand, run: object, now: float) -> float | None:
        """Return the time at which to try again, infinity if the run will be woken
        instead, or None if all slots are free.
        """
        again: list[float] = []
        for name in demand.limits:
            used = len(self._holders[name])
            limit = self._limit(name)
            if used + 1 > limit.available(used, now):
                again.append(limit.next_change_at(now))
        for other, waiting in self._runs.items():
            if (
                other is not run
                and waiting.until > now
                and {*waiting.names} & {*demand.limits}
            ):
                again.append(waiting.until)
        return min(again) if again else None

    def _limit(self, name: str) -> Limit:
        if name in self._slots:
            return self._slots[name]
        count = self.limits[name]
        limit = Limit(count)
        if self._folder:
            folder = folder_of_limit(self._folder, name)
            limit = CrossProcessLimit(folder, int(count), partial(self._wake, name))
        self._slots[name] = limit
        return limit

    def _wake(self, name: str) -> None:
        """Wake the runs that lack a slot of a limit."""
        with self._lock:
            waiting = [run for run in self._runs.values() if name in run.names]
        _call([run.wake for run in waiting])

    def _give_back_unused(self, names: Collection[str]) -> None:
        for name in names:
            if name in self._slots:
                self._slots[name].give_back(len(self._holders[name]))

    def release(self, task_id: str, demand: Demand) -> None:
        """Release the slots of a task that has ended, and wake the run whose turn it
        is.
        """
        with self._lock:
            for name in demand.limits:
                self._holders[name].discard(task_id)
            self._give_back_unused(demand.limits)
            wakes = self._next_turns(demand.limits)
        _call(wakes)

    def _next_turns(self, names: Collection[str]) -> Sequence[Callable[[], None]]:
        """Give the next turn to the first run that lacks a slot of one of the limits
        *names*.

        A run may not have tried again since its last turn, because its program does not
        read its stream. Such a run is skipped, so that it does not block the other
        runs.

        Returns:
            The function to call, which wakes the run, or an empty list.
        """
        for waiting in self._runs.values():
            if waiting.until == 0.0 and {*waiting.names} & {*names}:
                waiting.until = self.clock() + _TURN
                return [waiting.wake]
        return []

    def leave(self, run: object) -> None:
        """Forget that *run* waits, and give the next run its turn."""
        with self._lock:
            waiting = self._runs.pop(run, None)
            wakes = self._next_turns(waiting.names if waiting else ())
        _call(wakes)

    # calls of tasks that hold slots -----------------------------------------

    def note_nested(
        self, task_id: str, demand: Demand, callers: Collection[str]
    ) -> None:
        """Note that a task waits for slots while its *callers* may hold slots."""
        with self._lock:
            self._nested[task_id] = _NestedCall(demand.limits, callers)

    def forget_nested(self, task_id: str) -> None:
        """Forget a task that no longer waits."""
        with self._lock:
            self._nested.pop(task_id, None)

    def stuck(self) -> dict[str, str]:
        """Return the ids of the tasks that can never start, each with the limit whose
        slot it lacks.

        All slots of this limit are held by tasks that wait for tasks that can never
        start.
        """
        with self._lock:
            waiting = dict(self._nested)
            while True:
                stuck = self._stuck_among(waiting)
                if len(stuck) == len(waiting):
                    return stuck
                waiting = {task_id: waiting[task_id] for task_id in stuck}

    def _stuck_among(self, waiting: Mapping[str, _NestedCall]) -> dict[str, str]:
        """Return those *waiting* tasks for which a limit has no free slot, because
        callers of *waiting* tasks hold all its slots, each with the name of this limit.
        """
        blocked: set[str] = set()
        for call in waiting.values():
            blocked.update(call.holders)
        stuck: dict[str, str] = {}
        for task_id, call in waiting.items():
            name = self._lacks(call, blocked)
            if name is not None:
                stuck[task_id] = name
        return stuck

    def _lacks(self, call: _NestedCall, blocked: set[str]) -> str | None:
        """Return the name of a limit of *call* whose slots are all held by *blocked*
        tasks, or None.
        """
        for name in call.limits:
            holders = self._holders[name]
            if len(holders) + 1 > self.limits[name] and holders <= blocked:
                return name
        return None

    def after_fork(self) -> None:
        """Forget the slots of the parent process, which still holds them."""
        self._lock = threading.Lock()
        self._holders = {name: set() for name in self.limits}
        self._runs.clear()
        self._nested.clear()
        self.close()

    def close(self) -> None:
        """Release all slots, so that other programs can take them."""
        for limit in self._slots.values():
            limit.close()
        self._slots.clear()
        for limits in self._of_stores.values():
            limits.close()


def _call(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


_all_limits: WeakSet[SharedLimits] = WeakSet()


def _reset_limits_after_fork() -> None:
    for limits in _all_limits:
        limits.after_fork()


os.register_at_fork(after_in_child=_reset_limits_after_fork)

NO_LIMITS: Final = SharedLimits()
"""The limits of runs whose executor has none."""
