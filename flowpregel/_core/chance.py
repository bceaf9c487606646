"""Chance is told from change: a body that asks for something else than is recorded at
its place.

==============================================  =====================================
the body asks for something else, and           then
==============================================  =====================================
its code or its input has changed               it is made
a result was made anew before                   it is made: it may follow from that
a file that it was given has other content      `InputMismatchError`, unless adopted
nothing of this                                 `ReplayMismatchError`
==============================================  =====================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from flowpregel._core import ids
from flowpregel._core.effects import BodyCalls
from flowpregel._core.files import FileContent, changed_files
from flowpregel._core.ids import CODE_DIGITS, NOWHERE, CallRecord
from flowpregel._core.records import CALLED, Task, Write
from flowpregel._core.run_state import Run
from flowpregel.errors import InputMismatchError, ReplayMismatchError

_TYPE_ALONE = re.compile(r"<[^<>]*>")
"""An argument in the text of a call of which only the type is shown."""


def check_chance(run: Run, caller: Task, record: CallRecord) -> None:
    """Refuse a call that its body, being what it was, should not have come to."""
    body: BodyCalls = caller.body
    was = body.planned.get(record.place) or _recorded_at(run, caller, record)
    if body.may_repeat:
        body.planned[record.place] = record
    if (
        was is None
        or record.place == NOWHERE
        or was[:2] == record[:2]
        or was[:2] in body.occurrences
        or body.is_remade
        # Coroutines that run side by side may take turns in another order.
        or any(step.func is None for step in caller.node.steps)
    ):
        return
    changed = changed_files(was.files, record.files) if was.name == record.name else []
    if not changed:
        raise ReplayMismatchError(*_call_texts(was, record))
    # What is in a file that the body was given is input, as its arguments are.
    run.replay_report.is_changed = True
    if not (
        run.options.adopts_input or _has_adopted(run, [file for file, _ in changed])
    ):
        why = "; ".join(text for _, text in changed)
        raise InputMismatchError(_thread_of(run), why, adopts=True)


def _thread_of(run: Run) -> str:
    """Return the id of the thread whose records a run, or a dry replay of one, goes on
    with.
    """
    saved = run.options.loaded[0] if run.options.loaded else None
    address = run.options.address or (saved and saved.address)
    return address.thread_id if address else "(not kept)"


def _has_adopted(run: Run, files: Sequence[FileContent]) -> bool:
    """Return whether a call with each of these files, as they are now, is recorded."""
    known = run.replay_report.known_files
    if known is None:
        known = run.replay_report.known_files = set()
        for kept in chain(
            run.pending.values(), run.lazy_results.records() if run.lazy_results else ()
        ):
            record = record_in(kept)
            known.update(map(tuple, record.files) if record else ())
    return known.issuperset(files)


def _recorded_at(run: Run, caller: Task, record: CallRecord) -> CallRecord | None:
    """Return the record of a call at this place of a body of this code and input."""
    if not run.hand_back:
        return None
    if run.placed is None:
        found = filter(None, map(record_in, run.pending.values()))
        run.placed = {(each.caller, each.place): each for each in found}
    was = run.placed.get((record.caller, record.place))
    if was is None and run.lazy_results is not None:
        was = record_in(
            run.lazy_results.record_at(
                ids.call_path(caller.path, caller.body.call_count - 1)
            )
        )
    if was is None or (was.caller, was.place) == (record.caller, record.place):
        return was
    note_change(run, caller, was, record)
    return None


def note_change(run: Run, caller: Task, was: CallRecord, now: CallRecord) -> None:
    """Note if *caller* has other code or another input than it had."""
    if was.caller != now.caller:
        run.replay_report.is_changed = True
        codes = was.caller[:CODE_DIGITS], now.caller[:CODE_DIGITS]
        run.replay_report.codes.setdefault(caller.name, codes)


def record_in(kept: Sequence[Write]) -> CallRecord | None:
    """Return which call it is that *kept* was written for."""
    value: Any = dict(kept).get(CALLED)
    return None if value is None else CallRecord(*value)


def _call_texts(recorded: CallRecord, now: CallRecord) -> list[str]:
    """Return two calls as a message shows them, with the digests that tell them from
    each other.
    """
    texts = [
        f"{each.text}   [code {each.code[:8]}, arguments {each.arguments[:8]}]"
        for each in (recorded, now)
    ]
    if recorded.text == now.text and recorded.arguments != now.arguments:
        hidden = _TYPE_ALONE.findall(now.text)
        what = (
            f"the content of {', '.join(hidden)}"
            if hidden
            else "a part that is not shown"
        )
        texts[1] += f" (what differs is {what})"
    return texts
