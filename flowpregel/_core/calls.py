"""The calls that bodies make: planned, answered from what was kept, and resolved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowpregel._core import ids
from flowpregel._core.effects import Call, Resolve, StepId
from flowpregel._core.plan import DEEPEST, call_task, too_deep
from flowpregel._core.records import (
    CALLED,
    ERROR,
    Outcome,
    Raised,
    Returned,
    Task,
    Write,
    add_failed_calls,
    failed_calls,
)
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel.errors import ReplayMismatchError

_FORGOTTEN: tuple[Write, ...] = ((ERROR, None), (CALLED, None))
"""What is kept in the place of a failure that is to be tried again."""


class CallFailure(NamedTuple):
    """A call that failed."""

    task: Task
    error: BaseException | None
    """None: the present attempt of the body did not make the call."""
    is_late: bool
    """Whether the body had ended before."""


@dataclass(slots=True)
class BodyCalls:
    """What is known of the calls that one body has made."""

    running: int = 0
    """How many calls are running."""
    failures: dict[str, CallFailure] = field(default_factory=dict)
    """The calls that failed, by task id."""
    caught: Collection[str] | None = None
    """The calls whose failures the body has seen; None: its executor does not report them."""
    asked: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The interrupts of the calls, by task path."""
    outcome: Outcome | None = None
    """How the body ended, if some of its calls are still running."""

    def is_unseen(self, failure: CallFailure) -> bool:
        """Return whether the body has not seen *failure*."""
        return failure.is_late or (self.caught is not None and failure.task.id not in self.caught)

    def final_outcome(self, outcome: Outcome) -> Outcome:
        """Return how the body ended: with the failure of one of its calls, if it never saw it."""
        if isinstance(outcome, Returned):
            for failure in self.failures.values():
                if failure.error is not None and self.is_unseen(failure):
                    return Raised(failure.error)
        return outcome


class Calls:
    """The calls that the bodies of one superstep make.

    Args:
        run: The run that the superstep belongs to.
        place: The superstep.
    """

    def __init__(self, run: Run, place: StepId) -> None:
        self._run = run
        self._place = place
        self._waiting: dict[str, list[Call]] = {}
        """The calls that wait for each running task: one for each attempt of the body."""
        self.bodies: dict[str, BodyCalls] = {}
        """What is known of the bodies that made a call, by task id."""
        self._kept: dict[str, list[Write]] = {}
        """What was recorded in this superstep, of bodies that may be tried again."""

    def plan(self, caller: Task, call: Call) -> Task | None:
        """Return the task that is to be run for a *call* of *caller*.

        None: the call is answered at once, by its record for one, or runs already.
        """
        task = call_task(caller, call, self._place)
        outcome: Outcome | None
        if task.depth > DEEPEST:
            outcome = self.failed(task, too_deep(task.name))
        else:
            outcome = self._replayed(task, call)
        if outcome is not None:
            if task.writes:
                self._run.after.extend(self._run.stream_events.updates(task, cached=True))
            self._answer(call, outcome)
            return None
        if task.id in self._waiting:
            self._waiting[task.id].append(call)
            return None
        self._waiting[task.id] = [call]
        self.bodies.setdefault(caller.id, BodyCalls()).running += 1
        return task

    def _answer(self, call: Call, outcome: Outcome) -> None:
        """Resolve *call* once the outcome is kept."""
        after = self._run.after
        if after and isinstance(after[-1], Resolve):
            after[-1].answers.append((call, outcome))
        else:
            after.append(Resolve([(call, outcome)]))

    # ------------------------------------------------------------ records

    def _recorded(self, task: Task) -> tuple[Sequence[Write], tuple[str | None, str] | None]:
        """Return what was recorded under the id of *task*, and which call that was."""
        run = self._run
        kept: Sequence[Write] = self._kept.get(task.id, ())
        if not kept and run.hand_back:
            kept = run.pending.get(task.id) or (run.left(task.id) if run.left else ())
        for channel, value in kept:
            if channel == CALLED:
                return kept, value
        return kept, self._record_of(task)

    def _record_of(self, task: Task) -> tuple[str | None, str] | None:
        """Return the record of which call *task* is, if it runs and calls of its kind have one."""
        if task.id not in self._waiting:
            return None
        call = self._waiting[task.id][0]
        return None if call.fingerprint is None else (call.fingerprint, call.describe)

    def _replayed(self, task: Task, call: Call) -> Outcome | None:
        """Return what was recorded of a call, None if nothing that can be used again."""
        recorded, was = self._recorded(task)
        if was is not None and was[0] != call.fingerprint:
            match self._run.options.on_mismatch:
                case "error":
                    now = call.fingerprint, call.describe
                    return Raised(ReplayMismatchError(_shown(was), _shown(now)))
                case "rerun":
                    task.id = ids.task_id(task.id, call.fingerprint)
                    task.namespace = f"{task.namespace.rpartition(':')[0]}:{task.id}"
                    recorded, was = self._recorded(task)
        if call.node.role == "graph":
            # It has checkpoints of its own to go on from.
            return None
        if done := outputs(recorded):
            task.writes = tuple(done)
            return Returned(task.writes)
        for channel, value in recorded:
            if channel == ERROR and isinstance(value, BaseException):
                # It may bring the body down only now: it was kept while another call asked.
                return self.failed(task, value)
        return None

    def recorded(self, task: Task, writes: Sequence[Write]) -> Sequence[Write]:
        """Return *writes* of a call, with the record of which call it was.

        They are kept here too if the body that made the call may be tried again.
        """
        if (record := self._record_of(task)) is not None:
            # Last: the places of the other writes do not depend on it.
            writes = (*writes, (CALLED, record))
        assert task.parent is not None
        if task.parent.node.retry or self._run.options.retry:
            self._kept[task.id] = list(writes)
        return writes

    # ------------------------------------------------------------ ends

    def resolve(self, task: Task, outcome: Outcome) -> None:
        """Answer those who wait for *task*, once how it ended is kept."""
        assert task.parent is not None
        for call in self._waiting.pop(task.id):
            self._answer(call, outcome)
        self.bodies[task.parent.id].running -= 1

    def has_ended(self, body: Task) -> bool:
        """Return whether *body* has ended, and calls that it made were running then."""
        return body.id in self.bodies and self.bodies[body.id].outcome is not None

    def released(self, body: Task) -> Outcome | None:
        """Return how *body* ended before its calls, which have all ended now; once."""
        calls = self.bodies.get(body.id)
        if calls is None or calls.running:
            return None
        outcome, calls.outcome = calls.outcome, None
        return None if outcome is None else calls.final_outcome(outcome)

    # ------------------------------------------------------------ failures and interrupts

    def failed(self, task: Task, error: BaseException) -> Raised:
        """Note that a call failed, perhaps when its body had ended already; return its outcome."""
        assert task.parent is not None
        # A call that only an earlier attempt of the body made is not this one's to raise.
        waiting = self._waiting.get(task.id)
        asked = waiting is None or any(call.attempt == task.parent.attempt for call in waiting)
        failure = CallFailure(task, error if asked else None, self.has_ended(task.parent))
        self.bodies.setdefault(task.parent.id, BodyCalls()).failures[task.id] = failure
        add_failed_calls(error, (task.id,))
        return Raised(error)

    def uncaught(self, body: Task, error: BaseException) -> None:
        """Forget failures that brought *body* down, so that a resume tries them again.

        The same holds for those that it has not seen. A failure that the body caught is
        part of what it did, and is replayed.
        """
        calls = self.bodies.get(body.id)
        if calls is None:
            return
        failures, calls.failures = calls.failures, {}
        found = failed_calls(error)
        for task_id, failure in failures.items():
            if task_id in found or calls.is_unseen(failure):
                self._forget(failure.task)

    def _forget(self, task: Task) -> None:
        """Keep that *task* is to be tried again, in the place of its failure."""
        run = self._run
        self._kept.pop(task.id, None)
        if before := run.pending.get(task.id):
            run.pending[task.id] = [each for each in before if each[0] != ERROR]
        run.keep(run.checkpoint_id, task.id, task.path, _FORGOTTEN)

    def interrupted(self, task: Task, interrupts: tuple[Any, ...]) -> None:
        """Note what a call asks; its body asks it too."""
        assert task.parent is not None
        self.bodies[task.parent.id].asked[task.path] = interrupts

    def interrupts_below(self, body: Task) -> Iterable[Any]:
        """Return what the calls of *body* ask, in the order in which it made them."""
        asked = self.bodies[body.id].asked if body.id in self.bodies else {}
        return [item for path in sorted(asked) for item in asked[path]]


def _shown(record: tuple[str | None, str]) -> str:
    """Return a recorded call as a message shows it, with the digests that are compared."""
    fingerprint, text = record
    if fingerprint is None:
        return f"the graph {text}"
    code, _, arguments = fingerprint.partition(".")
    return f"{text}   [code {code[:8]}, arguments {arguments[:8]}]"
