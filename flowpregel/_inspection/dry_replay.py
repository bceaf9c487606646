"""A dry replay reports what a run would do if it resumed with the present code.

::

    Superstep ------> Submit, Wait, Commit ... --> _withheld --> the engine
      (as in a run)                               (bodies only)

The superstep that the run has reached is replayed: its bodies (the functions of
workflows, which make calls) are executed, and their calls are answered from the
records. A call that no record answers is counted and withheld, and a body that needs
the result of a withheld call stops there, as it would at an interrupt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from typing import Any

from flowpregel._code.sources import SOURCES
from flowpregel._core import effects
from flowpregel._core.barrier import plan
from flowpregel._core.effects import Steps
from flowpregel._core.program import Options, Program
from flowpregel._core.recorded_calls import count_unreplayed
from flowpregel._core.records import Interrupted, Task
from flowpregel._core.run import Result, Run
from flowpregel._core.start import start
from flowpregel._core.superstep import Superstep
from flowpregel._inspection.code_changes import changes_by_name
from flowpregel._inspection.time_left import PlannedTime
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.store.base import BaseStore, Op, PutOp
from flowpregel.store.base import Result as OpResult

_PATIENCE = 20_000_000
"""Nanoseconds without an event after which the run receives the ends of withheld calls
(calls that no record answers).

It receives the results of answered calls first, because they may lead to further calls.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The report of what a run would do if it resumed now.

    Example:
        >>> print(DryRun(answered=299, would_run={"parse": 201}))
        calls: 299 answered, 201 would run (parse 201), 0 not made again
        time: unknown, because too few calls have ended before
    """

    is_done: bool = False
    """True if the run has finished: the result is stored, and nothing would run."""
    answered: int = 0
    """The number of calls whose results are recorded, so that they would not run."""
    would_run: Mapping[str, int] = field(default_factory=dict)
    """The number of calls of each task that would run, by name. The nodes of a graph
    are counted like tasks.

    Calls that the body makes only after it has got the result of such a call are not
    counted.
    """
    not_asked: int = 0
    """The number of recorded calls that the body has not made again when it ends, or
    stops because it needs a result that is not recorded.
    """
    other_code: Mapping[str, int] = field(default_factory=dict)
    """The number of recorded results that would be used although different code
    computed them, for each task by name.
    """
    is_changed: bool = False
    """True if the code or the input of the workflow's body has changed since the calls
    were recorded.
    """
    changes: Mapping[str, str] = field(default_factory=dict)
    """The constants, functions and classes that have changed, as text, by the name of
    the task or node, or of the workflow's body. Code whose parts are not in the store
    is left out.
    """
    diff: str = ""
    """The changes in the code of the tasks in *changes* and of the workflow's body.
    Code that is not in the store is left out.
    """
    error: str | None = None
    """The error with which the run would fail at once."""
    changed_files: Sequence[str] = ()
    """A line of text for each changed file that a call of a finished node used."""
    time: PlannedTime | None = field(default=None, compare=False)
    """The estimated time that the calls that would run will take, or None if too few
    calls have ended for an estimate. The durations are those of calls in this run and
    in the last finished runs of the flow.
    """

    @property
    def fits(self) -> bool:
        """True if the run would resume as if no code had changed."""
        has_changed = bool(self.other_code or self.changed_files)
        return not (self.error or self.not_asked or has_changed)

    def __str__(self) -> str:
        if self.is_done:
            lines = ["finished: its result is stored"]
        else:
            would_run = sum(self.would_run.values())
            lines = [
                f"calls: {self.answered:,} answered, {would_run:,} would "
                f"run{_counts_text(self.would_run)}, {self.not_asked:,} not made again"
            ]
        if self.would_run:
            estimate = self.time or "unknown, because too few calls have ended before"
            lines.append(f"time: {estimate}")
        if self.other_code:
            names = _counts_text(self.other_code)
            lines.append(f"results of other code{names}")
        lines.extend(f"{name}: {text}" for name, text in self.changes.items())
        lines.extend(self.changed_files)
        if self.is_changed:
            lines.append("the code or the input of the body has changed")
        lines.extend(self.diff.splitlines())
        if self.error:
            lines.append(f"it would fail: {self.error}")
        return "\n".join(lines)


def _counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by name as text in parentheses, or an empty string if none."""
    text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return text and f" ({text})"


def dry_superstep(
    program: Program,
    options: Options,
    run_input: Any,
    saver: BaseCheckpointSaver | None,
) -> Steps:
    """Replay the superstep that a run has reached, and return a `Result` with a
    `DryRun`.

    Args:
        program: The program of the run.
        options: The options of the run.
        run_input: The input with which the run would resume.
        saver: The store of earlier code. If it is None, the report shows no changes in
            the code.
    """
    run = yield from start(program, options, run_input)
    setting = run.step_context()
    tasks = plan(
        run.program,
        run.state,
        run.state.updated,
        setting,
    )
    for task in tasks:
        # The nodes get no retry policies, because a failure must be reported at once.
        task.node = replace(task.node, retry=())
    superstep = Superstep(run, tasks, setting)
    withheld: Counter[str] = Counter()
    error: str | None = None
    known = run.replay.report
    try:
        yield from _withheld(_effects_of(superstep), withheld)
        count_unreplayed(run, tasks)
        known.is_changed |= known.unreplayed > 0
    except Exception as failure:  # noqa: BLE001 - the failure of the run is the answer
        error = f"{type(failure).__name__}: {failure}"
    return Result(
        _report(
            run,
            tasks,
            withheld,
            saver,
            error,
        )
    )


def _report(
    run: Run,
    tasks: Sequence[Task],
    withheld: Mapping[str, int],
    saver: BaseCheckpointSaver | None,
    error: str | None,
) -> DryRun:
    """Return the report of a replayed superstep.

    Args:
        run: The state of the run.
        tasks: The tasks of the superstep.
        withheld: The number of withheld calls, by name.
        saver: The store of earlier code, or None.
        error: The failure of the superstep, or None if it did not fail.
    """
    known = run.replay.report
    is_finished = [
        bool(task.attempt.writes) for task in tasks if task.node.role != "body"
    ]
    diff = code_differences(known.codes, saver) if saver else ""
    changes = changes_by_name(saver, known.codes) if saver else {}
    return DryRun(
        is_done=not tasks,
        answered=known.answered + sum(is_finished),
        would_run=dict(withheld),
        not_asked=known.unreplayed,
        other_code=dict(known.of_other_code),
        changes=changes,
        diff=diff,
        is_changed=known.is_changed,
        error=error,
    )


def code_differences(
    codes: Mapping[str, tuple[str, str]],
    saver: BaseCheckpointSaver,
) -> str:
    """Return the differences between recorded and present sources, as one string.

    Args:
        codes: The recorded and the present digest of each changed function, by name.
        saver: The store of the recorded sources.
    """
    lines: list[str] = []
    for name, (recorded, present) in codes.items():
        recorded_lines = saver.source_of(recorded).splitlines()
        if not recorded_lines:
            continue
        present_lines = SOURCES.get(present, "").splitlines()
        difference = unified_diff(
            recorded_lines,
            present_lines,
            f"{name}, recorded",
            f"{name}, now",
            lineterm="",
        )
        lines.extend(difference)
    return "\n".join(lines)


def _effects_of(superstep: Superstep) -> Steps:
    """Run the tasks of a superstep to their end, without the barrier, which would apply
    their writes.

    Raises:
        BaseException: The error that ends the superstep, if there is one.
    """
    try:
        yield from superstep.start()
        while superstep.open_tasks:
            wakeup = yield superstep.next_wait()
            yield from superstep.handle(wakeup)
    except Exception:
        yield from superstep.abandon()
        raise
    failure = superstep.ending_error()
    if failure is not None or superstep.end.is_paused:
        yield from superstep.run.flush()
    if failure is not None:
        raise failure


def _withheld(
    steps: Steps,
    names: Counter[str],
) -> Steps:
    """Yield the effects of *steps* (the generator of a superstep) to the engine, but
    let only the bodies of workflows start.

    All other tasks end as if they had been interrupted, and *names* counts them.
    """
    gate = _BodyGate(names)
    reply: Any = None
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as stop:
            return stop.value
        reply = yield from gate.perform(effect)


class _BodyGate:
    """A filter of the run's effects (requests to the engine) that lets the bodies of
    workflows start, and withholds all other tasks.

    Args:
        names: The counter of withheld tasks by name.
    """

    def __init__(self, names: Counter[str]) -> None:
        self._names = names
        self._ends: list[effects.Event] = []
        """The events that report the ends of withheld tasks, and that the run has not
        received yet.
        """

    def perform(self, effect: effects.Effect) -> Steps:
        """Yield an effect to the engine, without the tasks in it that are not bodies of
        workflows, and return the engine's reply.
        """
        match effect:
            case effects.Submit(tasks, setting):
                bodies = [task for task in tasks if task.node.role == "body"]
                self._withhold(tasks)
                if bodies:
                    return (yield effects.Submit(bodies, setting))
                return None
            case effects.CacheLookup():
                # A dry replay must not use results that other runs have shared, because
                # these may no longer exist when the run really resumes.
                return {}
            case effects.Wait() if self._ends:
                deadline = time.monotonic_ns() + _PATIENCE
                reply: Any = yield effects.Wait(deadline)
                if not reply.events:
                    reply.events = self._ends
                    self._ends = []
                return reply
        return (yield effect)

    def _withhold(self, tasks: Iterable[Task]) -> None:
        """Count and end all tasks that are not bodies of workflows."""
        for task in tasks:
            if task.node.role == "body":
                continue
            if not task.node.hidden:
                self._names[task.name] += 1
            end = effects.Ended(task.id, task.attempt.number, Interrupted(()))
            self._ends.append(end)


class ReadOnlyStore(BaseStore):
    """A long-term store that ignores writes.

    Args:
        store: The store that performs the read operations.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def batch(self, ops: Iterable[Op]) -> list[OpResult]:
        """Return the results of the read operations, and None for each write."""
        operations = list(ops)
        reads = [item for item in operations if not isinstance(item, PutOp)]
        results = iter(self._store.batch(reads))
        return [
            None if isinstance(item, PutOp) else next(results) for item in operations
        ]
