"""Calls that no recorded call fits: the user gets a notice before finished work is
repeated.

The first call of a task without a record, in a run that resumes:

====================================  ==================================================
the recorded calls of the task        effect
====================================  ==================================================
one of them was made again before     the call is new, and runs
none has the position of the call     the call was added to the body, and runs
one has the position, and the code    `check_determinism` refuses the call, because the
and the input of the body are         body is not deterministic
unchanged
one has the position, the input of    the call runs: it may be a new call in front of
the body has changed, and the code    recorded calls, which may still follow
of the task has not
one has the position, in all other    the call is held for `effects.HOLD`; if no
cases                                 recorded call of the task is made by then, the
                                      call fits no record
====================================  ==================================================

A call of another task is treated as in the last row if it has the position and the
arguments of a recorded call whose task the body no longer names. That task was renamed,
merged, or wrapped by a decorator.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowpregel._core import ids
from flowpregel._core.ids import CODE_DIGITS, NOWHERE, CallRecord
from flowpregel._core.provenance import is_named, tasks_of
from flowpregel._core.records import Task
from flowpregel._core.replay import record_in
from flowpregel._core.run import Run
from flowpregel._core.stream_events import finished_writes
from flowpregel.errors import UnmatchedCallsError


def unmatched(
    run: Run,
    caller: Task,
    record: CallRecord,
) -> UnmatchedCallsError | None:
    """Return the error for the new call *record*, if it seems to replace a recorded
    call. No record was found for the new call itself.

    This is called only if the thread has stored writes of an earlier run.

    Returns:
        None if the call may run at once.
    """
    replay = run.replay
    if not replay.reuses_writes:
        return None
    if run.options.on_unmatched is None or caller.record is not None:
        return None
    if record.position == NOWHERE or not record.code or record.name in replay.matched:
        return None
    known = replay.unmatched
    if record.name not in known:
        known[record.name] = _first_unmatched(run, caller, record)
    return known[record.name]


def still_unmatched(run: Run, name: str) -> UnmatchedCallsError | None:
    """Return the error that `unmatched` found for calls of the task *name*.

    Returns:
        None if a recorded call of the task has been made since.
    """
    error = run.replay.unmatched.get(name)
    if error is None or {name, error.task} & run.replay.matched:
        return None
    return error


def held_calls(name: str, waiting: Iterable[Task]) -> list[Task]:
    """Return the held calls of the task *name* among the *waiting* tasks: those that
    fit no record, and wait in case other calls of the task fit.
    """
    held = []
    for task in waiting:
        record = task.record
        if record is None or record.name != name:
            continue
        cache = task.attempt.cache
        is_busy = cache is not None and cache.is_busy
        if task.attempt.first_started is None and not is_busy:
            held.append(task)
    return held


def notice_of(error: UnmatchedCallsError, name: str) -> str:
    """Return the notice that the user gets before a call of the task *name* is made."""
    text = (
        f"{error.summary}; to stop before the new calls run, press Ctrl-C now, or "
        "pass on_unmatched='error'"
    )
    if error.task == name.removesuffix(".map"):
        return text
    return f"{text}; if that is the old name of the task, pass adopts={error.task!r}"


def _first_unmatched(
    run: Run,
    caller: Task,
    record: CallRecord,
) -> UnmatchedCallsError | None:
    """Return the error for a task's first call that has no record, if this call seems
    to replace the recorded call at the same position.
    """
    recorded = _other_at(run, caller, record)
    if recorded is None or recorded.caller == record.caller:
        return None
    if recorded.name == record.name:
        old_input = recorded.caller[CODE_DIGITS:]
        is_same_input = old_input == record.caller[CODE_DIGITS:]
        if not is_same_input and recorded.code == record.code:
            return None
    elif not _is_replaced(run, caller, recorded, record):
        return None
    count = _count_finished(run, recorded.name)
    return UnmatchedCallsError(_task_name(recorded), count, recorded.text, record.text)


def _count_finished(run: Run, name: str) -> int:
    """Return the number of finished recorded calls of the task *name*."""
    count = 0
    for writes in run.replay.pending.values():
        record = record_in(writes)
        if record is not None and record.name == name and finished_writes(writes):
            count += 1
    for record in run.replay.lazy_calls():
        if record.name == name:
            count += 1
    return count


def _is_replaced(
    run: Run,
    caller: Task,
    recorded: CallRecord,
    record: CallRecord,
) -> bool:
    """Return whether the call that *record* describes replaces the recorded call of
    another task.
    """
    if recorded.name in run.replay.matched:
        return False
    # The records of single calls and of chunks have different names, so *recorded* and
    # *record* may be of the same task. Then single calls have become chunks of items,
    # or chunks have become single calls.
    if _task_name(recorded) == _task_name(record):
        return True
    if recorded.arguments != record.arguments:
        return False
    return not any(is_named(task, recorded.name) for task in tasks_of(caller.node))


def _task_name(record: CallRecord) -> str:
    """Return the name of the task of a call, which may be the call of a chunk
    of items.
    """
    return record.name.removesuffix(".map")


def _other_at(
    run: Run,
    caller: Task,
    record: CallRecord,
) -> CallRecord | None:
    """Return the finished call that is recorded at the position of *record*. The body
    that made it may have had other code and input.
    """
    index = caller.attempt.body.sequence.call_count - 1
    recorded = run.replay.lazy_call_at(ids.call_path(caller.path, index))
    if recorded is not None:
        return recorded
    for writes in run.replay.pending.values():
        recorded = record_in(writes)
        if recorded is None or recorded.position != record.position:
            continue
        if finished_writes(writes):
            return recorded
    return None
