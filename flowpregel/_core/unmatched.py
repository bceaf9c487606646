"""Calls that no recorded one fits: finished work that is going to be repeated, told
before it is.

The first call of a task that is not recorded, in a run that goes on:

====================================  ==================================================
a recorded call of the task           then the call
====================================  ==================================================
was asked for before                  is merely a new one
does not stand in its place           is one that was added
stands there, the body's code and     is refused elsewhere: it is not deterministic
its input being the same
stands there, the input being         may be a new one in front of those that are
another, the task's code the same     recorded, which may still come
stands there otherwise                is held for `effects.HOLD`; if none has been asked
                                      for by then, none fits
====================================  ==================================================

A call of another task is treated as the last row says if it has the place and the
arguments of a recorded one whose task the body names no more: that was renamed, merged,
or wrapped by a decorator.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from flowpregel._core import ids
from flowpregel._core.chance import record_in
from flowpregel._core.ids import CODE_DIGITS, NOWHERE, CallRecord
from flowpregel._core.provenance import is_named, tasks_of
from flowpregel._core.records import Task
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel.errors import UnmatchedCallsError


def unmatched(run: Run, caller: Task, record: CallRecord) -> UnmatchedCallsError | None:
    """Return what the user must know before the call of *record* is made; None:
    nothing.
    """
    goes_on = run.hand_back and (run.pending or run.lazy_results is not None)
    if not goes_on or run.options.on_unmatched is None or caller.record is not None:
        return None
    if (
        record.place == NOWHERE
        or not record.code
        or record.name in run.replay_report.fitted
    ):
        return None
    known = run.replay_report.unmatched
    if record.name not in known:
        known[record.name] = _first_unmatched(run, caller, record)
    return known[record.name]


def still_unmatched(run: Run, name: str) -> UnmatchedCallsError | None:
    """Return what `unmatched` found of calls of the task *name*, unless a recorded one
    fits now.
    """
    error = run.replay_report.unmatched.get(name)
    if error is None or {name, error.task} & run.replay_report.fitted:
        return None
    return error


def held_calls(name: str, waiting: Iterable[Task]) -> list[Task]:
    """Return which of the *waiting* tasks are calls of the task *name* that are
    held.
    """
    return [
        task
        for task in waiting
        if task.record is not None
        and task.record.name == name
        and task.first_started is None
        and not task.is_busy
    ]


def notice_of(error: UnmatchedCallsError, name: str) -> str:
    """Return the notice before a call of the task *name* is made."""
    text = f"{error.summary}; Ctrl-C now, or on_unmatched='error'"
    if error.task == name.removesuffix(".map"):
        return text
    return f"{text}; adopts={error.task!r} if that is the old name of the task"


def _first_unmatched(
    run: Run, caller: Task, record: CallRecord
) -> UnmatchedCallsError | None:
    """Return the error for the first call of a task that is not recorded, if none
    fits.
    """
    was = _other_at(run, caller, record)
    if was is None or was.caller == record.caller:
        return None
    if was.name == record.name:
        is_same_input = was.caller[CODE_DIGITS:] == record.caller[CODE_DIGITS:]
        if not is_same_input and was.code == record.code:
            return None
    elif not _is_replaced(run, caller, was, record):
        return None
    kept = chain(
        filter(outputs, run.pending.values()),
        run.lazy_results.records() if run.lazy_results else (),
    )
    count = sum(
        each is not None and each.name == was.name for each in map(record_in, kept)
    )
    return UnmatchedCallsError(_task_name(was), count, was.text, record.text)


def _is_replaced(run: Run, caller: Task, was: CallRecord, record: CallRecord) -> bool:
    """Return whether the call of *record* is what became of a recorded call of another
    task.
    """
    if was.name in run.replay_report.fitted:
        return False
    # single calls have become chunks, or the reverse
    if _task_name(was) == _task_name(record):
        return True
    if was.arguments != record.arguments:
        return False
    return not any(is_named(task, was.name) for task in tasks_of(caller.node))


def _task_name(record: CallRecord) -> str:
    """Return the name of the task of a call, which may be one of a chunk of items."""
    return record.name.removesuffix(".map")


def _other_at(run: Run, caller: Task, record: CallRecord) -> CallRecord | None:
    """Return the finished call that is recorded at this place of a body of any code and
    input.
    """
    if run.lazy_results is not None:
        path = ids.call_path(caller.path, caller.body.call_count - 1)
        if (was := record_in(run.lazy_results.record_at(path))) is not None:
            return was
    for kept in run.pending.values():
        was = record_in(kept)
        if was is not None and was.place == record.place and outputs(kept):
            return was
    return None
