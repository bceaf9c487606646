"""A harness that kills a workflow at every fault point, resumes it, and compares.

A *workflow* is a function that takes a folder and returns a result. Its store is in
this folder. If the workflow is called again with the same folder, it resumes where the
last call was killed, or returns the result of the finished run (``run_id=`` does
both)::

    def workflow(folder):
        with LMDBSaver(folder / "runs") as saver:
            app = make_app(saver)
            return app.invoke(7, thread_id="1", run_id="one", durability="sync")

    report = crash_everywhere(workflow)
    assert report.ok, report

First the workflow runs undisturbed, and the harness records the fault points (places in
the library's code, such as before and after each durable write) that it passes. Then,
for each of these points, the workflow runs in a new folder until it reaches the point
and is killed (by a real ``SIGKILL``; at a point in a worker, only the worker is
killed). Unless the run survived the death of a worker, the workflow is then called
again in a new process, and runs to its end. Each time the harness checks that:

* the result, and the history in the store, equal those of the undisturbed run;
* no task ran again after its result was committed;
* every side effect that `effect` recorded was made at least once, and none was made by
  a task that was already committed.

The points that were passed, the committed tasks and the effects are recorded in a log
outside the store, which survives every kill.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowpregel import _fault
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.testing.crash_process import LogLine, RunFolder, RunResult, Workflow

__all__ = [
    "CrashError",
    "CrashReport",
    "Point",
    "Violation",
    "crash_everywhere",
    "effect",
]

_EFFECT = "effect"
_MOST_SHOWN = 20
_TRIES = 20
"""The greatest number of runs that are started until one passes a given point of the
undisturbed run.
"""


class CrashError(Exception):
    """The workflow fails even if it is not killed, so nothing can be tested."""


@dataclass(frozen=True, slots=True)
class Point:
    """The *n*-th pass of a fault point in one process."""

    name: str
    """The name of the fault point."""
    n: int

    def __str__(self) -> str:
        return f"{self.name}:{self.n}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise of the library that did not hold after a kill."""

    killed_at: tuple[Point, ...]
    """The points at which processes were killed."""
    problem: str
    """The problem, in words."""

    def __str__(self) -> str:
        points = ", then ".join(str(point) for point in self.killed_at)
        return f"killed at {points}: {self.problem}"


@dataclass(slots=True)
class CrashReport:
    """The outcome of all kills of one workflow."""

    points: tuple[Point, ...] = ()
    """The fault points that the undisturbed run passed."""
    writes: int = 0
    """The number of *points* that are before or after a durable write."""
    effects: int = 0
    """The number of *points* that are before or after a side effect."""
    kills: int = 0
    """The number of processes that were killed."""
    runs: int = 0
    """The number of processes that were started to run the workflow."""
    missed: list[Point] = field(default_factory=list)
    """The points that none of 20 further runs passed.

    A run may miss a point because neither the assignment of tasks to workers nor the
    set of tasks that share a commit is deterministic.
    """
    violations: list[Violation] = field(default_factory=list)
    """The promises that did not hold."""

    @property
    def ok(self) -> bool:
        """True if every promise held and at least one process was killed."""
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


def effect(description: str) -> None:
    """Record in the harness's log that a side effect was made. Outside the harness, do
    nothing.

    The harness also kills the workflow just before and just after it writes this
    record.

    Args:
        description: A string without line breaks that describes the side effect. It
            must be the same in every run.

    Example:
        >>> effect("sent the letter to Ada")
    """
    log = os.environ.get(_fault.TRACE)
    if not log:
        return
    scope = current.get()
    task_id = "-" if scope is None else scope.job.task.id
    _fault.fault("effect.before")
    _fault.append(log, f"{_EFFECT}\t{os.getpid()}\t0\t{task_id} {description}\n")
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
    """Kill *workflow* at every fault point, and report the promises that did not hold.

    The processes are started by multiprocessing. In a script, call this function under
    ``if __name__ == "__main__":``.

    Args:
        workflow: A function that takes a folder (`pathlib.Path`), or the name of the
            function, as ``"module:name"``.
        in_a_row: The number of kills in a row. With 2, the run that resumes after a
            kill is killed too, at every point that it passes. With 3, the run after
            that is killed too.
        at_most: The greatest number of points at which each run is killed, spread
            evenly over all points that it passes. None means all points.
        history: True to compare the contents of the LMDB stores in the folder too.
        timeout: Seconds that a run may take.
        modules: Names of modules that are imported once before all runs, to save time.

    Raises:
        CrashError: The workflow fails even if it is not killed.

    Example:
        >>> report = crash_everywhere("myproject.flows:nightly")  # doctest: +SKIP
        >>> print(report)  # doctest: +SKIP
        39 fault points (12 at durable writes, 4 at effects), 39 kills, 79 runs, ...
    """
    if in_a_row < 1:
        raise ConfigurationError(
            f"in_a_row is {in_a_row!r}; give the number of kills, 1 or more"
        )
    import cloudpickle  # noqa: PLC0415 - heavy

    function = workflow
    if isinstance(workflow, str):
        function = pkgutil.resolve_name(workflow)
    pickled = Workflow(cloudpickle.dumps(function), history, timeout, modules)
    with tempfile.TemporaryDirectory(prefix="flowpregel-crash-") as temporary:
        return _CrashTest(pickled, Path(temporary), at_most).run(in_a_row)


class _CrashTest:
    """The kills of one workflow, and the report about them.

    Args:
        workflow: The workflow to run and kill.
        base: The folder in which each run gets a folder.
        at_most: The greatest number of points at which each run is killed, or None for
            all points.
    """

    def __init__(self, workflow: Workflow, base: Path, at_most: int | None) -> None:
        self._workflow = workflow
        self._base = base
        self._at_most = at_most
        self._count = 0
        self._report = CrashReport()

    def run(self, in_a_row: int) -> CrashReport:
        """Kill the workflow at every point, *in_a_row* times in a row, and report."""
        clean = self._new_folder()
        status = self._run(clean, None)
        if status != 0:
            raise CrashError(
                f"undisturbed, the workflow ends with {status}:\n{clean.printed()}"
            )
        self._expected = clean.result()
        log = clean.log()
        self._effects = Counter(_effects(log))
        shutil.rmtree(clean.path)

        report = self._report
        report.points = tuple(_points(log))
        names = Counter(point.name.removeprefix("worker.") for point in report.points)
        report.writes = names["store.commit.before"] + names["store.commit.after"]
        report.effects = names["effect.before"] + names["effect.after"]
        self._kill_at_each((), report.points, in_a_row, None)
        return report

    def _kill_at_each(
        self,
        earlier: tuple[Point, ...],
        points: Sequence[Point],
        kills: int,
        source: Path | None,
    ) -> None:
        """Kill a run at each of *points*, or at most `at_most` of them.

        Args:
            earlier: The points of the earlier kills in the same row.
            points: The points to choose from.
            kills: The number of kills in a row, including this kill.
            source: The folder as the previous kill in the row has left it, or None for
                the first kill.
        """
        limit = min(len(points), self._at_most or len(points))
        for index in range(limit):
            # The chosen points are spread evenly over all points.
            point = points[index * len(points) // limit]
            is_met = self._kill_once((*earlier, point), kills - 1, source)
            if not is_met:
                self._report.missed.append(point)

    def _kill_once(
        self,
        points: tuple[Point, ...],
        kills: int,
        source: Path | None,
    ) -> bool:
        """Repeat a run until it passes the last of *points* and is killed there. Return
        False if none of `_TRIES` runs passes the point.
        """
        return any(self._kill(points, kills, source) for _ in range(_TRIES))

    def _kill(
        self,
        points: tuple[Point, ...],
        kills: int,
        source: Path | None,
    ) -> bool:
        """Kill a run at the last of *points*, resume it to its end, and compare.

        Returns:
            False if the run must be repeated, because it did not pass the last of
            *points*.
        """
        folder = self._new_folder(source)
        folder.acted.unlink(missing_ok=True)
        killed: Path | None = None
        try:
            status = self._run(folder, points[-1])
            met = folder.acted.exists()
            self._report.kills += met
            if met and kills:
                killed = self._new_folder(folder.path).path
            log_length = len(folder.log())
            # After the death of a worker, its task has failed, and perhaps the run too,
            # so the run is resumed.
            if status != 0 and met:
                status = self._run(folder, None)
        except TimeoutError:
            self._report.violations.append(Violation(points, "a run took too long"))
            return True
        problems = list(self._problems(folder, status))
        for problem in problems:
            self._report.violations.append(Violation(points, problem))
        if killed is not None:
            further_points = list(_points(folder.log()[log_length:]))
            self._kill_at_each(points, further_points, kills, killed)
            shutil.rmtree(killed)
        shutil.rmtree(folder.path)
        return met or bool(problems)

    def _run(self, folder: RunFolder, point: Point | None) -> int:
        self._report.runs += 1
        fault = "" if point is None else f"{point}:kill"
        return self._workflow.run(folder, fault)

    def _problems(self, folder: RunFolder, status: int) -> Iterator[str]:
        if status != 0:
            yield f"the run that went on ended with {status}:\n{folder.printed()}"
            return
        result = folder.result()
        log = folder.log()
        digest, text = result.value
        expected_digest, expected_text = self._expected.value
        if digest != expected_digest:
            yield f"the result is {text}, not {expected_text}"
        yield from _differences(self._expected, result)
        yield from _repetitions(log)
        lost = self._effects - Counter(_effects(log))
        for description in lost.elements():
            yield f"the effect {description!r} was lost"

    def _new_folder(self, source: Path | None = None) -> RunFolder:
        """Return a copy of the run folder *source*, or a folder that does not exist yet
        if *source* is None.
        """
        self._count += 1
        path = self._base / f"{self._count:06}"
        if source is not None:
            shutil.copytree(source, path)
        return RunFolder(path)


def _points(log: Sequence[LogLine]) -> Iterator[Point]:
    """Yield each of the passed points once, in the order in which they were first
    passed.
    """
    points = dict.fromkeys(
        Point(line.name, line.count) for line in log if line.name != _EFFECT
    )
    yield from points


def _effects(log: Sequence[LogLine]) -> Iterator[str]:
    """Yield the description of each side effect in *log*."""
    for line in log:
        if line.name == _EFFECT:
            _, _, description = line.about.partition(" ")
            yield description


def _repetitions(log: Sequence[LogLine]) -> Iterator[str]:
    """Yield a description of each action of a task that was already committed."""
    committed: set[str] = set()
    for line in log:
        if line.name.endswith(".commit.after"):
            committed.update(line.about.split())
            continue
        problem = _repetition(line, committed)
        if problem is not None:
            yield problem


def _repetition(line: LogLine, committed: Container[str]) -> str | None:
    """Return a description of the problem if *line* is an action of a task in
    *committed*, or None.
    """
    if line.name == _EFFECT:
        task_id, _, description = line.about.partition(" ")
        problem = f"the effect {description!r} was made again by a committed task"
    elif line.name.removeprefix("worker.") == "task.before":
        task_id = line.about
        problem = f"task {task_id} ran again after its result was committed"
    else:
        return None
    return problem if task_id in committed else None


def _differences(expected: RunResult, result: RunResult) -> Iterator[str]:
    """Yield the first difference between the histories of two results."""
    for old, new in zip(expected.history, result.history, strict=False):
        if old != new:
            yield _difference(old, new)
            return
    count = len(result.history)
    expected_count = len(expected.history)
    if count != expected_count:
        yield f"the history has {count} checkpoints, not {expected_count}"


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    """Return the first difference between two unequal lines of histories."""
    fields = zip(old, new, strict=True)
    old_text, new_text = next(pair for pair in fields if pair[0] != pair[1])
    prefix = os.path.commonprefix([old_text, new_text])  # noqa: RUF071 - texts
    start = max(0, len(prefix) - 40)
    end = start + 120
    return (
        f"checkpoint {old[3]} of thread {old[1]!r}, namespace {old[2]!r}, "
        f"has ...{new_text[start:end]}..., not ...{old_text[start:end]}..."
    )
