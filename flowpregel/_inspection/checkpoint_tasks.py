"""The failed and waiting tasks of a checkpoint, which explain how a run stands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel._inspection.cursors import CheckpointView
    from flowpregel._inspection.tasks import CallRow, TaskRecords

_MOST_READ = 50
"""The number of failed or waiting tasks that are read."""


def first_failure(records: TaskRecords, checkpoint: CheckpointView) -> str:
    """Return the call that failed first, with its error, or an empty text.

    Args:
        records: The reader of the tasks' records.
        checkpoint: The checkpoint from which the calls started.
    """
    rows = _failed_rows(records, checkpoint)
    # A call is more precise than the body that made the call and failed with it.
    rows = tuple(row for row in rows if row.text) or rows
    if not rows:
        return ""
    first = min(rows, key=lambda row: row.began)
    return f"{first.text or first.name}: {first.error}"


def failed_bodies(records: TaskRecords, checkpoint: CheckpointView) -> int:
    """Return the number of bodies that failed with one of their calls, so that only the
    call should be counted as failed.

    The arguments are those of `first_failure`.
    """
    rows = _failed_rows(records, checkpoint)
    calls = sum(bool(row.text) for row in rows)
    return len(rows) - calls if calls else 0


def open_questions(
    records: TaskRecords,
    checkpoint: CheckpointView,
) -> list[dict[str, Any]]:
    """Return the open interrupts of a checkpoint, each once.

    The arguments are those of `first_failure`.
    """
    tasks = checkpoint.tasks.tasks_in("waiting", _MOST_READ)
    questions: dict[Any, dict[str, Any]] = {}
    for number, question in enumerate(records.questions(tasks)):
        # An interrupt of LangGraph's class may have no readable id.
        key = json.dumps(question["id"]) if question["id"] else number
        questions.setdefault(key, question)
    return list(questions.values())


def _failed_rows(
    records: TaskRecords,
    checkpoint: CheckpointView,
) -> tuple[CallRow, ...]:
    """Return the rows of the first failed tasks."""
    tasks = checkpoint.tasks.tasks_in("failed", _MOST_READ)
    return records.rows(tasks)
