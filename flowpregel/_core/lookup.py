"""The lookups of a recorded call. Each lookup is tried if the lookup before it finds
nothing.

====================================  =================================================
lookup by                             finds
====================================  =================================================
the key of the call                   a call with this key; among equal calls, a call
                                      with the same code is preferred
the names that the task has adopted   a call that was recorded before the task was
                                      renamed, became a method, or was wrapped
the arguments without fields that     a call that was recorded before the classes of
have their default                    the arguments gained these fields
====================================  =================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from flowpregel._core import ids
from flowpregel._core.body_calls import BodyCalls
from flowpregel._core.effects import Call
from flowpregel._core.equal_calls import CallGroup
from flowpregel._core.ids import CallRecord
from flowpregel._core.records import CALLED, Task, Write
from flowpregel._core.replay import record_in
from flowpregel._core.run import Run
from flowpregel._core.spelling import Spelled, spelled_by_node
from flowpregel._core.stream_events import finished_writes
from flowpregel._pickling.digest import earlier_digests, has_plain_values
from flowpregel.errors import ConfigurationError

MOST_VAIN = 1_000
"""The number of successive lookups under a digest of arguments with fewer fields (see
the last row of the table) that may fail for a task. After that, calls of the task are
not looked up in this way again.
"""


def find_recorded(
    run: Run,
    caller: Task,
    call: Call,
    task_id: str,
    record: CallRecord,
) -> Sequence[Write]:
    """Return the recorded writes of a call that *caller* makes, or an empty sequence if
    there are none.
    """
    writes = recorded_writes(run, caller.attempt.body, task_id)
    if writes:
        return _of_same_code(run, caller, record, writes)
    if run.replay.is_empty():
        return ()
    writes = _adopted(run, caller, call, record)
    return writes or _with_fewer_fields(run, caller, call, record)


def _of_same_code(
    run: Run,
    caller: Task,
    record: CallRecord,
    own_writes: Sequence[Write],
) -> Sequence[Write]:
    """Return the recorded writes of a call that is equal to *record*.

    Equal calls are numbered in their order. A call that waits for a value gets its
    number when the value arrives, and in a resumed run, values may arrive in another
    order. Then the record of a call is found by the call's code.

    Args:
        run: The run of the calling body.
        caller: The task whose body makes the call.
        record: The last call that the body has made.
        own_writes: The writes recorded under the number of the call.
    """
    sequence = caller.attempt.body.sequence
    group = record.name, record.arguments
    number = sequence.occurrences[group] - 1
    reordered = sequence.reordered
    is_taken = reordered.is_taken(group, number)
    if not is_taken and not _has_other_code(own_writes, record):
        return own_writes
    for other in reordered.candidates(group, number):
        writes = _equal_call(run, caller, group, other)
        if not writes:
            break
        if finished_writes(writes) and not _has_other_code(writes, record):
            reordered.take(group, number, other)
            return writes
    if not is_taken:
        return own_writes
    return _equal_call(run, caller, group, reordered.take_skipped(group))


def _equal_call(
    run: Run,
    caller: Task,
    group: CallGroup,
    number: int,
) -> Sequence[Write]:
    """Return the recorded writes of the call that has this *number* in its *group* of
    equal calls.
    """
    task_id = id_of_equal(run, caller, group, number)
    return recorded_writes(run, caller.attempt.body, task_id)


def id_of_equal(
    run: Run,
    caller: Task,
    group: CallGroup,
    number: int,
) -> str:
    """Return the task id of the call of *caller* that has this *number* in its *group*
    of equal calls.
    """
    cursor = run.cursor
    step_parts = cursor.checkpoint_id, run.options.namespace, cursor.step, caller.id
    return ids.task_id(*step_parts, *group, number)


def _has_other_code(writes: Sequence[Write], record: CallRecord) -> bool:
    """Return whether the recorded *writes* are those of a finished call whose code
    differs from the code in *record*.
    """
    recorded = record_in(writes)
    if recorded is None or recorded.code == record.code:
        return False
    return bool(finished_writes(writes))


def recorded_writes(
    run: Run,
    body: BodyCalls,
    task_id: str,
) -> Sequence[Write]:
    """Return the recorded writes of a call of *body*, or an empty sequence if there are
    none.
    """
    writes = body.recorded.get(task_id, ())
    replay = run.replay
    if writes or not replay.reuses_writes:
        return writes
    pending = replay.pending.get(task_id)
    if pending:
        return pending
    if replay.lazy_results is None:
        return ()
    return replay.lazy_results.result(task_id)


def _adopted(
    run: Run,
    caller: Task,
    call: Call,
    record: CallRecord,
) -> Sequence[Write]:
    """Return the writes recorded for a call when its task had another name."""
    number = caller.attempt.body.sequence.occurrences[record.name, record.arguments] - 1
    for name in call.node.adopts:
        assert call.key is not None
        for arguments in (record.arguments, *call.key.earlier):
            writes = _equal_call(run, caller, (name, arguments), number)
            if finished_writes(writes):
                return writes
    return ()


def _with_fewer_fields(
    run: Run,
    caller: Task,
    call: Call,
    record: CallRecord,
) -> Sequence[Write]:
    """Return the recorded writes of a call whose arguments had fewer fields when the
    call was recorded.

    The record then gets the present digest, so that it no longer matches if a default
    is edited later.
    """
    vain = run.replay.vain_lookups
    if vain[record.name] >= MOST_VAIN or not _may_have_gained_fields(run, caller, call):
        return ()
    sequence = caller.attempt.body.sequence
    number = sequence.occurrences[record.name, record.arguments] - 1
    for arguments in _digests_with_fewer_fields(call):
        task_id = id_of_equal(run, caller, (record.name, arguments), number)
        writes = recorded_writes(run, caller.attempt.body, task_id)
        recorded = record_in(writes)
        if recorded is None or not finished_writes(writes):
            continue
        if recorded.arguments not in (arguments, record.arguments):
            continue
        if recorded.arguments == arguments:
            path = ids.call_path(caller.path, sequence.call_count - 1)
            updated = recorded._replace(arguments=record.arguments)
            run.store_writes(task_id, path, ((CALLED, tuple(updated)),))
        vain[record.name] = 0
        return writes
    vain[record.name] += 1
    return ()


def _may_have_gained_fields(
    run: Run,
    caller: Task,
    call: Call,
) -> bool:
    """Return whether *call*, for which no record was found, may have been recorded
    under a digest of arguments with fewer fields.
    """
    replay = run.replay
    if not replay.reuses_writes or replay.is_empty():
        return False
    # Arguments that were pickled at the call are unpickled here. This runs code of
    # their classes, which may raise any error. Then False is returned.
    with suppress(Exception):
        if not has_plain_values(call.arguments.args, call.arguments.kwargs):
            if replay.report.is_changed or replay.lazy_results is None:
                return True
            # So far the body has made the same calls as in the earlier run. So *call*
            # was recorded only if there is a record at its position.
            index = caller.attempt.body.sequence.call_count - 1
            path = ids.call_path(caller.path, index)
            return bool(replay.lazy_results.record_at(path))
    return False


def _digests_with_fewer_fields(call: Call) -> Iterator[str]:
    """Yield the digests that the arguments of *call* may have had before their classes
    gained fields.
    """
    if call.node.home.endswith(".map"):
        _, items = call.arguments.args
        columns = tuple(zip(*items, strict=True))
        spelled: Spelled = columns, {}
    else:
        spelled = spelled_by_node(call.node, call.arguments)
    args, kwargs = spelled
    # Arguments that are nested too deeply have no digest, so none is yielded.
    with suppress(ConfigurationError):
        yield from earlier_digests((args, dict(kwargs)), "the arguments")
