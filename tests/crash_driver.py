"""Drives a run of the core by hand: in a chosen order, to a chosen effect, and on after
a crash.

`run` in the core is a generator of effects. `CrashDriver` performs them without
threads, processes or clocks: commits go to a saver, tasks run inline or end as a script
says, and completions arrive in the order that was chosen. A crash is the generator
dropped before or after one of its effects; what the saver has by then is all that is
left, as after ``kill -9``::

    saver = InMemorySaver()
    first = CrashDriver(app.program, saver)
    with contextlib.suppress(Crashed):
        first.run({"a": 1}, crash=Crash(after=5))
    second = CrashDriver(app.program, saver, seen=first.seen)
    result = second.run(None)

It says what was done: `CrashDriver.effects` in order, and in `Seen` how often
each task ran and which tasks' outcomes were committed, over any number of crashes.
So ``seen.run_again()`` names the tasks that ran although their outcome was kept.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from flowpregel._core.effects import (
    CacheLookup,
    CacheStore,
    Call,
    Cancel,
    Commit,
    Effect,
    Emit,
    Ended,
    Event,
    Load,
    Resolve,
    StepContext,
    Steps,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.program import Options, Program
from flowpregel._core.records import (
    RUN_TASK_ID,
    Address,
    Batch,
    Outcome,
    Raised,
    Task,
    Withdrawn,
)
from flowpregel._core.run import Result
from flowpregel._core.run_loop import run_program
from flowpregel._core.stream_events import finished_writes
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import Job, RunInfo
from flowpregel.executors.attempt import perform
from flowpregel.executors.calls import CallFuture, observed_failures
from flowpregel.executors.local import LocalRunClient

__all__ = ["Crash", "CrashDriver", "Crashed", "Schedule", "Seen", "failing", "shuffled"]

Script = Callable[[Task], Outcome | None]
"""Says how an attempt ends; None: it is performed."""
Order = Callable[[int], int]
"""Given how many tasks are in flight, says which of them ends next."""


class Crashed(Exception):
    """The run was dropped where the driver was told to drop it."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where to drop the run: before, or after, its n-th effect (from 0) was
    performed.
    """

    before: int | None = None
    after: int | None = None


def oldest(_: int) -> int:
    """Let tasks end in the order in which they were started."""
    return 0


def performed(_: Task) -> Outcome | None:
    """Let tasks end as their nodes do."""
    return None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the tasks of a run end, and in which order."""

    script: Script = performed
    """Decides how an attempt ends; by default it is performed inline."""
    order: Order = oldest
    """Which of the tasks in flight ends next."""
    together: int = 1
    """How many of them end in one wake-up, if as many are in flight."""


@dataclass(slots=True)
class Seen:
    """What happened to tasks, over any number of runs and crashes of one thread."""

    attempts: Counter[str] = field(default_factory=Counter)
    """How often each task was run, by its id."""
    committed: set[str] = field(default_factory=set)
    """The tasks whose outcome is kept."""
    again: list[str] = field(default_factory=list)
    """The names of tasks that ran although their outcome was kept."""

    def run_again(self) -> list[str]:
        """Return the names of tasks that ran although their outcome was kept."""
        return self.again

    def note_run(self, task: Task) -> None:
        """Count one run of *task*."""
        self.attempts[task.id] += 1
        if task.id in self.committed:
            self.again.append(task.name)

    def note_commit(self, batch: Batch) -> None:
        """Note whose outcome *batch* keeps."""
        for item in batch.writes:
            if item.task_id != RUN_TASK_ID and finished_writes(item.writes):
                self.committed.add(item.task_id)


class CrashDriver:
    """Performs the effects of one run, or of several after each other.

    Args:
        program: What to run; ``graph.program`` of a compiled graph.
        saver: Where commits go; None: the run keeps nothing.
        options: What the run is asked for; without an address it runs thread ``"t"``.
        schedule: How tasks end, and in which order.
        seen: What earlier drivers of the same thread saw, to add to.

    Example:
        >>> from tests.graphs import fan_out
        >>> driver = CrashDriver(fan_out(lambda text: text + text).program, None)
        >>> driver.run("foo").values
        ['foofoo']
        >>> [type(effect).__name__ for effect in driver.effects]
        ['Submit', 'Wait']
    """

    def __init__(
        self,
        program: Program,
        saver: BaseCheckpointSaver | None,
        options: Options | None = None,
        *,
        schedule: Schedule | None = None,
        seen: Seen | None = None,
    ) -> None:
        options = options or Options()
        if options.address is None and saver is not None:
            options = replace(options, address=Address("t"))
        if not options.output_channels:
            options = replace(options, output_channels=program.output_channels)
        self.program = program
        self.saver = saver
        self.options = options
        self.seen = seen or Seen()
        self.effects: list[Effect] = []
        """What the newest run asked for, in order."""
        self.emitted: list[tuple[str, Any]] = []
        """(mode, payload) of what the newest run emitted."""
        self.resolved: list[tuple[Call, Outcome]] = []
        """The calls that were answered."""
        self.events: deque[Event] = deque()
        """What the next wake-ups bring before any completion; a test may add to it."""
        self.cache: dict[Any, Any] = {}
        """Results shared so far, by key; a test may put some there."""
        self.monotonic = 0
        """Nanoseconds of the driver's own clock; it moves to a deadline that is waited
        for.
        """
        self._schedule = schedule or Schedule()
        self._flying: list[tuple[Task, StepContext]] = []
        self._wait: Wait | None = None
        self._result: Result | None = None
        self._dropped = False
        self._crash = Crash()
        self.clock = 1_600_000_000_000_000_000
        """Nanoseconds of the wall clock; it moves with each run and wake-up."""

    # ------------------------------------------------------------ runs

    def run(self, given: Any, *, crash: Crash | None = None) -> Result:
        """Run to the end, or to the crash.

        Args:
            given: The input; None goes on.
            crash: Where to drop the run.

        Raises:
            Crashed: The run was dropped there.
            Exception: What the run raised.
        """
        self._steps = self.start(given)
        self._crash = crash or Crash()
        self._to_next_wait(None)
        while self._wait is not None:
            self._to_next_wait(self.perform(self._wait))
        assert self._result is not None
        return self._result

    def again(self, given: Any) -> Any:
        """Return what a run that is tried again is given: *given*, if nothing is kept
        yet.
        """
        if self.saver is None or self.options.address is None:
            return given
        return given if self.saver.load(self.options.address) is None else None

    def start(self, given: Any) -> Steps:
        """Return the generator of a new run, to be fed by hand, with `perform` or
        without.
        """
        self.effects, self.emitted, self.resolved = [], [], []
        self.events.clear()
        self._flying, self._wait, self._result = [], None, None
        self._dropped = False
        self.clock += 1_000_000
        return run_program(self.program, replace(self.options, now=self.clock), given)

    def _to_next_wait(self, reply: Any) -> None:
        """Send *reply*, and perform effects up to the next `Wait`, or to the end."""
        failure: BaseException | None = None
        if self._wait is not None:
            self._drop_if(self._crash.after)
        while True:
            try:
                effect = (
                    self._steps.send(reply)
                    if failure is None
                    else self._steps.throw(failure)
                )
            except StopIteration as stop:
                self._wait, self._result = None, stop.value
                return
            self.effects.append(effect)
            self._drop_if(self._crash.before)
            if isinstance(effect, Wait):
                self._wait = effect
                return
            reply = failure = None
            try:
                reply = self.perform(effect)
            except Exception as error:  # noqa: BLE001 - it is raised inside the run
                failure = error
            self._drop_if(self._crash.after)

    def _drop_if(self, place: int | None) -> None:
        """Drop the run if the newest effect is the one at *place*."""
        if place == len(self.effects) - 1:
            self._dropped = True
            self._steps.close()
            raise Crashed

    def _turn(self, future: CallFuture[Any]) -> None:
        """Let the run go on while a task waits for *future*, as the engine does."""
        while not future.done():
            if self._dropped or self._wait is None:
                raise Crashed
            self._to_next_wait(self.perform(self._wait))

    # ------------------------------------------------------------ effects

    def perform(self, effect: Effect) -> Any:
        """Do what *effect* asks, and return the reply."""
        match effect:
            case Wait():
                return self._wakeup(effect)
            case Submit():
                for task in effect.tasks:
                    self.seen.note_run(task)
                    self._flying.append((task, effect.step))
            case Cancel():
                self._withdraw(effect.task_id)
            case Commit():
                assert self.saver is not None
                self.saver.commit((effect.batch,))
                self.seen.note_commit(effect.batch)
            case Load():
                assert self.saver is not None
                return self.saver.load(
                    effect.address, before=effect.before, lazy_results=True
                )
            case _:
                return self._aside(effect)
        return None

    def _aside(self, effect: Effect) -> Any:
        """Do what no task and no saver has to do with."""
        match effect:
            case Emit():
                self.emitted.append((effect.mode, effect.payload))
            case Resolve(outcomes):
                self.resolved += outcomes
                for call, outcome in outcomes:
                    if call.reply is not None:
                        call.reply.settle(outcome)
            case CacheLookup():
                return {
                    key: self.cache[key] for key in effect.keys if key in self.cache
                }
            case CacheStore():
                for key, entry in effect.entries.items():
                    if entry is not None:
                        self.cache[key], _ = entry
        return None

    def _withdraw(self, task_id: str) -> None:
        """End a task that was cancelled before its turn came."""
        for item in self._flying:
            if item[0].id == task_id:
                self._flying.remove(item)
                self.post(Ended(task_id, item[0].attempt.number, Withdrawn()))
                return

    def _wakeup(self, wait: Wait) -> Wakeup:
        self.clock += 1_000
        schedule = self._schedule
        for _ in range(schedule.together):
            if not self._flying:
                break
            index = schedule.order(len(self._flying)) % len(self._flying)
            self._end(*self._flying.pop(index))
        events, self.events = [*self.events], deque()
        if not events:
            assert wait.deadline is not None, (
                "the run waits for something that cannot happen"
            )
            self.monotonic = max(self.monotonic, wait.deadline)
        return Wakeup(events, self.clock, self.monotonic)

    # ------------------------------------------------------------ tasks

    backlog = None

    def post(self, *events: Event) -> None:
        """Let the next wake-up bring *events*."""
        self.events.extend(events)

    def _end(self, task: Task, setting: StepContext) -> None:
        """Run an attempt, and post what it posts and how it ended."""
        outcome, caught = self._schedule.script(task), None
        if outcome is None:
            ends = LocalRunClient(job := self._job(task, setting), self, self._turn)
            outcome = job.variables.run(perform, job, ends)
            calls = ends.open_calls
            caught = observed_failures(outcome, calls) if calls.count else None
        if self._dropped:
            raise Crashed
        self.post(Ended(task.id, task.attempt.number, outcome, None, caught))

    def _job(self, task: Task, setting: StepContext) -> Job:
        around = RunInfo(has_saver=self.saver is not None)
        return Job(task, setting, around, (task.id, task.attempt.number))


def shuffled(seed: int) -> Order:
    """Return an order of completions that *seed* decides."""
    return random.Random(seed).randrange


def failing(*errors: Exception) -> Script:
    """Return a script by which the first attempts of every task fail with *errors*, in
    turn.
    """

    def script(task: Task) -> Outcome | None:
        return (
            Raised(errors[task.attempt.number - 1])
            if task.attempt.number <= len(errors)
            else None
        )

    return script
