"""Kills a workflow at each of its fault points, goes on with it, and compares.

A *workflow* is a function that is given a folder and returns a result. It keeps
its store in that folder, and when it is called again with the same folder it goes
on where the last call was killed, or returns what was returned (``run_id=`` does
both)::

    def workflow(folder):
        with LMDBSaver(folder / "runs") as saver:
            app = make_app(saver)
            return app.invoke(7, thread_id="1", run_id="one", durability="sync")

    report = crash_everywhere(workflow)
    assert report.ok, report

First it is run undisturbed, and the fault points that it passes are noted. Then,
for each of them, it is run in a new folder until it is there and killed (a real
``SIGKILL``; a point in a worker kills the worker), and called again in a new
process until it ends. Every time:

* its result, and the history in its store, are those of the undisturbed run;
* no task ran again after its result was committed;
* every side effect that it told of (`effect`) was made at least once, and none
  by a task that was committed already.

What ran, and what the engine was told is committed, stands in a log outside the
store that survives every kill.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flowpregel import _fault
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.testing.crash_child import Came, Order
from flowpregel.testing.crash_log import (
    EFFECT,
    Point,
    differences,
    effects,
    is_at_effect,
    is_at_write,
    points,
    run_again,
)
from flowpregel.testing.crash_runs import CrashError, Nursery, Series

__all__ = ["CrashError", "Point", "Report", "Violation", "crash_everywhere", "effect"]

Workflow = Callable[[Path], Any]
_MOST_SHOWN = 20
_TRIES = 20
"""Runs of which one at least should come by a point that the undisturbed run came by."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that did not hold."""

    killed_at: tuple[Point, ...]
    what: str

    def __str__(self) -> str:
        return f"killed at {', then '.join(map(str, self.killed_at))}: {self.what}"


@dataclass(slots=True)
class Report:
    """What the kills came to."""

    points: tuple[Point, ...] = ()
    """The fault points that the undisturbed run passed."""
    writes: int = 0
    """How many of them stand before or after a durable write."""
    effects: int = 0
    """How many of them stand before or after a side effect that it tells of."""
    kills: int = 0
    """How many processes were killed."""
    runs: int = 0
    """How many processes were started to run the workflow."""
    missed: list[Point] = field(default_factory=list)
    """Points that none of 20 runs came by again: which worker gets which task, and what goes
    into one commit, is not fixed."""
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held, and something was killed."""
        return not self.violations and self.kills > 0

    def __str__(self) -> str:
        lines = [
            f"{len(self.points)} fault points ({self.writes} at durable writes, "
            f"{self.effects} at effects), {self.kills} kills, {self.runs} runs, "
            f"{len(self.missed)} points not met, {len(self.violations)} violations"
        ]
        lines += [f"  {violation}" for violation in self.violations[:_MOST_SHOWN]]
        if len(self.violations) > _MOST_SHOWN:
            lines.append(f"  and {len(self.violations) - _MOST_SHOWN} more")
        return "\n".join(lines)


def effect(what: str) -> None:
    """Note in the log that a side effect was made; outside the harness, do nothing.

    The workflow is killed before and after it, too.

    Args:
        what: Which one, the same in every run; without line breaks.

    Example:
        >>> effect("sent the letter to Ada")
    """
    if log := os.environ.get(_fault.TRACE):
        scope = current.get()
        task_id = "-" if scope is None else scope.info.task_id
        _fault.fault("effect.before")
        _fault.append(log, f"{EFFECT}\t{os.getpid()}\t0\t{task_id} {what}\n")
        _fault.fault("effect.after")


def crash_everywhere(  # noqa: PLR0913 - a public face: each is a choice of its own
    workflow: Workflow | str,
    *,
    in_a_row: int = 1,
    at_most: int | None = None,
    history: bool = True,
    timeout: float = 60.0,
    modules: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Report:
    """Kill *workflow* at each of its fault points, and return what became of it.

    Args:
        workflow: A function of a folder (`pathlib.Path`), or its ``"module:name"``.
        in_a_row: How many kills in a row. With 2, the run that goes on after a
            kill is killed too, at each of its points; with 3 the one after that, too.
        at_most: Use only so many points, evenly spread; of each run that goes
            on so many too.
        history: Compare what is in the LMDB stores below its folder.
        timeout: Seconds that a run may take.
        modules: Names of modules to import once, before any run; saves time.
        folder: Where to work; by default a temporary folder. What belongs to a
            violation is left there.

    Raises:
        CrashError: The workflow fails undisturbed.

    Example:
        >>> report = crash_everywhere("myproject.flows:nightly")  # doctest: +SKIP
        >>> print(report)  # doctest: +SKIP
        39 fault points (12 at durable writes, 4 at effects), 39 kills, 79 runs, ...
    """
    if in_a_row < 1:
        raise ConfigurationError(f"in_a_row is {in_a_row!r}; give the number of kills, 1 or more")
    if not isinstance(workflow, str):
        import cloudpickle  # noqa: PLC0415 - heavy

        pickled: bytes = cloudpickle.dumps(workflow)
    else:
        pickled = pickle.dumps(workflow)
    with (
        tempfile.TemporaryDirectory(prefix="flowpregel-crash-") as temporary,
        Nursery(tuple(modules), timeout) as nursery,
    ):
        base = Path(temporary if folder is None else folder)
        return _Harness(nursery, pickled, base, history, at_most).run(in_a_row)


class _Harness:
    """Runs one workflow again and again.

    Args:
        nursery: Runs it.
        workflow: The pickled workflow.
        base: Where its folders are made.
        history: Whether histories are compared.
        at_most: How many points are used.
    """

    def __init__(
        self, nursery: Nursery, workflow: bytes, base: Path, history: bool, at_most: int | None
    ) -> None:
        self._nursery = nursery
        self._workflow = workflow
        self._base = base
        self._history = history
        self._at_most = at_most
        self._count = 0
        self._report = Report()
        self._expected = Came(("", ""), ())
        self._effects: Counter[str] = Counter()

    def run(self, in_a_row: int) -> Report:
        """Kill the workflow everywhere, so many times in a row."""
        clean = self._new_series()
        status = self._run(clean, None)
        if status != 0:
            raise CrashError(f"undisturbed, the workflow ends with {status}:\n{clean.printed()}")
        self._expected = clean.came()
        self._effects = Counter(effects(clean.lines()))
        self._report.points = tuple(points(clean.lines()))
        self._report.writes = sum(is_at_write(point) for point in self._report.points)
        self._report.effects = sum(is_at_effect(point) for point in self._report.points)
        shutil.rmtree(clean.folder)
        for point in self._chosen(self._report.points):
            self._kill_at(self._new_series, (), point, in_a_row - 1)
        return self._report

    def _kill_at(
        self, begin: Callable[[], Series], before: tuple[Point, ...], point: Point, more: int
    ) -> None:
        """Kill at *point*, in as many new series as it takes to come by it."""
        for _ in range(_TRIES):
            if self._kill(begin(), (*before, point), more):
                return
        self._report.missed.append(point)

    def _kill(self, series: Series, killed_at: tuple[Point, ...], more: int) -> bool:
        """Run on to the last point, kill there, go on to the end, and compare.

        Returns whether there is no need for another try.
        """
        series.once.unlink(missing_ok=True)
        dead = None
        try:
            status = self._run(series, killed_at[-1])
            met = series.once.exists()
            self._report.kills += met
            if met and more:
                dead = series.copy(self._new_folder())
            at = len(series.lines())
            # A worker that was killed fails its task, and with it, perhaps, the run.
            if status != 0 and met:
                status = self._run(series, None)
        except TimeoutError:
            self._report.violations.append(Violation(killed_at, "a run took too long"))
            return True
        problems = [*self._problems(series, status)]
        self._report.violations += [Violation(killed_at, problem) for problem in problems]
        if dead is not None:
            for second in self._chosen([*points(series.lines()[at:])]):
                self._kill_at(partial(self._copy, dead), killed_at, second, more - 1)
            shutil.rmtree(dead.folder)
        if not problems:
            shutil.rmtree(series.folder)
        return met or bool(problems)

    def _run(self, series: Series, point: Point | None) -> int:
        self._report.runs += 1
        # Stores of a test need no key of the user's, and shall not make one.
        key = os.environ.get("FLOWPREGEL_STORE_KEY", "the key of a test")
        env = {_fault.TRACE: str(series.log), "FLOWPREGEL_STORE_KEY": key}
        if point is not None:
            env |= {_fault.FAULT: f"{point}:kill", _fault.ONCE: str(series.once)}
        return self._nursery.run(
            Order(
                workflow=self._workflow,
                folder=str(series.work),
                result=str(series.result),
                output=str(series.output),
                env=env,
                path=tuple(sys.path),
                history=self._history,
            )
        )

    def _problems(self, series: Series, status: int) -> Iterator[str]:
        if status != 0:
            yield f"the run that went on ended with {status}:\n{series.printed()}"
            return
        came = series.came()
        if came.result[0] != self._expected.result[0]:
            yield f"the result is {came.result[1]}, not {self._expected.result[1]}"
        yield from differences(self._expected.history, came.history)
        lines = series.lines()
        yield from run_again(lines)
        for what in (self._effects - Counter(effects(lines))).elements():
            yield f"the effect {what!r} was lost"

    def _chosen(self, points: Sequence[Point]) -> Sequence[Point]:
        most = self._at_most
        if most is None or len(points) <= most:
            return points
        return [points[index * len(points) // most] for index in range(most)]

    def _new_series(self) -> Series:
        return Series(self._new_folder())

    def _copy(self, series: Series) -> Series:
        return series.copy(self._new_folder())

    def _new_folder(self) -> Path:
        self._count += 1
        return self._base / f"{self._count:06}"
