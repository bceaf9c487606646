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
* every side effect that it noted (`effect`) was made at least once, and none
  by a task that was committed already.

The passed points, the committed tasks and the effects stand in a log outside the
store that survives every kill.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowpregel import _fault
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.testing.crash_process import RunFolder, RunResult, Workflow

__all__ = ["CrashError", "CrashReport", "Point", "Violation", "crash_everywhere", "effect"]

_EFFECT = "effect"
_MOST_SHOWN = 20
_TRIES = 20
"""Runs of which at least one should pass a point that the undisturbed run passed."""


class CrashError(Exception):
    """The harness cannot do its work: the workflow fails when nobody disturbs it."""


@dataclass(frozen=True, slots=True)
class Point:
    """The *n*-th pass of a fault point in one process."""

    name: str
    n: int

    def __str__(self) -> str:
        return f"{self.name}:{self.n}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that did not hold."""

    killed_at: tuple[Point, ...]
    what: str

    def __str__(self) -> str:
        return f"killed at {', then '.join(map(str, self.killed_at))}: {self.what}"


@dataclass(slots=True)
class CrashReport:
    """What the kills came to."""

    points: tuple[Point, ...] = ()
    """The fault points that the undisturbed run passed."""
    writes: int = 0
    """How many of them stand before or after a durable write."""
    effects: int = 0
    """How many of them stand before or after a side effect."""
    kills: int = 0
    """How many processes were killed."""
    runs: int = 0
    """How many processes were started to run the workflow."""
    missed: list[Point] = field(default_factory=list)
    """Points that none of 20 runs passed again: which worker gets which task, and which
    tasks share a commit, is not fixed."""
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
        task_id = "-" if scope is None else scope.job.task.id
        _fault.fault("effect.before")
        _fault.append(log, f"{_EFFECT}\t{os.getpid()}\t0\t{task_id} {what}\n")
        _fault.fault("effect.after")


def crash_everywhere(
    workflow: Callable[[Path], Any] | str,
    *,
    in_a_row: int = 1,
    at_most: int | None = None,
    history: bool = True,
    timeout: float = 60.0,
    modules: Sequence[str] = (),
) -> CrashReport:
    """Kill *workflow* at each of its fault points, and return what became of it.

    Its processes are made by multiprocessing: in a script, call it under
    ``if __name__ == "__main__":``.

    Args:
        workflow: A function of a folder (`pathlib.Path`), or its ``"module:name"``.
        in_a_row: How many kills in a row. With 2, the run that goes on after a
            kill is killed too, at each of its points; with 3 the one after that, too.
        at_most: Use at most this many points of each run, evenly spread.
        history: Compare what is in the LMDB stores below its folder.
        timeout: Seconds that a run may take.
        modules: Names of modules to import once, before any run; saves time.

    Raises:
        CrashError: The workflow fails undisturbed.

    Example:
        >>> report = crash_everywhere("myproject.flows:nightly")  # doctest: +SKIP
        >>> print(report)  # doctest: +SKIP
        39 fault points (12 at durable writes, 4 at effects), 39 kills, 79 runs, ...
    """
    if in_a_row < 1:
        raise ConfigurationError(f"in_a_row is {in_a_row!r}; give the number of kills, 1 or more")
    import cloudpickle  # noqa: PLC0415 - heavy

    function = pkgutil.resolve_name(workflow) if isinstance(workflow, str) else workflow
    started = Workflow(cloudpickle.dumps(function), history, timeout, modules)
    with tempfile.TemporaryDirectory(prefix="flowpregel-crash-") as temporary:
        return _CrashTest(started, Path(temporary), at_most).run(in_a_row)


class _CrashTest:
    """Runs one workflow again and again, and kills it.

    Args:
        workflow: What is run.
        base: The folder for the folders of its runs.
        at_most: How many points of a run are used.
    """

    def __init__(self, workflow: Workflow, base: Path, at_most: int | None) -> None:
        self._workflow = workflow
        self._base = base
        self._at_most = at_most
        self._count = 0
        self._report = CrashReport()

    def run(self, in_a_row: int) -> CrashReport:
        """Kill the workflow at every point, *in_a_row* times in a row."""
        clean, report = self._new_folder(), self._report
        status = self._run(clean, None)
        if status != 0:
            raise CrashError(f"undisturbed, the workflow ends with {status}:\n{clean.printed()}")
        self._expected, log = clean.result(), clean.log()
        self._effects = Counter(_effects(log))
        report.points = (*_points(log),)
        names = Counter(point.name.removeprefix("worker.") for point in report.points)
        report.writes = names["store.commit.before"] + names["store.commit.after"]
        report.effects = names["effect.before"] + names["effect.after"]
        shutil.rmtree(clean.path)
        self._kill_after((), report.points, in_a_row, None)
        return report

    def _kill_after(
        self, before: tuple[Point, ...], points: Sequence[Point], more: int, killed: Path | None
    ) -> None:
        """Kill at each of *points*, in as many runs as it takes to pass it.

        Args:
            before: Where the run was killed before.
            points: Where it can be killed now; at most so many are used as the user said.
            more: How many kills follow, this one included.
            killed: The folder that the kill before left; None if there was none.
        """
        most = min(len(points), self._at_most or len(points))
        for index in range(most):
            point = points[index * len(points) // most]
            tries = (self._kill((*before, point), more - 1, killed) for _ in range(_TRIES))
            if not any(tries):
                self._report.missed.append(point)

    def _kill(self, points: tuple[Point, ...], more: int, copy_of: Path | None) -> bool:
        """Run up to the last point, kill there, go on to the end, and compare.

        Returns whether no other try is needed.
        """
        folder, killed = self._new_folder(copy_of), None
        folder.acted.unlink(missing_ok=True)
        try:
            status = self._run(folder, points[-1])
            met = folder.acted.exists()
            self._report.kills += met
            if met and more:
                killed = self._new_folder(folder.path).path
            before = len(folder.log())
            # The death of a worker fails its task, and perhaps the run.
            if status != 0 and met:
                status = self._run(folder, None)
        except TimeoutError:
            self._report.violations.append(Violation(points, "a run took too long"))
            return True
        problems = [Violation(points, problem) for problem in self._problems(folder, status)]
        self._report.violations += problems
        if killed is not None:
            self._kill_after(points, [*_points(folder.log()[before:])], more, killed)
            shutil.rmtree(killed)
        shutil.rmtree(folder.path)
        return met or bool(problems)

    def _run(self, folder: RunFolder, point: Point | None) -> int:
        self._report.runs += 1
        return self._workflow.run(folder, "" if point is None else f"{point}:kill")

    def _problems(self, folder: RunFolder, status: int) -> Iterator[str]:
        if status != 0:
            yield f"the run that went on ended with {status}:\n{folder.printed()}"
            return
        result, log = folder.result(), folder.log()
        if result.value[0] != self._expected.value[0]:
            yield f"the result is {result.value[1]}, not {self._expected.value[1]}"
        yield from _differences(self._expected, result)
        yield from _repetitions(log)
        for what in (self._effects - Counter(_effects(log))).elements():
            yield f"the effect {what!r} was lost"

    def _new_folder(self, copy_of: Path | None = None) -> RunFolder:
        self._count += 1
        path = self._base / f"{self._count:06}"
        if copy_of is not None:
            shutil.copytree(copy_of, path)
        return RunFolder(path)


def _points(log: Sequence[Sequence[str]]) -> Iterator[Point]:
    """Yield each point that was passed, once, in the order of the first pass."""
    yield from dict.fromkeys(Point(name, int(n)) for name, _, n, _ in log if name != _EFFECT)


def _effects(log: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (about.partition(" ")[2] for name, _, _, about in log if name == _EFFECT)


def _repetitions(log: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield what a task did after the engine knew that its result is committed."""
    committed: set[str] = set()
    for name, _, _, about in log:
        task_id, _, what = about.partition(" ")
        if name.endswith(".commit.after"):
            committed.update(about.split())
        elif name.removeprefix("worker.") == "task.before" and about in committed:
            yield f"task {about} ran again after its result was committed"
        elif name == _EFFECT and task_id in committed:
            yield f"the effect {what!r} was made again by a committed task"


def _differences(expected: RunResult, found: RunResult) -> Iterator[str]:
    """Yield the first line in which two histories differ."""
    for old, new in zip(expected.history, found.history, strict=False):
        if old != new:
            its, other = next((a, b) for a, b in zip(new, old, strict=True) if a != b)
            same = max(0, len(os.path.commonprefix([its, other])) - 40)  # noqa: RUF071 - texts
            texts = [f"...{text[same : same + 120]}..." for text in (its, other)]
            place = f"checkpoint {old[3]} of thread {old[1]!r}, namespace {old[2]!r}"
            yield f"{place}, has {texts[0]}, not {texts[1]}"
            return
    if len(expected.history) != len(found.history):
        counts = len(found.history), len(expected.history)
        yield f"the history has {counts[0]} checkpoints, not {counts[1]}"
