"""The calls that bodies make: planned, replayed from what was kept, and answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from flowpregel._core import ids
from flowpregel._core.blame import blame, blamed
from flowpregel._core.effects import Call, Resolve
from flowpregel._core.narrator import outputs
from flowpregel._core.plan import DEEPEST, CallPlanner, too_deep
from flowpregel._core.progress import Run
from flowpregel._core.records import (
    CALLED,
    ERROR,
    Outcome,
    Raised,
    Returned,
    Task,
    Write,
)
from flowpregel.errors import ReplayMismatchError

_FORGOTTEN: tuple[Write, ...] = ((ERROR, None), (CALLED, None))
"""What is kept in the place of a failure that is to be tried again."""


class Failure(NamedTuple):
    """How a call ended that failed."""

    task: Task
    error: BaseException | None
    """None: no call of its body's present attempt."""
    is_late: bool
    """Whether its body had ended before."""


class Calls:
    """The calls of one superstep. Each costs the same, however many there are."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._callings = CallPlanner(run.place)
        self._callers: dict[str, Call] = {}
        """For each task that was called: who waits for it."""
        self._further: dict[str, list[Call]] = {}
        """Who waits for it too: a body's later attempts."""
        self._fingerprints: dict[str, tuple[str | None, str]] = {}
        self.bodies: dict[str, int] = {}
        """For each task that has made calls: how many of them are running."""
        self._failures: dict[str, dict[str, Failure]] = {}
        """For each body: its calls that failed."""
        self._caught: dict[str, Collection[str]] = {}
        """For each body that says so: the calls whose failures it has seen."""
        self._kept: dict[str, list[Write]] = {}
        """What was recorded in this superstep, of bodies that may be tried again."""
        self._asked: dict[str, dict[str, tuple[Any, ...]]] = {}
        self.ended: dict[str, Outcome] = {}
        """How bodies ended whose calls have not all ended yet."""
        self.looked_up: list[Task] = []
        """Calls whose results another run may have shared: they start when we know."""

    def plan(self, caller: Task, calls: Sequence[Call]) -> list[Task]:
        """Return the tasks that are to be run for *calls*, which *caller* has made.

        The others are answered at once, by their records for one, or run already.
        """
        run, callers, fingerprints = self._run, self._callers, self._fingerprints
        self.bodies.setdefault(caller.id, 0)
        due = []
        is_plain = caller.depth < DEEPEST and not (self._kept or run.pending or run.left)
        for task, call in zip(self._callings.tasks(caller, calls), calls, strict=True):
            needs_care = not is_plain or task.id in callers
            if needs_care and not self._is_due(task, call):
                continue
            callers[task.id] = call
            if call.fingerprint is not None:
                fingerprints[task.id] = call.fingerprint, call.describe
            due.append(task)
        self.bodies[caller.id] += len(due)
        return due

    def _is_due(self, task: Task, call: Call) -> bool:
        """Return whether *task* is to be run for *call*; else it is answered, now or later."""
        outcome: Outcome | None
        if task.depth > DEEPEST:
            error = too_deep(task.name)
            self._failed(task, error, late=False)
            outcome = Raised(error)
        else:
            outcome = self._replayed(task, call)
        if outcome is not None:
            if task.writes:
                self._run.after.extend(self._run.narrator.updates(task, cached=True))
            self._answer(call, outcome)
            return False
        if task.id in self._callers:
            self._further.setdefault(task.id, []).append(call)
            return False
        return True

    def _answer(self, call: Call, outcome: Outcome) -> None:
        """Have a caller told the outcome of its call, once that is kept."""
        after = self._run.after
        if after and isinstance(last := after[-1], Resolve):
            last.answers.append((call, outcome))
        else:
            after.append(Resolve([(call, outcome)]))

    def _recorded(self, task: Task) -> tuple[Sequence[Write], Any]:
        """Return what was recorded under the id of *task*, and of which call it was."""
        kept: Sequence[Write] = self._kept.get(task.id) or ()
        if not kept and self._run.hand_back:
            kept = self._run.pending.get(task.id) or ()
            if not kept and self._run.left is not None:
                # Not held on to: it goes when the call's caller drops it.
                kept = self._run.left(task.id)
        running = self._fingerprints.get(task.id) if task.id in self._callers else None
        for channel, value in kept:
            if channel == CALLED:
                return kept, value
        return kept, running

    def _replayed(self, task: Task, call: Call) -> Outcome | None:
        """Return what was recorded of a call, None if nothing that can be used again."""
        recorded, was = self._recorded(task)
        if not recorded and was is None:
            return None
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
                self._failed(task, value, late=False)
                return Raised(value)
        return None

    def recorded(self, task: Task, writes: Sequence[Write]) -> Sequence[Write]:
        """Return *writes* of a call with the record of which call it was.

        They are kept here too if the body that made the call may be tried again.
        """
        if (record := self._fingerprints.get(task.id)) is not None:
            # Last: the places of the other writes do not depend on it.
            writes = (*writes, (CALLED, record))
        parent = task.parent
        if parent is not None and (parent.node.retry or self._run.options.retry):
            self._kept[task.id] = list(writes)
        return writes

    def resolve(self, task: Task, outcome: Outcome) -> None:
        """Answer those who wait for *task*, once how it ended is kept."""
        identity, parent = task.id, task.parent
        if identity in self.bodies:
            self._callings.ended(task)
        caller = self._callers.pop(identity, None)
        if caller is None or parent is None:
            return
        self.bodies[parent.id] -= 1
        self._fingerprints.pop(identity, None)
        self._answer(caller, outcome)
        if self._further:
            for call in self._further.pop(identity, ()):
                self._answer(call, outcome)

    def open_below(self, body: Task) -> bool:
        """Return whether calls of *body* are still running."""
        return self.bodies.get(body.id, 0) > 0

    def failed(self, task: Task, error: BaseException) -> None:
        """Note that a call failed, perhaps when its body had ended already."""
        self._failed(task, error, late=task.parent is not None and task.parent.id in self.ended)

    def _failed(self, task: Task, error: BaseException, *, late: bool) -> None:
        parent = task.parent
        assert parent is not None
        # One that an earlier attempt of the body made is not this one's to raise.
        asked = task.id not in self._callers or any(
            call.attempt == parent.attempt
            for call in (self._callers[task.id], *self._further.get(task.id, ()))
        )
        failure = Failure(task, error if asked else None, late)
        self._failures.setdefault(parent.id, {})[task.id] = failure
        blame(error, (task.id,))

    def saw(self, body: Task, caught: Collection[str]) -> None:
        """Note which failures *body* has seen of the calls that it made."""
        self._caught[body.id] = caught

    def unseen_failure(self, body: Task) -> BaseException | None:
        """Return the first failure of a call that *body* never looked at."""
        failures = self._failures.get(body.id)
        if failures is None:
            return None
        for failure in failures.values():
            if failure.error is not None and self._is_unseen(body, failure):
                return failure.error
        return None

    def _is_unseen(self, body: Task, failure: Failure) -> bool:
        caught = self._caught.get(body.id)
        return failure.is_late or (caught is not None and failure.task.id not in caught)

    def uncaught(self, body: Task, error: BaseException) -> None:
        """Forget failures that brought *body* down, so that a resume tries them again.

        So are those that it has not seen. A failure that the body caught is part of
        what it did, and is replayed.
        """
        failures = self._failures.pop(body.id, None)
        if not failures:
            return
        found = blamed(error)
        for task_id, failure in failures.items():
            if task_id in found or self._is_unseen(body, failure):
                self._forget(failure.task)

    def _forget(self, task: Task) -> None:
        """Keep that *task* is to be tried again, in the place of its failure."""
        self._kept.pop(task.id, None)
        if before := self._run.pending.get(task.id):
            self._run.pending[task.id] = [each for each in before if each[0] != ERROR]
        self._run.recorder.keep(self._run.checkpoint_id, task.id, task.path, _FORGOTTEN)

    def interrupted(self, task: Task, interrupts: tuple[Any, ...]) -> None:
        """Note what a call asks; its body asks it too."""
        assert task.parent is not None
        self._asked.setdefault(task.parent.id, {})[task.path] = interrupts

    def interrupts_below(self, body: Task) -> Iterable[Any]:
        """Return what the calls of *body* ask, in the order in which it made them."""
        asked = self._asked.get(body.id, {})
        return [item for path in sorted(asked) for item in asked[path]]


def heard(calls: Calls, body: Task, outcome: Outcome) -> Outcome:
    """Return how *body* ended: with the failure of one of its *calls*, if it never looked at it."""
    if not isinstance(outcome, Returned):
        return outcome
    unseen = calls.unseen_failure(body)
    return outcome if unseen is None else Raised(unseen)


def _shown(record: tuple[str | None, str]) -> str:
    """Return a recorded call as a message shows it, with the digests that are compared."""
    fingerprint, text = record
    if fingerprint is None:
        return f"the graph {text}"
    code, _, arguments = fingerprint.partition(".")
    return f"{text}   [code {code[:8]}, arguments {arguments[:8]}]"
