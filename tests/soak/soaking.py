"""The soak itself: attempts are started, disturbed, and started again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import flowpregel.checkpoint.lmdb
import flowpregel.executors.processes  # noqa: F401 - forks begin with it
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.soak.faults import Disk, Faults
from tests.soak.journal import Thread, counts_of, lines_of
from tests.soak.programs import EXECUTORS, Recipe, attempt, recipe_of

AT_ONCE = 3
_OPEN = 6
"""Programs that are under way, of which attempts are chosen."""
_LONGEST = 60.0
_TURN = 0.002
"""Seconds after which it is thrown again what happens to the attempts."""
_READ_ONLY = 0.001
"""The share of turns after which the disk can only be read, once."""
_AGAIN = 0.3
"""The share of ended programs that are asked for again: they are looked up."""
_CALM = 0.15
"""The share of attempts that nobody disturbs."""


@dataclass
class Report:
    """What was done, and what did not hold."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held, and something was done."""
        return not self.violations and self.counts["ok"] > 0

    def __str__(self) -> str:
        lines = [f"{count:>8,}  {what}" for what, count in sorted(self.counts.items())]
        found = self.violations[:20]
        return "\n".join([*lines, f"{len(self.violations):>8,}  violations", *found])


@dataclass
class Attempt:
    """A process that runs a program."""

    recipe: Recipe
    pid: int
    log: str
    started: float
    disturbed_at: float


class Soak:
    """Starts attempts, disturbs them, and keeps their journals.

    Args:
        folder: Where the store and the journals are.
        seed: Decides programs and faults; timing decides the rest.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._luck = random.Random(seed)
        self._next = seed * 1_000_000
        self._disk = Disk(folder / "disk")
        self._store = self._disk.place / "store"
        self._logs = folder / "journals"
        self._logs.mkdir()
        self._faults = Faults(self._luck, self._store)
        self._threads: dict[int, Thread] = {}
        self._open: list[Recipe] = []
        self._running: list[Attempt] = []
        self._count = 0
        self.report = Report()

    def run(self, seconds: float) -> None:
        """Go on for so long, then let everything come to its end and look."""
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._turn(disturb=True)
            self._finish()
            self._check()
        finally:
            for each in self._running:
                os.kill(each.pid, signal.SIGKILL)
                os.waitpid(each.pid, 0)
            self._disk.close()

    # ------------------------------------------------ attempts

    def _turn(self, *, disturb: bool) -> None:
        while disturb and len(self._open) < _OPEN:
            self._add()
        if disturb and self._luck.random() < _READ_ONLY:
            while self._running:
                for each in [*self._running]:
                    self._look_at(each, disturb=True)
            self._meet_a_read_only_disk()
        free = [
            r for r in self._open if all(r is not each.recipe for each in self._running)
        ]
        while len(self._running) < AT_ONCE and free:
            self._start(free.pop(self._luck.randrange(len(free))), disturb=disturb)
        for each in [*self._running]:
            self._look_at(each, disturb=disturb)
        time.sleep(_TURN)

    def _add(self) -> None:
        self._next += 1
        recipe = recipe_of(self._next)
        self._threads[recipe.seed] = Thread(recipe.durability, recipe.expected())
        self._open.append(recipe)
        self.report.counts[f"programs, {recipe.kind} in {recipe.durability}"] += 1

    def _start(self, recipe: Recipe, *, disturb: bool) -> None:
        self._count += 1
        log = str(self._logs / f"{self._count:06}")
        executor = self._luck.choice(EXECUTORS)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = attempt(recipe, str(self._store), executor, log)
            finally:
                os._exit(code)
        now = time.monotonic()
        calm = not disturb or self._luck.random() < _CALM
        at = now + (_LONGEST if calm else self._faults.pause())
        self._running.append(Attempt(recipe, pid, log, now, at))

    def _look_at(self, running: Attempt, *, disturb: bool) -> None:
        pid, _ = os.waitpid(running.pid, os.WNOHANG)
        now = time.monotonic()
        if pid:
            self._ended(running)
        elif now - running.started > _LONGEST:
            self.report.violations.append(
                f"{running.recipe} did not end in {_LONGEST:.0f} s"
            )
            os.kill(running.pid, signal.SIGKILL)
            os.waitpid(running.pid, 0)
            self._ended(running)
        elif disturb and now >= running.disturbed_at:
            self._faults.disturb(running.pid)
            running.disturbed_at = now + self._faults.pause()

    def _ended(self, ended: Attempt) -> None:
        self._running.remove(ended)
        thread = self._threads[ended.recipe.seed]
        thread.attempts.append(lines_of(ended.log))
        if thread.ended() and self._luck.random() >= _AGAIN:
            self._open.remove(ended.recipe)

    def _meet_a_read_only_disk(self) -> None:
        """Start an attempt while the disk can only be read: it fails by name."""
        if not self._store.exists() or not self._disk.read_only(True):
            return
        try:
            self._start(self._luck.choice(self._open), disturb=False)
            (each,) = self._running
            os.waitpid(each.pid, 0)
        finally:
            assert self._disk.read_only(False)
        self._ended(each)
        self.report.counts["moments of a read-only disk"] += 1

    # ------------------------------------------------ the end

    def _finish(self) -> None:
        """Let all programs come to their end, undisturbed."""
        end = time.monotonic() + 4 * _LONGEST
        while (self._open or self._running) and time.monotonic() < end:
            self._turn(disturb=False)
        self.report.violations += [f"{recipe} does not end" for recipe in self._open]

    def _check(self) -> None:
        self.report.counts += counts_of([*self._threads.values()])
        self.report.counts += self._faults.counts
        for seed, thread in self._threads.items():
            found = [
                f"thread {seed} ({thread.durability}): {v}" for v in thread.violations()
            ]
            self.report.violations += found
        with LMDBSaver(self._store) as saver:
            verified = saver.verify()
            self.report.violations += [
                f"verify: {problem}" for problem in verified.problems
            ]
            self.report.counts["records verified"] = verified.records


def soak(folder: Path, *, seconds: float, seed: int) -> Report:
    """Soak for so many seconds in *folder*, and return what was done and found."""
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "the key of a soak")
    soak = Soak(folder, seed)
    soak.run(seconds)
    return soak.report
