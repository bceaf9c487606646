"""The look-ups of a recorded call: each is tried where the one before finds nothing.

==========================================  ===========================================
what is looked up                           finds a call
==========================================  ===========================================
what the call asks for                      that asked for just that; of equal calls one
                                            of the same code, if there is one
under the names that the task has adopted   of the task before it was renamed, became a
                                            method, or was wrapped
without fields that have their defaults     from before classes of its arguments gained
                                            these
==========================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from flowpregel._core import ids
from flowpregel._core.chance import record_in
from flowpregel._core.digest import earlier_digests, has_plain_arguments
from flowpregel._core.effects import BodyCalls, Call
from flowpregel._core.ids import CallRecord
from flowpregel._core.records import CALLED, Task, Write
from flowpregel._core.run_state import Run
from flowpregel._core.spelling import Spelled, spelled_by_node
from flowpregel._core.stream_events import outputs
from flowpregel.errors import ConfigurationError

MOST_VAIN = 1_000
"""After so many calls of a task without one that fits, no more are looked up without
fields that its arguments may have gained.
"""


def find_recorded(
    run: Run, caller: Task, call: Call, identity: str, record: CallRecord
) -> Sequence[Write]:
    """Return what is recorded of a call of *caller*; empty: nothing."""
    own_writes = recorded_of(run, caller.body, identity)
    if own_writes:
        return _of_same_code(run, caller, record, own_writes)
    return _adopted(run, caller, call, record) or _with_fewer_fields(
        run, caller, call, record
    )


def _of_same_code(
    run: Run, caller: Task, record: CallRecord, own_writes: Sequence[Write]
) -> Sequence[Write]:
    """Return what is recorded of a call that is equal to *record*.

    Equal calls are known by their order. One that waits for a value has its number when
    that is there, which may be sooner at a resume; then its code finds its record.

    Args:
        run: The run.
        caller: The task of the body.
        record: The call, which is the last one that the body has made.
        own_writes: What is recorded under the number of the call.
    """
    body = caller.body
    question = record[:2]
    number = body.occurrences[question] - 1
    reordered = body.reordered
    is_taken = reordered.is_taken(question, number)
    if not is_taken and not _has_other_code(own_writes, record):
        return own_writes
    for other in reordered.candidates(question, number):
        writes = recorded_of(run, body, _id_of_equal(run, caller, question, other))
        if not writes:
            break
        if outputs(writes) and not _has_other_code(writes, record):
            reordered.note(question, number, other)
            return writes
    if not is_taken:
        return own_writes
    other = reordered.take_skipped(question)
    return recorded_of(run, body, _id_of_equal(run, caller, question, other))


def _id_of_equal(run: Run, caller: Task, question: tuple[str, str], number: int) -> str:
    """Return the id of the call of *caller* with a *number* among equal ones."""
    step = run.checkpoint_id, run.options.namespace, run.step, caller.id
    return ids.task_id(*step, *question, number)


def _has_other_code(writes: Sequence[Write], record: CallRecord) -> bool:
    """Return whether a call that has finished is recorded with other code."""
    recorded = record_in(writes)
    if recorded is None or recorded.code == record.code:
        return False
    return bool(outputs(writes))


def recorded_of(run: Run, body: BodyCalls, task_id: str) -> Sequence[Write]:
    """Return what is recorded of a call of *body*."""
    kept = body.recorded.get(task_id, ())
    if not kept and run.hand_back:
        kept = run.pending.get(task_id) or (
            run.lazy_results.result(task_id) if run.lazy_results else ()
        )
    return kept


def _adopted(run: Run, caller: Task, call: Call, record: CallRecord) -> Sequence[Write]:
    """Return what is recorded of a call under a name that its task had before."""
    equal = caller.body.occurrences[record[:2]] - 1
    for name in call.node.adopts:
        assert call.asked is not None
        for arguments in (record.arguments, *call.asked.earlier):
            question = name, arguments
            kept = recorded_of(
                run, caller.body, _id_of_equal(run, caller, question, equal)
            )
            if outputs(kept):
                return kept
    return ()


def _with_fewer_fields(
    run: Run, caller: Task, call: Call, record: CallRecord
) -> Sequence[Write]:
    """Return what is recorded of a call from before classes of its arguments gained
    fields.

    The record then takes the present digest: where a default is edited later, it fits
    no more.
    """
    vain = run.replay_report.vain_lookups
    if vain[record.name] >= MOST_VAIN or not _may_have_gained_fields(run, caller, call):
        return ()
    equal = caller.body.occurrences[record[:2]] - 1
    for arguments in _digests_with_fewer_fields(call):
        task_id = _id_of_equal(run, caller, (record.name, arguments), equal)
        kept = recorded_of(run, caller.body, task_id)
        was = record_in(kept)
        if (
            was is None
            or not outputs(kept)
            or was.arguments not in (arguments, record.arguments)
        ):
            continue
        if was.arguments == arguments:
            path = ids.call_path(caller.path, caller.body.call_count - 1)
            now = was._replace(arguments=record.arguments)
            run.keep(task_id, path, ((CALLED, tuple(now)),))
        vain[record.name] = 0
        return kept
    vain[record.name] += 1
    return ()


def _may_have_gained_fields(run: Run, caller: Task, call: Call) -> bool:
    """Return whether *call*, of which nothing is recorded, may be one that is
    recorded.
    """
    if not run.hand_back or (run.lazy_results is None and not run.pending):
        return False
    # captured arguments are unpickled: their classes may raise
    with suppress(Exception):
        if not has_plain_arguments(call.arguments):
            # Where nothing has changed so far, another call has to be recorded in its
            # place.
            path = ids.call_path(caller.path, caller.body.call_count - 1)
            return (
                run.replay_report.is_changed
                or run.lazy_results is None
                or bool(run.lazy_results.record_at(path))
            )
    return False


def _digests_with_fewer_fields(call: Call) -> Iterator[str]:
    """Yield the digests that the arguments of *call* may have had before."""
    if call.node.home.endswith(".map"):
        _, items = call.arguments.args
        spelled: Spelled = tuple(zip(*items, strict=True)), {}
    else:
        spelled = spelled_by_node(call.node, call.arguments)
    args, kwargs = spelled
    with suppress(ConfigurationError):  # nested too deeply to be looked at
        yield from earlier_digests((args, dict(kwargs)), "the arguments")
