"""The recorded calls of bodies that run again, and the call that each record answers.

A call is identified by its key: the caller, the name of the task, the content of the
arguments, and the number of the call among equal calls. The position of the call in the
body is recorded too. It shows whether an unrecorded call comes from changed code, or
from code that is not deterministic.

======================================  =============================================
the call of the body                    effect
======================================  =============================================
is recorded                             the record answers the call
is recorded, with fewer fields in       the record answers the call (see `lookup`)
the arguments
is recorded, but by other code          ``on_code_change`` decides
is not recorded, and the code and the   `ReplayMismatchError`, because the body is
input of the body are unchanged         not deterministic
is not recorded, and the code or the    the call runs
input of the body has changed
======================================  =============================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowpregel import errors
from flowpregel._core import ids
from flowpregel._core.body_calls import BodyCalls
from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.determinism import check_determinism, report_change
from flowpregel._core.effects import Call
from flowpregel._core.equal_calls import CallGroup
from flowpregel._core.files import USED_FILE
from flowpregel._core.ids import CODE_DIGITS, CallRecord
from flowpregel._core.lookup import find_recorded, id_of_equal, recorded_writes
from flowpregel._core.provenance import code_of_node
from flowpregel._core.records import (
    CALLED,
    ERROR,
    SAVED,
    Outcome,
    Raised,
    Returned,
    Task,
    Write,
)
from flowpregel._core.replay import record_in
from flowpregel._core.run import Run
from flowpregel._core.stream_events import finished_writes
from flowpregel._core.unreadable import check_policy, lost_result
from flowpregel._pickling.copies import private_copy
from flowpregel._pickling.digest import digest_of
from flowpregel.errors import (
    CodeChangedError,
    ConfigurationError,
    InputMismatchError,
    ReplayMismatchError,
    ValueEncodingError,
)

REFUSALS = CodeChangedError, InputMismatchError, ReplayMismatchError, ValueEncodingError
"""The errors with which a call fails if its record must not be used as the result. The
record is not changed.
"""
FORGOTTEN: tuple[Write, ...] = ((ERROR, None), (CALLED, None))
"""The writes that replace a recorded failure, so that the call is tried again."""


def digest_of_caller(caller: Task) -> str:
    """Return a digest of the code and the input of a body (the code of a workflow or
    task), on which the body's calls depend.
    """
    record = caller.record
    if record is not None:
        return digest_of_call(record)
    try:
        content = digest_of(caller.input, "the input", strict=False)
    except ConfigurationError:
        # An input that is nested too deeply has no digest, so an empty string replaces
        # the digest.
        content = ""
    input_digest = ids.text_digest(caller.path, content)[CODE_DIGITS:]
    return code_of_node(caller.node) + input_digest


def digest_of_call(record: CallRecord) -> str:
    """Return the same digest as `digest_of_caller`, for a body that is itself a
    call.
    """
    return ids.text_digest(record.caller, record.name, record.arguments, record.code)


def answer_from_record(
    run: Run,
    caller: Task,
    call: Call,
    task_id: str,
    record: CallRecord,
) -> tuple[str, Outcome | None]:
    """Return the id of a call, and the outcome that is recorded for the call. The
    outcome is None if the call must run.

    Args:
        run: The run of the calling body.
        caller: The task whose body makes the call.
        call: The event that the body has made the call.
        task_id: The id that the call has if the code of the called task has not
            changed.
        record: The key of the call.

    Raises:
        CodeChangedError: Other code made the recorded result, and the policy refuses
            that.
        ReplayMismatchError: The body is not deterministic.
        ValueEncodingError: The recorded result cannot be read, and is not computed
            again.
    """
    body: BodyCalls = caller.attempt.body
    report = run.replay.report
    writes = find_recorded(run, caller, call, task_id, record)
    recorded = record_in(writes)
    if recorded is None:
        check_determinism(run, caller, record)
        return task_id, None
    # Calls inside a recorded call are not counted, because they are not made again if
    # the result of the recorded call is used. A call that this run made in an earlier
    # attempt of the body is not counted either.
    is_of_earlier_run = task_id not in body.recorded
    is_counted = caller.record is None and record.code != ""
    if is_of_earlier_run and is_counted:
        body.replayed += 1
    run.replay.matched.add(record.name)
    report_change(run, caller, recorded, record)
    source = recorded
    if recorded.code != record.code:
        task_id, source, writes = _of_other_code(
            run, caller, call, task_id, record, writes
        )
    lost = lost_result(writes)
    if lost is not None:
        task_id, writes = _in_place_of_lost(run, body, task_id, lost)
        source = record_in(writes) or record
    if source is not recorded:
        body.has_new_result = True
    if body.may_repeat:
        writes = private_copy(tuple(writes))
    results = tuple(finished_writes(writes))
    if results:
        if not call.node.hidden:
            report.answered += 1
        count_use(run, body, record, source.code)
        return task_id, Returned(results)
    return task_id, _recorded_failure(writes, is_same=recorded == record)


def _of_other_code(
    run: Run,
    caller: Task,
    call: Call,
    task_id: str,
    record: CallRecord,
    writes: Sequence[Write],
) -> tuple[str, CallRecord, Sequence[Write]]:
    """Return the id, the record and the writes that apply to a call whose code differs
    from the recorded code, as ``on_code_change`` requires.
    """
    recorded = record_in(writes)
    assert recorded is not None
    body: BodyCalls = caller.attempt.body
    policy = call.node.on_code_change or run.options.on_code_change
    if policy == "error":
        raise CodeChangedError(record.name, record.text, recorded.code, record.code)
    if policy == "rerun":
        new_id = ids.task_id(task_id, record.code)
        new_writes = recorded_writes(run, body, new_id)
        if run.options.adopts_input and not new_writes:
            # The user has accepted a changed input (`adopts_input`), and may not expect
            # that this call runs again because its code was edited too. So the call is
            # counted for a notice.
            report = run.replay.report
            report.recomputed[record.name] += 1
            report.codes[record.name] = recorded.code, record.code
        return new_id, record, new_writes
    if not finished_writes(writes):
        # The recorded call failed, and the code may have been changed to fix the
        # failure, so the call is made again.
        path = ids.call_path(caller.path, body.sequence.call_count - 1)
        forget(run, body, task_id, path)
        writes = ()
    return task_id, recorded, writes


def _in_place_of_lost(
    run: Run,
    body: BodyCalls,
    task_id: str,
    lost: ValueEncodingError,
) -> tuple[str, Sequence[Write]]:
    """Return the id of the call that is made in place of a call with an unreadable
    result, and the recorded writes under that id, which may be empty.

    Raises:
        ValueEncodingError: The policy of the run refuses to make the call again.
    """
    # The repeated call gets a different id, so that the unreadable record is not
    # overwritten.
    new_id = _id_in_place_of_lost(task_id)
    writes = recorded_writes(run, body, new_id)
    if not writes:
        check_policy(run.options.on_unreadable, lost)
    return new_id, writes


def _id_in_place_of_lost(task_id: str) -> str:
    """Return the id of the call that is made in place of a call with an unreadable
    result.
    """
    return ids.task_id(task_id, "in place of what cannot be read")


def _recorded_failure(writes: Sequence[Write], *, is_same: bool) -> Raised | None:
    """Return the recorded failure among *writes*, or None if the call is made again."""
    error = dict(writes).get(ERROR)
    if not isinstance(error, BaseException):
        return None
    if isinstance(error, errors.TaskCancelled) and not is_same:
        # The earlier run cancelled the call, but the changed body may need the result,
        # so the call is made again.
        return None
    saved = dict(writes).get(SAVED)
    items = saved if isinstance(saved, ItemOutcomes) else None
    return Raised(error, items)


def count_use(
    run: Run,
    body: BodyCalls,
    record: CallRecord,
    code: str,
) -> None:
    """Count the use of a result for the call of *record*. *code* is the digest of the
    code that made the result, or will make it.
    """
    name = record.name
    report = run.replay.report
    used = body.sequence.used
    for path, digest, size in record.files:
        used[USED_FILE + path, digest] = size
    # No code is recorded for calls that the library itself makes, such as those of
    # `imap`. They are not counted.
    if code:
        used[name, code] += 1
        report.used[name, code] += 1
    if code != record.code:
        report.of_other_code[name] += 1
        report.codes[name] = code, record.code


def forget(
    run: Run,
    body: BodyCalls,
    task_id: str,
    path: str,
) -> None:
    """Drop the recorded failure of a call of *body*, so that the call is tried
    again.
    """
    body.recorded.pop(task_id, None)
    pending = run.replay.pending
    before = pending.get(task_id)
    if before:
        pending[task_id] = [write for write in before if write[0] != ERROR]
    run.store_writes(task_id, path, FORGOTTEN)


def count_unreplayed(run: Run, tasks: Sequence[Task]) -> None:
    """Count the recorded calls that the bodies of *tasks* did not make again in their
    last attempts.
    """
    recorded = list(run.replay.recorded_calls())
    # Calls inside a recorded call are left out: they are not made again if the result
    # of that recorded call is used.
    callers = {digest_of_call(record) for record in recorded}
    report = run.replay.report
    for record in recorded:
        # Calls that the library itself makes, such as those of `imap`, have no code.
        # They are not counted.
        if record.code != "" and record.caller not in callers:
            report.unreplayed += 1
    for task in tasks:
        body: BodyCalls | None = task.attempt.body
        if body is not None:
            report.unreplayed -= body.replayed


def end_replay(run: Run, tasks: Sequence[Task]) -> None:
    """Drop the recorded failures of calls that the bodies of *tasks* did not make
    again. If the code or the input of a body has changed, also count the recorded calls
    that were not made again.
    """
    if run.replay.report.is_changed:
        count_unreplayed(run, tasks)
    _forget_unreplayed_failures(run, tasks)


def _forget_unreplayed_failures(run: Run, tasks: Sequence[Task]) -> None:
    """Drop the recorded failures of calls that the bodies of *tasks* did not make again
    in their last attempts.

    In an earlier run, the body caught these failures. The present body does not make
    the calls, so the failures do not concern it. If a later body makes such a call, the
    call is tried again.
    """
    failed = _recorded_failures(run)
    if not failed or not run.replay.reuses_writes:
        return
    codes = _codes_by_group(failed.values())
    recorded = Counter(
        (record.name, record.arguments) for record in run.replay.recorded_calls()
    )
    for task in tasks:
        # A body that ended in an earlier run was not run by this one, so it could not
        # make calls again.
        if task.attempt.span is None:
            continue
        for task_id in _unreplayed_ids(run, task, recorded, codes):
            if task_id in failed:
                position = max(0, failed[task_id].position)
                path = ids.call_path(task.path, position)
                run.store_writes(task_id, path, FORGOTTEN)


def _unreplayed_ids(
    run: Run,
    caller: Task,
    recorded: Counter[CallGroup],
    codes: Mapping[CallGroup, Iterable[str]],
) -> Iterator[str]:
    """Yield the ids that recorded calls have if *caller* made them in an earlier run,
    but not in this one.

    Args:
        run: The run of the body.
        caller: The task whose body has ended.
        recorded: The number of recorded calls in each group of equal calls.
        codes: The groups to search, each with the digests of the code with which its
            calls may have been repeated.
    """
    body: BodyCalls | None = caller.attempt.body
    occurrences = {} if body is None else body.sequence.occurrences
    for group, codes_of_group in codes.items():
        for number in range(occurrences.get(group, 0), recorded[group]):
            task_id = id_of_equal(run, caller, group, number)
            yield from _ids_of_repeats(task_id, codes_of_group)


def _codes_by_group(failed: Iterable[CallRecord]) -> dict[CallGroup, set[str]]:
    """Return the digests of the code of *failed* calls, by the group of equal calls."""
    codes: dict[CallGroup, set[str]] = {}
    for record in failed:
        codes.setdefault((record.name, record.arguments), set()).add(record.code)
    return codes


def _ids_of_repeats(task_id: str, codes: Iterable[str]) -> Iterator[str]:
    """Yield the id of a call, and the ids that the call has if it was repeated: with
    code that has one of the digests *codes*, or in place of a call whose result cannot
    be read.
    """
    for first_id in (task_id, *(ids.task_id(task_id, code) for code in codes)):
        yield first_id
        yield _id_in_place_of_lost(first_id)


def _recorded_failures(run: Run) -> dict[str, CallRecord]:
    """Return the recorded calls that failed, by task id."""
    failed: dict[str, CallRecord] = {}
    for task_id, writes in run.replay.pending.items():
        values = dict(writes)
        error = values.get(ERROR)
        # A call that was cancelled has not failed.
        if error is None or isinstance(error, errors.TaskCancelled):
            continue
        record = record_in(writes)
        if record is not None:
            failed[task_id] = record
    return failed
