"""The check of a body that makes a different call from the recorded one: it decides
whether the program was changed, or the body is not deterministic.

The two calls have the same position in the body.

==========================================  =========================================
the body makes another call, and            effect
==========================================  =========================================
the body's code or input has changed        the call runs
a recorded result was computed again        the call runs, because it may depend on
before the call                             the new result
a file in the arguments has other content   `InputMismatchError`, unless the run
                                            adopts the new content
none of these is the case                   `ReplayMismatchError`
==========================================  =========================================
"""

from __future__ import annotations

import re

from flowpregel._core import ids
from flowpregel._core.body_calls import BodyCalls
from flowpregel._core.files import changed_files
from flowpregel._core.ids import CODE_DIGITS, NOWHERE, CallRecord
from flowpregel._core.records import Task
from flowpregel._core.run import Run
from flowpregel.errors import InputMismatchError, ReplayMismatchError

_TYPE_ALONE = re.compile(r"<[^<>]*>")
"""A pattern for an argument that the call's text shows only by its type, such as
``<list>``.
"""


def check_determinism(
    run: Run,
    caller: Task,
    record: CallRecord,
) -> None:
    """Raise an error if a deterministic body with the recorded code and input cannot
    make this call.

    Args:
        run: The run of the body.
        caller: The task whose body makes the call.
        record: The last call of the body, for which no record was found.

    Raises:
        InputMismatchError: A file in the arguments of the call has changed.
        ReplayMismatchError: The body is not deterministic.
    """
    body: BodyCalls = caller.attempt.body
    recorded = body.executed.get(record.position)
    if recorded is None and not run.replay.is_empty():
        recorded = _recorded_at(run, caller, record)
    if body.may_repeat:
        body.executed[record.position] = record
    if recorded is None or _is_explained(caller, recorded, record):
        return
    changes = []
    if recorded.name == record.name:
        changes = changed_files(recorded.files, record.files)
    if not changes:
        recorded_text, text = _call_texts(recorded, record)
        raise ReplayMismatchError(recorded_text, text)
    # A changed file in the arguments is treated like a changed input of the run: the
    # run fails with an error, unless it adopts the change.
    run.replay.report.is_changed = True
    files = [file for file, _ in changes]
    # If a recorded call has these files with their present content among its arguments,
    # the change was adopted before.
    if run.options.adopts_input or run.replay.has_files(files):
        return
    reasons = "; ".join(text for _, text in changes)
    raise InputMismatchError(_thread_of(run), reasons, adopts=True)


def _is_explained(
    caller: Task,
    recorded: CallRecord,
    record: CallRecord,
) -> bool:
    """Return whether a deterministic body may make the call *record* at the position
    where it made the call *recorded* in the earlier run.
    """
    body: BodyCalls = caller.attempt.body
    if record.position == NOWHERE or body.has_new_result:
        return True
    group = recorded.name, recorded.arguments
    if group == (record.name, record.arguments):
        return True
    if group in body.sequence.occurrences:
        # The recorded call was not replaced: the body has already made it, earlier in
        # this attempt.
        return True
    # Coroutines that run concurrently may make their calls in a different order in each
    # run. So in an async body any difference is allowed.
    return any(step.func is None for step in caller.node.steps)


def _thread_of(run: Run) -> str:
    """Return the id of the thread from which a run, or a dry replay of it, takes its
    records.
    """
    options = run.options
    if options.address is not None:
        return options.address.thread_id
    if options.loaded is not None:
        (saved,) = options.loaded
        if saved is not None:
            return saved.address.thread_id
    return "(not kept)"


def _recorded_at(
    run: Run,
    caller: Task,
    record: CallRecord,
) -> CallRecord | None:
    """Return the recorded call at the position of *record*, if the body that made it
    had the same code and input as the body that made *record*.
    """
    replay = run.replay
    if not replay.reuses_writes:
        return None
    recorded = replay.pending_call_at(record.caller, record.position)
    if recorded is not None:
        return recorded
    index = caller.attempt.body.sequence.call_count - 1
    recorded = replay.lazy_call_at(ids.call_path(caller.path, index))
    if recorded is None:
        return None
    is_same_caller = recorded.caller == record.caller
    if is_same_caller and recorded.position == record.position:
        return recorded
    report_change(run, caller, recorded, record)
    return None


def report_change(
    run: Run,
    caller: Task,
    recorded: CallRecord,
    now: CallRecord,
) -> None:
    """Add to the report of the replay that the code or the input of *caller* has
    changed since the *recorded* call, if it has.
    """
    if recorded.caller == now.caller:
        return
    report = run.replay.report
    report.is_changed = True
    recorded_code = recorded.caller[:CODE_DIGITS]
    present_code = now.caller[:CODE_DIGITS]
    report.codes.setdefault(caller.name, (recorded_code, present_code))
    is_first = report.body_codes == ("", "")
    if is_first and recorded_code != present_code:
        report.body_codes = recorded_code, present_code


def _call_texts(recorded: CallRecord, now: CallRecord) -> tuple[str, str]:
    """Return the texts of two calls for a message, each with the digests in which the
    calls differ.
    """
    recorded_text = _text_with_digests(recorded)
    text = _text_with_digests(now)
    if recorded.text == now.text and recorded.arguments != now.arguments:
        hidden = _TYPE_ALONE.findall(now.text)
        difference = "a part that is not shown"
        if hidden:
            difference = f"the content of {', '.join(hidden)}"
        text += f" (they differ in {difference})"
    return recorded_text, text


def _text_with_digests(record: CallRecord) -> str:
    code = record.code[:8]
    arguments = record.arguments[:8]
    return f"{record.text}   [code {code}, arguments {arguments}]"
