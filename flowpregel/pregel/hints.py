"""Hints on how to resume an unfinished run: notes on the error that ended it."""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import RETURN, Saved
from flowpregel._interrupts import defer_interrupts
from flowpregel._tracebacks import is_stop
from flowpregel.errors import FlowPregelError
from flowpregel.pregel.naming import RunIdentity


def add_hint(
    run: Any,
    error: BaseException,
) -> None:
    """Add a note to the error that ends a run, which explains how to resume the run.

    A run that was stopped gets such a note. So does a run without an id: its calls are
    stored under a generated id, which the user does not know.

    Args:
        run: The `GraphRun`.
        error: The error that ends the run.
    """
    thread_id = run.config.thread_id
    if run.saver is None or thread_id is None or isinstance(error, GeneratorExit):
        return
    note = ""
    if run.is_unnamed:
        note = _unnamed_note(run)
    elif is_stop(error):
        call = f"call invoke(None, thread_id={thread_id!r})"
        if isinstance(run.resume, RunIdentity):
            call = f"run it again with id={thread_id!r}"
        note = f"finished work is kept; to resume, {call}"
    if note and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _unnamed_note(run: Any) -> str:
    """Return a note with the generated id of a run, or an empty string if no calls are
    stored.
    """
    calls = _finished_calls(run)
    if not calls:
        return ""
    plural = "s" if calls > 1 else ""
    return (
        f"an unfinished run with {calls:,} finished call{plural} is left behind: to "
        f"resume it, use run(..., id={run.config.thread_id!r})"
    )


def _finished_calls(run: Any) -> int:
    """Return the number of stored calls of a run, or 0 if they cannot be read."""
    saver = run.saver
    if saver is None or saver.needs_loop:
        return 0
    try:
        with defer_interrupts():
            saved = saver.load(run.config.address, lazy_results=True)
    except FlowPregelError:
        # The store's error needs no report here, because the run itself has already
        # raised it.
        return 0
    return 0 if saved is None else _calls_on(saved)


def _calls_on(saved: Saved) -> int:
    """Return the number of calls whose results are stored at a checkpoint."""
    lazy_results = saved.lazy_results
    lazy_calls = 0 if lazy_results is None else lazy_results.count()
    returned = [write for write in saved.writes if write.channel == RETURN]
    return lazy_calls + len(returned)
