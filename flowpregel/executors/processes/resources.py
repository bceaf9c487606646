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
from flowpregel.executors.processes.assign import (
    ONE_CPU,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    assign_by_needs,
)
from flowpregel.executors.processes.crash_report import forget_peak, peak_of
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.protocol import PoolSettings, WorkerKind
from flowpregel.executors.resources import SharedPlaces, StartLog, holders_above
from flowpregel.policies import Resources, bytes_of

OF_THE_MACHINE: Final = ("cpus", "memory", "gpus")


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


class ResourceBook:
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
        self.clock = time.monotonic
        self._rates: dict[str, StartLog] = {}
        self._shared: dict[str, SharedPlaces] = {}
        for name, count in settings.amounts.items() if settings.limits_folder else ():
            if name not in OF_THE_MACHINE:
                folder = Path(settings.limits_folder) / quote(name, safe="")
                self._shared[name] = SharedPlaces(folder, int(count))
        self.count = 0
        """How many tasks are there that have needs of their own."""

    def note(self, task: InFlight, tasks: Mapping[JobKey, InFlight]) -> None:
        """Note what *task* needs; refuse it if it can never have that.

        Those of *tasks* that call it hold what they have until it has ended.
        """
        said, callers = task.job.task.node.resources, _callers_of(task, tasks)
        # no mutant: that of the nearest is at least that of the others
        priorities = [each.priority for each in callers[:1]]
        if said is not None and said.priority is not None:
            priorities.append(said.priority)
        task.priority = max(priorities, default=0)
        is_below = any(
            each.needs is not None and len(each.needs.amounts) > 1 for each in callers
        )
        if said is None and not is_below:
            return
        self.count += 1
        key = task.job.task.node.home or task.job.task.name, said, is_below
        if key not in self._needs:
            self._needs[key] = self._needs_of(*key)
        task.needs = self._needs[key]
        for name, amount in task.needs.amounts.items():
            there = self._settings.amounts.get(name, 0)
            holders = (
                [] if amount > there or name == "cpus" else _holders(name, callers)
            )
            held: float = sum(
                each.needs.amounts[name] for each in holders if each.needs
            )
            by = [each.job.task.name for each in holders]
            if name not in OF_THE_MACHINE and amount <= there:
                # A caller in another process, or in no pool, holds a place as well.
                by = holders_above(task.job.task, name)
                held = len(by)
            if amount + held > there and not (
                name == "memory" and task.needs.is_measured
            ):
                self._refuse(task, name, by)
                return

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
            self._rates.setdefault(rate, StartLog(said.rate))
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
        now = self.clock()
        sources: dict[str, StartLog | SharedPlaces] = {**self._rates, **self._shared}
        used = {
            name: sum(int(each.held.get(name, 0)) for each in loads) for name in sources
        }
        amounts = {name: each.there(used[name], now) for name, each in sources.items()}
        look_at = {name: each.look_at(now) for name, each in sources.items()}
        limits = limits._replace(
            amounts={**self._settings.amounts, **amounts}, gpus=self._settings.gpus
        )
        passing = {name for name, at in look_at.items() if at < inf}
        plan = assign_by_needs(queue, loads, limits, passing)
        sent = [task for _, task in plan.sends]
        queue.remove(sent)
        for name, places in self._shared.items():
            places.give_back(used[name] + len(_holders(name, sent)))
        due = min((look_at[name] for name in plan.lacking & passing), default=inf)
        if due < self._looks_at:
            self._looks_at = due
            self._loop.call_at(due, self._look)
        if plan.stuck is not None and _all_wait(tasks):
            running = [each for each in tasks.values() if each.worker is not None]
            holders = _holders(plan.stuck[1], running)
            self._refuse(*plan.stuck, [each.job.task.name for each in holders])
        return plan.starts, [(index, [task]) for index, task in plan.sends]

    def _look(self) -> None:
        self._looks_at = inf

    def start(self, task: InFlight) -> None:
        """Note that the worker of *task* gets it."""
        needs = task.needs or ONE_CPU
        if needs.rate is not None:
            self._rates[needs.rate].add(self.clock())
        if needs.is_measured:
            forget_peak(task.worker.pid)

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
        self.measure(task if task.worker is not None else None, None)
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


def _callers_of(task: InFlight, tasks: Mapping[JobKey, InFlight]) -> list[InFlight]:
    """Return the tasks of the pool that wait for *task*, the nearest first."""
    found, each = [], task.job.task.parent
    while each is not None:
        if (caller := tasks.get((each.id, each.attempt))) is not None:
            found.append(caller)
        each = each.parent
    return found


def _holders(name: str, tasks: Iterable[InFlight]) -> list[InFlight]:
    """Return those of *tasks* that take something of the resource *name*."""
    return [
        each for each in tasks if each.needs is not None and name in each.needs.amounts
    ]


def _all_wait(tasks: Mapping[JobKey, InFlight]) -> bool:
    """Return whether all calls of *tasks* are among them: none runs elsewhere, and may
    end.
    """
    called = sum(bool(_callers_of(each, tasks)) for each in tasks.values())
    return called >= sum(len(each.calls) for each in tasks.values())
