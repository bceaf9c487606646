"""What was recorded of calls, and which call of a body that runs once more it answers.

A call is known by what was asked: who called, the name of the task, the content of the
arguments, and the how manieth call it is that asks for just that. Its place among the calls
of its body is kept beside it, to tell chance from change.

==============================  =====================================================
the body asks for               then
==============================  =====================================================
what is recorded                the record answers
the same, of other code         as ``on_code_change`` says
something else, its code and    `ReplayMismatchError`: it is not deterministic
its input being the same
something else                  it runs
==============================  =====================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from flowpregel import errors
from flowpregel._code.digest import code_of
from flowpregel._core import ids
from flowpregel._core.asked import NOWHERE, CallRecord
from flowpregel._core.copies import own_copy
from flowpregel._core.digest import digest_of
from flowpregel._core.effects import Call, StepContext
from flowpregel._core.plan import asked_id
from flowpregel._core.records import (
    CALLED,
    ERROR,
    Outcome,
    Raised,
    Returned,
    Task,
    Write,
)
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel.errors import CodeChangedError, ConfigurationError, ReplayMismatchError

FORGOTTEN: tuple[Write, ...] = ((ERROR, None), (CALLED, None))
"""What is kept in the place of a failure that is to be tried again."""


def digest_of_caller(caller: Task) -> str:
    """Return a digest of what the calls of a body depend on: its code, and what it was given."""
    if caller.record is not None:
        return digest_of_call(caller.record)
    codes = [code_of(step.func or step.coroutine) for step in caller.node.steps]
    try:
        given = digest_of(caller.input, "the input", strict=False)
    except ConfigurationError:  # nested too deeply to be looked at
        given = ""
    return ids.digest(caller.path, *codes, given)


def digest_of_call(record: CallRecord) -> str:
    """Return `digest_of_caller` for a call that makes calls itself."""
    return ids.digest(record.caller, record.name, record.arguments, record.code)


class Replay:
    """The records that the bodies of one superstep may be answered from.

    Args:
        run: The run; its pending writes are what was recorded before it.
        place: The superstep.
    """

    def __init__(self, run: Run, place: StepContext) -> None:
        self._run = run
        self._place = place
        self.kept: dict[str, Sequence[Write]] = {}
        """What was recorded in this superstep, of bodies that may be tried again."""
        self._placed: dict[tuple[str, int], CallRecord] | None = None
        """The recorded calls by caller and place: made when first needed."""
        self._asked = 0
        """How many recorded calls of planned tasks were asked for again."""
        self._planned: dict[tuple[str, int], CallRecord] = {}
        """The calls of this superstep by caller and index, which another attempt repeats."""

    def answer(self, task: Task, call: Call) -> Outcome | None:
        """Return what is recorded of a call, None if nothing that can be used again.

        Raises:
            CodeChangedError: What is recorded is of other code, and that is not wanted.
            ReplayMismatchError: The body asks for something else by chance.
        """
        recorded = self._recorded(task.id)
        if not recorded and task.node.adopts and task.record is not None:
            recorded = self._adopted(task)
        was, record = _record_in(recorded), task.record
        if was is None and record is not None:
            self._check_chance(task, record)
            return None
        if was is not None and record is not None:
            assert task.parent is not None
            self._asked += task.parent.record is None and record.code != ""
            self._run.going_on.is_changed |= was.caller != record.caller
            if was.code != record.code:
                recorded = self._of_other_code(task, was, record, recorded)
        if not recorded or call.node.role == "graph":
            # A graph has checkpoints of its own to go on from.
            return None
        if task.parent is not None and self.may_repeat(task.parent):
            recorded = own_copy(tuple(recorded))
        if done := outputs(recorded):
            task.writes = tuple(done)
            self._run.going_on.answered += not task.node.hidden
            return Returned(task.writes)
        error = dict(recorded).get(ERROR)
        if isinstance(error, errors.TaskCancelled) and was != record:
            return None  # a body that has changed may want it now
        return Raised(error) if isinstance(error, BaseException) else None

    def may_repeat(self, body: Task) -> bool:
        """Return whether another attempt of *body* may be given the results of its calls again."""
        return bool(body.node.retry or self._run.options.retry)

    def forget(self, task: Task) -> None:
        """Forget that *task* failed, so that it is tried again."""
        self.kept.pop(task.id, None)
        run = self._run
        if before := run.pending.get(task.id):
            run.pending[task.id] = [each for each in before if each[0] != ERROR]
        run.keep(task.id, task.path, FORGOTTEN)

    # ------------------------------------------------------------ records

    def _recorded(self, task_id: str) -> Sequence[Write]:
        run = self._run
        kept: Sequence[Write] = self.kept.get(task_id, ())
        if not kept and run.hand_back:
            kept = run.pending.get(task_id) or (run.left.result(task_id) if run.left else ())
        return kept

    def _adopted(self, task: Task) -> Sequence[Write]:
        """Return what is recorded of a call under a name that its task had before."""
        for name in task.node.adopts:
            kept = self._recorded(asked_id(task, self._place, name))
            if outputs(kept):
                return kept
        return ()

    def _of_other_code(
        self, task: Task, was: CallRecord, now: CallRecord, recorded: Sequence[Write]
    ) -> Sequence[Write]:
        """Return what is used again where what is *recorded* was made by other code."""
        run = self._run
        match task.node.on_code_change or run.options.on_code_change:
            case "error":
                raise CodeChangedError(now.name, now.text, was.code, now.code)
            case "rerun":
                task.id = ids.task_id(task.id, now.code)
                task.namespace = f"{task.namespace.rpartition(':')[0]}:{task.id}"
                return self._recorded(task.id)
        if not outputs(recorded):
            # It failed: perhaps that is why the code is another one.
            self.forget(task)
            return ()
        run.going_on.of_other_code[now.name] += 1
        run.going_on.codes[now.name] = was.code, now.code
        return recorded

    # ------------------------------------------------------------ chance

    def _check_chance(self, task: Task, record: CallRecord) -> None:
        """Refuse a call that its body, being what it was, should not have come to."""
        assert task.parent is not None
        place = record.caller, record.place
        was = self._planned.get(place) or self._at(task, record)
        if self.may_repeat(task.parent):
            self._planned[place] = record
        if (
            was is None
            or record.place == NOWHERE
            or was[:2] == record[:2]
            or was[:2] in task.parent.equal_calls
            # Coroutines that run side by side may take turns in another order.
            or any(step.is_async for step in task.parent.node.steps)
        ):
            return
        raise ReplayMismatchError(_shown(was), _shown(record))

    def _at(self, task: Task, record: CallRecord) -> CallRecord | None:
        """Return the record of a call at this place of a body of this code and input."""
        run = self._run
        if not run.hand_back:
            return None
        if self._placed is None:
            found = filter(None, map(_record_in, run.pending.values()))
            self._placed = {(each.caller, each.place): each for each in found}
        was = self._placed.get((record.caller, record.place))
        if was is None and run.left is not None:
            was = _record_in(run.left.record_at(task.path))
        if was is None or (was.caller, was.place) == (record.caller, record.place):
            return was
        run.going_on.is_changed |= was.caller != record.caller
        return None

    def count_not_asked(self) -> None:
        """Count the recorded calls that bodies which have changed did not ask for again."""
        run = self._run
        if not run.going_on.is_changed:
            return
        kept = chain(run.pending.values(), run.left.records() if run.left else ())
        records = [record for each in kept if (record := _record_in(each)) is not None]
        # What a recorded call called itself is not asked for where that is answered.
        callers = {digest_of_call(record) for record in records}
        # Without code are questions of the library itself, as those of `imap`.
        asked = sum(each.code != "" and each.caller not in callers for each in records)
        run.going_on.not_asked = asked - self._asked


def _record_in(kept: Sequence[Write]) -> CallRecord | None:
    """Return which call it is that *kept* was written for."""
    value: Any = dict(kept).get(CALLED)
    return None if value is None else CallRecord(*value)


def _shown(record: CallRecord) -> str:
    """Return a call as a message shows it, with the digests that tell it from others."""
    return f"{record.text}   [code {record.code[:8]}, arguments {record.arguments[:8]}]"
