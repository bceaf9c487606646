"""What was recorded of calls, and which call of a body that runs once more it answers.

A call is known by what was asked: who called, the name of the task, the content of the
arguments, and the how manieth call it is that asks for just that. Its place among the
calls of its body is kept beside it, to tell chance from change.

==============================  =====================================================
the body asks for               then
==============================  =====================================================
what is recorded                the record answers
the same but for new fields     the record answers: see `lookup`
the same, of other code         as ``on_code_change`` says
something else, its code and    `ReplayMismatchError`: it is not deterministic
its input being the same
something else                  it runs
==============================  =====================================================
"""

from __future__ import annotations

from itertools import chain

from flowpregel import errors
from flowpregel._core import ids
from flowpregel._core.chance import check_chance, note_change, record_in
from flowpregel._core.copies import private_copy
from flowpregel._core.digest import digest_of
from flowpregel._core.effects import BodyCalls, Call
from flowpregel._core.files import USED_FILE
from flowpregel._core.ids import CODE_DIGITS, CallRecord
from flowpregel._core.lookup import find_recorded, recorded_of
from flowpregel._core.provenance import code_of_node
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
from flowpregel._core.unreadable import check_policy, lost_result
from flowpregel.errors import (
    CodeChangedError,
    ConfigurationError,
    InputMismatchError,
    ReplayMismatchError,
    ValueEncodingError,
)

REFUSALS = CodeChangedError, InputMismatchError, ReplayMismatchError, ValueEncodingError
"""The errors for a call that is not answered though something is recorded, which
stays.
"""
FORGOTTEN: tuple[Write, ...] = ((ERROR, None), (CALLED, None))
"""What is kept in the place of a failure that is to be tried again."""


def digest_of_caller(caller: Task) -> str:
    """Return a digest of what the calls of a body depend on: its code, and what it was
    given.
    """
    if caller.record is not None:
        return digest_of_call(caller.record)
    try:
        given = digest_of(caller.input, "the input", strict=False)
    except ConfigurationError:  # nested too deeply to be looked at
        given = ""
    return code_of_node(caller.node) + ids.text_digest(caller.path, given)[CODE_DIGITS:]


def digest_of_call(record: CallRecord) -> str:
    """Return `digest_of_caller` for a call that makes calls itself."""
    return ids.text_digest(record.caller, record.name, record.arguments, record.code)


def answer_from_record(
    run: Run, caller: Task, call: Call, identity: str, record: CallRecord
) -> tuple[str, Outcome | None]:
    """Return the id of the call that *record* is kept of, and how it ended if that is
    recorded.

    Its id is not the *identity* that it was given if it is to be made anew by other
    code.

    Raises:
        CodeChangedError: What is recorded is of other code, and that is not wanted.
        ReplayMismatchError: The body asks for something else by chance.
        ValueEncodingError: What is recorded cannot be read back, and is not made anew.
    """
    body, node = caller.body, call.node
    recorded = find_recorded(run, caller, call, identity, record)
    if (was := record_in(recorded)) is None:
        check_chance(run, caller, record)
        return identity, None
    # Of the calls that calls make none is counted: they are not asked for if those are
    # answered.
    run.replay_report.asked += caller.record is None and record.code != ""
    run.replay_report.fitted.add(record.name)
    note_change(run, caller, was, record)
    made_by = was
    if was.code != record.code:
        policy = node.on_code_change or run.options.on_code_change
        if policy == "error":
            raise CodeChangedError(record.name, record.text, was.code, record.code)
        if policy == "rerun":
            identity, made_by = ids.task_id(identity, record.code), record
            recorded = recorded_of(run, body, identity)
        elif not outputs(recorded):
            # It failed: perhaps that is why the code is another one.
            forget(run, body, identity, ids.call_path(caller.path, body.call_count - 1))
            recorded = ()
    if (lost := lost_result(recorded)) is not None:
        # What is recorded stays. The call that is made in its place has an id of its
        # own.
        identity = ids.task_id(identity, "in place of what cannot be read")
        recorded = recorded_of(run, body, identity)
        made_by = record_in(recorded) or record
        check_policy("rerun" if recorded else run.options.on_unreadable, lost)
    body.is_remade |= made_by is not was
    if body.may_repeat:
        recorded = private_copy(tuple(recorded))
    if done := tuple(outputs(recorded)):
        run.replay_report.answered += not node.hidden
        note_use(run, body, record, made_by.code)
        return identity, Returned(done)
    error = dict(recorded).get(ERROR)
    if isinstance(error, errors.TaskCancelled) and was != record:
        return identity, None  # a body that has changed may want it now
    return identity, Raised(error) if isinstance(error, BaseException) else None


def note_use(run: Run, body: BodyCalls, record: CallRecord, code: str) -> None:
    """Count a result for the call of *record* that *code* made, or is going to make."""
    name = record.name
    for path, digest, size in record.files:
        body.used[USED_FILE + path, digest] = size
    if code:  # questions of the library itself have none
        body.used[name, code] += 1
        run.replay_report.used[name, code] += 1
    if code != record.code:
        run.replay_report.of_other_code[name] += 1
        run.replay_report.codes[name] = code, record.code


def forget(run: Run, body: BodyCalls, task_id: str, path: str) -> None:
    """Forget that a call of *body* failed, so that it is tried again."""
    body.recorded.pop(task_id, None)
    if before := run.pending.get(task_id):
        run.pending[task_id] = [each for each in before if each[0] != ERROR]
    run.keep(task_id, path, FORGOTTEN)


# ---------------------------------------------------------------- records


def count_unreplayed(run: Run) -> None:
    """Count the recorded calls that bodies which have changed did not ask for again."""
    kept = chain(
        run.pending.values(), run.lazy_results.records() if run.lazy_results else ()
    )
    found = [record for each in kept if (record := record_in(each)) is not None]
    # What a recorded call called itself is not asked for where that is answered.
    callers = {digest_of_call(record) for record in found}
    # Without code are questions of the library itself, as those of `imap`.
    asked = sum(each.code != "" and each.caller not in callers for each in found)
    run.replay_report.unreplayed += asked - run.replay_report.asked
