"""What there is of each resource, and what tasks take of it: the book that the pool
keeps.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

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
from flowpregel.executors.processes.wire.protocol import PoolSettings, WorkerKind
from flowpregel.executors.resources import CrossProcessLimit, RateWindow, holders_above
from flowpregel.policies import Resources, bytes_of

OF_THE_MACHINE: Final = ("cpus", "memory", "gpus")
_MEASURED_FROM: Final = 0.005
"""Seconds that a task takes whose memory is measured: that takes two files of the
kernel's.
"""


# ------------------------------------------------ what there is


def amounts_of(
    limits: Mapping[str, float | str] | None, cpus: int
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return what a pool has of each resource, and its GPUs: the machine's, where
    nothing is said.

    Raises:
        ConfigurationError: One of *limits* is no amount.
    """
    gpus = _gpus()
    amounts: dict[str, float] = {"cpus": cpus, "memory": _memory(), "gpus": len(gpus)}
    for name, value in (limits or {}).items():
        amount: Any = bytes_of(value) if name == "memory" else value  # type: ignore[arg-type]
        if (
            isinstance(amount, bool)
            or not isinstance(amount, int | float)
            or not amount > 0
        ):
            raise ConfigurationError(
                f"limits[{name!r}] is {value!r}; use a number greater than 0"
            )
        amounts[name] = amount
    count = int(amounts["gpus"])
    return amounts, gpus[:count] if count <= len(gpus) else tuple(
        map(str, range(count))
    )


def _gpus() -> tuple[str, ...]:
    """Return the GPUs that this program may use, as ``CUDA_VISIBLE_DEVICES`` names
    them.
    """
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is not None:
        # As CUDA has it, what stands behind a name that is none does not count either.
        names = (name.strip() for name in said.split(","))
        return tuple(takewhile(lambda name: name not in ("", "-1"), names))
    found = (
        re.fullmatch(r"nvidia(\d+)", entry.name) for entry in Path("/dev").iterdir()
    )
    return tuple(sorted((each[1] for each in found if each), key=int))


def _memory() -> int:
    """Return the memory of the machine, or of the container, in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # "max", or no such file: it has no limit of its own
    with suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


# ------------------------------------------------ what tasks take


class ResourceLedger:
    """What a pool has, and what its tasks take of it; on the I/O thread.

    Args:
        settings: How the pool is set up.
        loop: The I/O loop.
        finish: Ends a task that can never have what it needs.
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
        self._looks_at = inf
        self._needs: dict[object, Needs] = {}
        self._fitting: set[Needs] = set()
        """The needs of which there is enough for one task."""
        self.clock = time.monotonic
        self._measured: set[InFlight] = set()
        """Tasks for which the peak memory of their worker was reset."""
        self._rates: dict[str, RateWindow] = {}
        self._shared: dict[str, CrossProcessLimit] = {}
        for name, count in settings.amounts.items() if settings.limits_folder else ():
            if name not in OF_THE_MACHINE:
                folder = Path(settings.limits_folder) / quote(name, safe="")
                self._shared[name] = CrossProcessLimit(folder, int(count))
        self.count = 0
        """How many tasks are there that have needs of their own."""

    def note(self, task: InFlight, tasks: Mapping[JobKey, InFlight]) -> None:
        """Note what *task* needs; refuse it if it can never have that.

        Those of *tasks* that call it hold what they have until it has ended.
        """
        called = task.job.task
        resources = called.node.resources
        callers: list[InFlight] = []
        if called.parent is not None:
            callers = _callers_of(task, tasks)
        task.priority = _priority_among(resources, callers)
        is_below = any(map(_holds_something, callers))
        if resources is None and not is_below:
            return
        self.count += 1
        key = called.node.home or called.name, resources, is_below
        needs = self._needs.get(key)
        if needs is None:
            needs = self._needs_of(*key)
            self._needs[key] = needs
        task.needs = needs
        # What fits once fits always, unless callers hold some of it.
        if called.parent is not None or needs not in self._fitting:
            self._check(task, needs, callers)

    def _check(self, task: InFlight, needs: Needs, callers: Sequence[InFlight]) -> None:
        """Refuse *task* if what *callers* leave can never be enough for it."""
        for name, amount in needs.amounts.items():
            total = self._settings.amounts.get(name, 0)
            holders: list[str] = []
            held = 0.0
            if name not in OF_THE_MACHINE and amount <= total:
                # A caller in another process, or in no pool, holds a place as well.
                holders = holders_above(task.job.task, name)
                held = len(holders)
            elif name != "cpus" and amount <= total:
                for caller, taken in _holders(name, callers).items():
                    holders.append(caller.job.task.name)
                    held += taken
            is_guess = name == "memory" and needs.is_measured
            if amount + held > total and not is_guess:
                self._refuse(task, name, holders)
                return
        if task.job.task.parent is None:
            self._fitting.add(needs)

    def _refuse(self, task: InFlight, name: str, by: Iterable[str]) -> None:
        asked = task.needs.amounts[name] if task.needs else 0
        there = self._settings.amounts.get(name, 0)
        error = ResourcesError(task.job.task.name, name, asked, there, sorted({*by}))
        self._loop.call(partial(self._finish, task, Raised(error)))

    def _needs_of(self, home: str, said: Resources | None, is_below: bool) -> Needs:
        """Return what all calls of a task need: one record, so that what is measured
        counts.
        """
        said = said or Resources(memory=0)
        amounts: dict[str, float] = {"cpus": said.cpus or 1}
        amounts |= {"memory": bytes_of(said.memory)} if said.memory else {}
        amounts |= {"gpus": said.gpus} if said.gpus else {}
        amounts |= dict.fromkeys(said.limit, 1)
        threads = None if said.cpus is None else max(1, int(said.cpus))
        if threads == self._settings.share:
            threads = None
        rate = None
        if said.rate is not None:
            rate = f"{said.rate} of {home}"
            self._rates.setdefault(rate, RateWindow(said.rate))
        return Needs(
            amounts,
            threads,
            rate,
            is_measured=said.memory is None,
            is_below=is_below,
            is_fresh=said.isolation == "fresh",
        )

    def assign(
        self,
        queue: TaskQueue,
        loads: Sequence[WorkerLoad],
        limits: PoolLimits,
        tasks: Mapping[JobKey, InFlight],
    ) -> tuple[list[WorkerKind], list[tuple[int, list[InFlight]]]]:
        """Take out of *queue* what can start; see that it is looked at when more can.

        Of *tasks*, which are all of the pool, one is refused if they wait for each
        other for ever.

        Returns:
            The kinds of workers to start; the indices of workers, and what each of them
            gets.
        """
        next_looks: dict[str, float] = {}
        if self.count:
            limits, next_looks = self._look_at_amounts(loads, limits)
        passing = {name for name, at in next_looks.items() if at < inf}
        plan = assign(queue, loads, limits, passing)
        sent: list[InFlight] = []
        for _, batch in plan.sends:
            sent += batch
        queue.remove(sent)
        if self.count and self._shared:
            self._give_back(loads, plan)
        due = min((next_looks[name] for name in plan.lacking & passing), default=inf)
        if due < self._looks_at:
            self._looks_at = due
            self._loop.call_at(due, self._look)
        if plan.stuck is not None and _all_wait(tasks):
            running = [each for each in tasks.values() if each.worker is not None]
            holders = _holders(plan.stuck[1], running)
            self._refuse(*plan.stuck, [each.job.task.name for each in holders])
        return plan.starts, plan.sends

    def _look_at_amounts(
        self, loads: Sequence[WorkerLoad], limits: PoolLimits
    ) -> tuple[PoolLimits, dict[str, float]]:
        """Return *limits* with the amounts of now, and when some may have grown."""
        now = self.clock()
        sources: dict[str, RateWindow | CrossProcessLimit] = {
            **self._rates,
            **self._shared,
        }
        amounts = dict(self._settings.amounts)
        for name, source in sources.items():
            amounts[name] = source.available(_used(name, loads), now)
        next_looks = {name: each.next_change_at(now) for name, each in sources.items()}
        return limits._replace(amounts=amounts, gpus=self._settings.gpus), next_looks

    def _give_back(self, loads: Sequence[WorkerLoad], plan: Assignment) -> None:
        """Give back the shared places that no worker needs, with what each gets now."""
        for name, places in self._shared.items():
            count = _used(name, loads)
            for index, tasks in plan.sends:
                # What a busy worker gets ahead of time runs on the place that it has.
                if not loads[index].held:
                    count += len(_holders(name, tasks[:1]))
            places.give_back(count)

    def _look(self) -> None:
        self._looks_at = inf

    def start(self, task: InFlight) -> None:
        """Note that the worker of *task* gets it."""
        needs = task.needs or ONE_CPU
        if needs.rate is not None:
            self._rates[needs.rate].add(self.clock())
        if needs.is_measured and task.code.seconds > _MEASURED_FROM:
            forget_peak(task.worker.pid)
            self._measured.add(task)

    def measure(self, task: InFlight | None, peak: int | None) -> None:
        """Note how much memory *task* took, which a worker has: *peak* bytes, if that
        is known.
        """
        if task is not None and task.needs is not None and task.needs.is_measured:
            amounts, most = task.needs.amounts, self._settings.amounts["memory"]
            taken = peak_of(task.worker.pid) if peak is None else peak
            amounts["memory"] = max(min(taken, most), amounts.get("memory", 0))

    def end(self, task: InFlight) -> None:
        """Note that *task*, which has needs, has ended; its worker may be there."""
        self.count -= 1
        if task in self._measured:
            self._measured.remove(task)
            if task.worker is not None and self.clock() - task.sent > _MEASURED_FROM:
                self.measure(task, None)
        for places in self._shared.values() if self.count == 0 else ():
            places.give_back(0)

    def settings_of(self, kind: WorkerKind) -> PoolSettings:
        """Return the settings of workers of that kind."""
        env = {**self._settings.env}
        if kind.threads is not None:
            env |= dict.fromkeys(self._settings.capped, str(kind.threads))
        if kind.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(kind.gpus)
        return replace(self._settings, kind=kind, env=env)

    def close(self) -> None:
        """Give back the places that other programs may want."""
        for places in self._shared.values():
            places.close()


def _priority_among(resources: Resources | None, callers: Sequence[InFlight]) -> int:
    """Return the priority of a task: the higher one of its own and its caller's."""
    own = None
    if resources is not None:
        own = resources.priority
    if not callers:
        return own or 0
    # no mutant: that of the nearest is at least that of the others
    inherited = callers[0].priority
    return inherited if own is None else max(inherited, own)


def _holds_something(caller: InFlight) -> bool:
    """Return whether a task that waits for its calls holds more than it lends."""
    return caller.needs is not None and len(caller.needs.amounts) > 1


def _used(name: str, loads: Sequence[WorkerLoad]) -> int:
    """Return how many workers have tasks that take a place of the limit *name*."""
    return sum(int(worker.held.get(name, 0)) for worker in loads)


def _callers_of(task: InFlight, tasks: Mapping[JobKey, InFlight]) -> list[InFlight]:
    """Return the tasks of the pool that wait for *task*, the nearest first."""
    found, each = [], task.job.task.parent
    while each is not None:
        if (caller := tasks.get((each.id, each.attempt.number))) is not None:
            found.append(caller)
        each = each.parent
    return found


def _holders(name: str, tasks: Iterable[InFlight]) -> dict[InFlight, float]:
    """Return those of *tasks* that take something of the resource *name*, with how much
    they take.
    """
    return {
        task: task.needs.amounts[name]
        for task in tasks
        if task.needs is not None and name in task.needs.amounts
    }


def _all_wait(tasks: Mapping[JobKey, InFlight]) -> bool:
    """Return whether all calls of *tasks* are among them: none runs elsewhere, and may
    end.
    """
    called = sum(bool(_callers_of(each, tasks)) for each in tasks.values())
    return called >= sum(len(each.calls) for each in tasks.values())
