"""Hints on what a run has left that has not come to its end: notes of what it
raises.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import RETURN, Saved
from flowpregel._interrupts import held
from flowpregel._tracebacks import is_stop
from flowpregel.errors import FlowPregelError
from flowpregel.pregel.naming import RunIdentity


def add_hint(run: Any, error: BaseException) -> None:
    """Add a note to *error*, which ends *run*, a `GraphRun`: how to resume it, if that
    makes sense.

    A run that was stopped can be run again. One that was given no id needs to be told
    the id under which its calls are kept: nobody else knows it.
    """
    thread_id = run.config.thread_id
    if run.saver is None or thread_id is None or isinstance(error, GeneratorExit):
        return
    note = ""
    if run.is_unnamed:
        if calls := _finished_calls(run):
            note = (
                f"an unfinished run with {calls:,} finished call{'s' * (calls > 1)} is "
                "left "
                f"behind: to go on with it, use run(..., id={thread_id!r})"
            )
    elif is_stop(error):
        how = f"run it again with id={thread_id!r}"
        if not isinstance(run.resume, RunIdentity):
            how = f"invoke(None, thread_id={thread_id!r})"
        note = f"what has finished is kept: {how}, and it resumes"
    if note and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _finished_calls(run: Any) -> int:
    """Return how many calls of an unfinished run are kept; 0 if that cannot be read."""
    saver = run.saver
    if saver is None or saver.needs_loop:
        return 0
    try:
        with held():
            saved = saver.load(run.config.address, lazy_results=True)
    except FlowPregelError:
        return 0  # the store has its own trouble, which the run has raised
    return 0 if saved is None else _calls_on(saved)


def _calls_on(saved: Saved) -> int:
    """Return how many calls have returned on a checkpoint."""
    calls = 0 if saved.lazy_results is None else saved.lazy_results.count()
    return calls + sum(write.channel == RETURN for write in saved.writes)
