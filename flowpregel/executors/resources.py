"""The concurrency limits of tasks that run outside of a worker pool.

A named limit has a number of slots, and each task with this limit holds one while it
runs. `SharedLimits` tracks which tasks of this process hold a slot. A worker pool does
the same for its own tasks. The module `flowpregel.executors.rates` keeps to the rates.
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
"""The calls that a named limit of an executor bounds together: those of this executor
(``"pool"``), or those of all programs that use the same store (``"store"``).
"""
LIMITS: Final = "limits"
"""The name of the folder with the lock files of all slots, inside the folder of a
store's lock files.
"""
_CHECK_EVERY: Final = 0.9
"""Seconds after which the program tries again to lock slots that other programs hold,
if it was not woken before. It is not always woken, because only some slots of a large
limit are watched.
"""
_MOST_WATCHED: Final = 8
"""The maximum number of slots of a limit for which this program waits at once, on an OS
thread for each.
"""
_TURN: Final = 0.1
"""Seconds for which a freed slot is reserved for the run whose turn it is."""


class RateWindow:
    """The sliding window of a rate in a worker pool: the start times of the calls in
    the last period.

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
        """Note that a call starts at the time *now*."""
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
        """Release all slots except as many as are *used*. This does nothing, because no
        other program uses the slots.
        """

    def next_change_at(self, now: float) -> float:
        """Return the time at which to try again for a slot, or infinity if only a task
        of this program can free a slot.
        """
        return inf

    def close(self) -> None:
        """Release all slots."""


class CrossProcessLimit(Limit):
    """The slots of a limit that is shared by all programs that pass the same folder.

    Each slot is a file. The process that has locked the file holds the slot until it
    unlocks the file or ends in any way.

    While other programs hold slots, this program waits for the locks of some of them,
    on an OS thread for each, and is woken when it gets a lock.

    Args:
        folder: The folder of the files.
        count: The number of slots.
        wake: A function that is called, on any OS thread, when a slot may be free.

    Raises:
        OSError: A file of a slot cannot be opened.
    """

    def __init__(
        self, folder: Path, count: int, wake: Callable[[], object] = lambda: None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(count)
        self._paths = [folder / str(number) for number in range(count)]
        self._files: list[int] = []
        self._held: list[int] = []
        """The files of the slots that this program holds."""
        self._wake = wake
        self._watched: set[Path] = set()
        """The files for whose locks an OS thread waits."""
        try:
            for path in self._paths:
                self._files.append(_open_slot(path))
        except OSError:
            self.close()
            raise

    def available(self, used: int, now: float) -> int:
        """Try to hold one slot more than are *used* by tasks, and return the number of
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
        """Start to wait, on OS threads, for the locks of slots that other programs
        hold.
        """
        for path, file in zip(self._paths, self._files, strict=True):
            if len(self._watched) >= _MOST_WATCHED:
                return
            if file in self._held or path in self._watched:
                continue
            thread = threading.Thread(
                target=self._wait_for,
                args=(path,),
                name="flowpregel-limit",
                daemon=True,
            )
            self._watched.add(path)
            try:
                thread.start()
            except RuntimeError:
                # The system refuses another OS thread. The slot is tried again at the
                # time that `next_change_at` returns.
                self._watched.discard(path)
                return

    def _wait_for(self, path: Path) -> None:
        """Wait until the lock of a slot is free, and wake the program."""
        try:
            file = _open_slot(path)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                # The lock is released explicitly, because a forked process may have a
                # copy of the descriptor.
                fcntl.flock(file, fcntl.LOCK_UN)
            finally:
                os.close(file)
        except OSError:
            # The folder was removed, or too many files are open. The program is not
            # woken, because it would try again at once. It tries again at the time that
            # `next_change_at` returns.
            return
        finally:
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
        return now + _CHECK_EVERY if len(self._held) < len(self._files) else inf

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
    """Return the saver of the run with the context *run*, or None if the run has no
    saver in this process.
    """
    committer = getattr(run, "committer", None)
    return getattr(committer, "saver", None)


def limits_folder_of(saver: Any) -> str | None:
    """Return the folder of the limits that the programs of a store share.

    Args:
        saver: The saver of the store, or None.

    Returns:
        The path of the folder, an empty string if the store has no lock files because
        it is on a server, or None if no other program can use the store.
    """
    locks_folder: str | None = getattr(saver, "locks_folder", None)
    if not locks_folder:
        return locks_folder
    return os.path.join(locks_folder, LIMITS)


def _open_slot(path: Path) -> int:
    """Open the file of a slot, which is created if it does not exist, and return its
    descriptor.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def priority_of(task: Task) -> int:
    """Return the highest priority among *task* and the tasks that wait for it, or 0 if
    none of them has one.
    """
    priorities: list[int] = []
    for caller in (task, *callers_of(task)):
        resources = caller.node.resources
        if resources is not None and resources.priority is not None:
            priorities.append(resources.priority)
    return max(priorities, default=0)


def callers_of(task: Task) -> list[Task]:
    """Return the tasks that wait for *task*, the nearest first."""
    callers: list[Task] = []
    caller = task.parent
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
    """The module and name of the task whose calls the rate bounds."""

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
    """A run with tasks that wait for a slot."""

    wake: Callable[[], None]
    names: Collection[str]
    """The names of the limits for whose slots the run's tasks wait."""
    until: float = 0.0
    """The time until which freed slots are reserved for the run, or 0 if it has not got
    a turn since it last tried.
    """


@dataclass(frozen=True, slots=True)
class _NestedCall:
    """A task that waits for slots, and was called by tasks that hold slots."""

    limits: Sequence[str]
    holders: Collection[str]
    """The ids of the calling tasks that hold slots."""


class SharedLimits:
    """The named limits of an executor, for all its runs in this program.

    Any OS thread may use the limits. A run requests slots whenever it could start
    tasks, and is woken when a slot that its tasks wait for becomes free. Runs that wait
    for slots of the same limit take turns.

    Args:
        limits: The number of slots of each limit.
        folder: The path of a folder. All programs that pass the same folder share the
            limits. With an empty string, the limits are not shared.
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
        """The limits that are shared by the programs of a store, by the folder of the
        slots.
        """
        _all_limits.add(self)

    def of_store(self, folder: str | None) -> SharedLimits:
        """Return the limits that apply to the runs of a store.

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
                waiting.names = {*waiting.names, *demand.limits}
                waiting.until = 0.0
                wakes = []
            self._give_back_unused(demand.limits)
        _call(wakes)
        return again_at

    def _take(
        self, task_id: str, demand: Demand, run: object, now: float
    ) -> Sequence[Callable[[], None]]:
        """Take the slots for a task.

        Returns:
            The functions that wake the run whose turn is next. The caller calls them.
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
        instead, or None if all slots that the task needs are free.
        """
        again: list[float] = []
        for name in demand.limits:
            used = len(self._holders[name])
            limit = self._limit(name)
            if used + 1 > limit.available(used, now):
                again.append(limit.next_change_at(now))
        for other, waiting in self._runs.items():
            has_turn = other is not run and waiting.until > now
            if has_turn and {*waiting.names} & {*demand.limits}:
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
        """Wake the runs whose tasks wait for a slot of a limit."""
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
        """Give the next turn to the first run whose tasks wait for a slot of one of the
        limits *names*.

        A run that has not tried again since its last turn is skipped, so that it does
        not block the other runs. This happens if its program does not read its stream.

        Returns:
            A list of the function that wakes the run, or an empty list if there is no
            such run.
        """
        for waiting in self._runs.values():
            if waiting.until == 0.0 and {*waiting.names} & {*names}:
                waiting.until = self.clock() + _TURN
                return [waiting.wake]
        return []

    def leave(self, run: object) -> None:
        """Forget that *run* waits for slots, and give the next run the turn."""
        with self._lock:
            waiting = self._runs.pop(run, None)
            wakes = self._next_turns(waiting.names if waiting else ())
        _call(wakes)

    # calls of tasks that hold slots -----------------------------------------

    def note_nested(
        self, task_id: str, demand: Demand, callers: Collection[str]
    ) -> None:
        """Note that a task waits for slots, and that its *callers* may hold slots."""
        with self._lock:
            self._nested[task_id] = _NestedCall(demand.limits, callers)

    def forget_nested(self, task_id: str) -> None:
        """Forget a task that no longer waits for slots."""
        with self._lock:
            self._nested.pop(task_id, None)

    def stuck(self) -> dict[str, str]:
        """Return the ids of the tasks that can never start, each with the limit whose
        slot it lacks.

        All slots of that limit are held by tasks that wait for other such tasks: a
        deadlock.
        """
        with self._lock:
            waiting = dict(self._nested)
            while True:
                stuck = self._stuck_among(waiting)
                if len(stuck) == len(waiting):
                    return stuck
                waiting = {task_id: waiting[task_id] for task_id in stuck}

    def _stuck_among(self, waiting: Mapping[str, _NestedCall]) -> dict[str, str]:
        """Return those *waiting* tasks that need a slot of a limit whose slots are all
        held by callers of *waiting* tasks, each with the name of this limit.
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
        """Forget the slots, which still belong to the parent process."""
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
"""The limits of runs whose executor has no limits of its own."""
