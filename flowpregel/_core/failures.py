"""What is noted of a failure: a line, a note on the error, a record of the attempt."""

from __future__ import annotations

from typing import Any

from flowpregel._core.asked import Span
from flowpregel._core.records import Kind, Task, failed_calls
from flowpregel._tracebacks import whole_text

_LONGEST_LINE = 200
_MOST_ATTEMPTS = 10
"""Of a task's attempts that failed, the last ones are kept, this many."""


def line_of(error: Any) -> str:
    """Return *error* in one line of bounded length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"(its text cannot be had: {type(problem).__name__})"
    first = text.strip().partition("\n")[0]
    return (f"{name}: {first}" if first else name)[:_LONGEST_LINE]


def note_of(failed: Task) -> str:
    """Return the note on what a task failed with: which one, its arguments, and where it ran."""
    note = f"During task with name {failed.name!r} and id {failed.id!r}"
    ran = failed.span
    worker = f", worker {ran.pid}" if ran and ran.executor in ("processes", "futures") else ""
    if failed.kind is Kind.CALL:
        return f"{note}: {failed.call} (attempt {failed.attempt}{worker})"
    return f"{note} (attempt {failed.attempt}{worker})"


def note_failed(task: Task, error: BaseException) -> None:
    """Note how the attempt of *task* failed that has ended."""
    span = task.span or Span(task.first_started or 0, 0.0, "")
    # What a call has failed with is told of with that call.
    text = "" if failed_calls(error) else whole_text(error)
    attempt = span.began, span.seconds, span.pid, line_of(error), text
    task.failed = (*task.failed[1 - _MOST_ATTEMPTS :], attempt)
