"""The calls that bodies make: planned, replayed from what was kept, and answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowpregel._core.effects import Call, Resolve
from flowpregel._core.narrator import outputs
from flowpregel._core.plan import call_task
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


class Calls:
    """The calls of one superstep. Each costs the same, however many there are."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._callers: dict[str, list[Call]] = {}
        """For each task that was called: who waits for it."""
        self._fingerprints: dict[str, tuple[str | None, str]] = {}
        self._below: dict[str, int] = {}
        """For each body: how many of its calls are running."""
        self._failures: dict[str, dict[str, tuple[Task, BaseException]]] = {}
        """For each body: its calls that failed."""
        self._ended: dict[str, Sequence[Write]] = {}
        """How calls ended whose body may be tried again: it is not to run them again."""
        self._late: dict[str, BaseException] = {}
        self._asked: dict[str, list[Any]] = {}

    def plan(self, caller: Task, call: Call) -> Task | None:
        """Return the task of *call*; None: it was recorded, and is answered at once."""
        task = call_task(caller, call, self._run.place)
        if task.id in self._callers:
            self._callers[task.id].append(call)
            return task
        recorded = self._ended.get(task.id)
        if recorded is None and self._run.hand_back:
            recorded = self._run.pending.get(task.id)
        if recorded and call.node.role != "graph":
            outcome = self._replayed(task, call, recorded)
            if outcome is not None:
                self._run.after.extend(self._run.narrator.updates(task, cached=True))
                self._run.after.append(Resolve(call, outcome))
                return None
        self._callers[task.id] = [call]
        self._fingerprints[task.id] = call.fingerprint, call.describe
        self._below[caller.id] = self._below.get(caller.id, 0) + 1
        return task

    def _replayed(self, task: Task, call: Call, recorded: Sequence[Write]) -> Outcome | None:
        """Return what was recorded of a call, None if nothing that can be used again."""
        was = next((value for channel, value in recorded if channel == CALLED), None)
        if was is not None and call.fingerprint is not None and was[0] != call.fingerprint:
            if self._run.options.on_mismatch == "error":
                return Raised(ReplayMismatchError(was[1], call.describe))
            if self._run.options.on_mismatch == "rerun":
                task.id = f"{task.id}+{call.fingerprint}"
                return None
        if done := outputs(recorded):
            task.writes = tuple(done)
            return Returned(task.writes)
        for channel, value in recorded:
            if channel == ERROR and isinstance(value, BaseException):
                # It may bring the body down only now: it was kept while another call asked.
                self.failed(task, value, late=False)
                return Raised(value)
        return None

    def with_fingerprint(self, task: Task, writes: Sequence[Write]) -> Sequence[Write]:
        """Return *writes* of a call with the record of which call it was."""
        fingerprint, describe = self._fingerprints.get(task.id, (None, ""))
        return writes if fingerprint is None else ((CALLED, (fingerprint, describe)), *writes)

    def resolve(self, task: Task, outcome: Outcome) -> None:
        """Answer those who wait for *task*, once how it ended is kept."""
        callers = self._callers.pop(task.id, None)
        if callers is None:
            return
        assert task.parent is not None
        self._below[task.parent.id] -= 1
        if self._run.options.retry or task.parent.node.retry:
            self._note_end(task, outcome)
        self._run.after.extend(Resolve(call, outcome) for call in callers)

    def _note_end(self, task: Task, outcome: Outcome) -> None:
        match outcome:
            case Returned():
                self._ended[task.id] = self.with_fingerprint(task, task.writes)
            case Raised(error):
                self._ended[task.id] = self.with_fingerprint(task, ((ERROR, error),))

    def tried_again(self, body: Task, error: BaseException) -> None:
        """Prepare for the next attempt of *body*, which *error* ended the last one of.

        It is handed the results of the calls it made, and runs those again that
        brought it down.
        """
        self._asked.pop(body.id, None)
        for task in self._behind(body, error):
            del self._failures[body.id][task.id]
            self._ended.pop(task.id, None)
            if before := self._run.pending.get(task.id):
                self._run.pending[task.id] = [write for write in before if write[0] != ERROR]

    def open_below(self, body: Task) -> bool:
        """Return whether calls of *body* are still running."""
        return self._below.get(body.id, 0) > 0

    def failed(self, task: Task, error: BaseException, *, late: bool) -> None:
        """Note that a call failed; *late*: when its body had ended already."""
        assert task.parent is not None
        self._failures.setdefault(task.parent.id, {})[task.id] = task, error
        if late:
            self._late.setdefault(task.parent.id, error)

    def late_failure(self, body: Task) -> BaseException | None:
        """Return the first failure of a call that *body* did not wait for."""
        return self._late.get(body.id)

    def uncaught(self, body: Task, error: BaseException) -> None:
        """Forget failures that brought *body* down, so that a resume tries them again.

        A failure that the body caught is part of what it did, and is replayed.
        """
        for task in self._behind(body, error):
            self._run.recorder.keep(self._run.checkpoint_id, task.id, task.path, ((ERROR, None),))

    def _behind(self, body: Task, error: BaseException) -> list[Task]:
        """Return the calls of *body* whose failures led to *error*."""
        chain: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in chain:
            chain.add(id(link))
            link = link.__cause__ or link.__context__
        failures = self._failures.get(body.id, {}).values()
        return [task for task, failure in failures if id(failure) in chain]

    def interrupted(self, task: Task, interrupts: tuple[Any, ...]) -> None:
        """Note what a call asks; its body asks it too."""
        assert task.parent is not None
        self._asked.setdefault(task.parent.id, []).extend(interrupts)

    def interrupts_below(self, body: Task) -> Iterable[Any]:
        """Return what the calls of *body* ask."""
        return self._asked.get(body.id, ())
