"""The failed and waiting tasks of a checkpoint, which explain the status of a run."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from flowpregel._core.ids import AttemptRecord, caller_of
from flowpregel._inspection.cursors import FailedTasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flowpregel._inspection.cursors import CheckpointView, TaskCursor
    from flowpregel._inspection.tasks import TaskLocation, TaskRecords
    from flowpregel.checkpoint.layout import WritesRecord

_MOST_ASKING = 50
"""The greatest number of waiting tasks that are read."""
_MOST_FAILED = 10_000
"""The greatest number of failed tasks of a checkpoint that are read."""
_AT_ONCE = 1_000
"""The number of tasks that are read in one transaction."""


class FailedTaskReader:
    """A reader of the failed tasks of checkpoints, which reads them again only if tasks
    have changed.

    Args:
        records: The reader of the tasks' records.
    """

    def __init__(self, records: TaskRecords) -> None:
        self._records = records

    def read(self, checkpoint: CheckpointView) -> FailedTasks:
        """Return the failed tasks of a checkpoint.

        Args:
            checkpoint: The checkpoint from which the tasks started.
        """
        cursor = checkpoint.tasks
        failed = cursor.known_failed
        if failed is None:
            failed = _failed_tasks(self._records, cursor)
            cursor.known_failed = failed
        return failed


def _failed_tasks(records: TaskRecords, cursor: TaskCursor) -> FailedTasks:
    """Return the failed tasks of a checkpoint.

    Args:
        records: The reader of the tasks' records.
        cursor: The tasks that started from the checkpoint.
    """
    counts = Counter[bool]()
    first: dict[bool, tuple[int, WritesRecord]] = {}
    tasks = cursor.tasks_in("failed", _MOST_FAILED)
    for record in _records_of(records, tasks):
        is_call = caller_of(record.path) != ""
        counts[is_call] += 1
        began = _beginning_of(record)
        if is_call not in first or began < first[is_call][0]:
            first[is_call] = began, record
    if not first:
        return FailedTasks()
    # If a call failed, the task that made the call failed too. The call is reported,
    # because it shows the cause more precisely.
    has_calls = True in first
    _, record = first[has_calls]
    row = records.row(cursor.location, record)
    text = ""
    if row is not None:
        text = f"{row.text or row.name}: {row.error}"
    bodies = counts[False] if has_calls else 0
    return FailedTasks(bodies, text)


def open_questions(
    records: TaskRecords,
    checkpoint: CheckpointView,
) -> list[dict[str, Any]]:
    """Return the open interrupts of a checkpoint, each once.

    Args:
        records: The reader of the tasks' records.
        checkpoint: The checkpoint from which the tasks started.
    """
    tasks = checkpoint.tasks.tasks_in("waiting", _MOST_ASKING)
    questions: dict[Any, dict[str, Any]] = {}
    for number, question in enumerate(records.questions(tasks)):
        # Questions without an id are distinguished by their numbers: an interrupt of
        # LangGraph's class may have no id that can be read.
        key: Any = number
        if question["id"]:
            key = json.dumps(question["id"])
        questions.setdefault(key, question)
    return list(questions.values())


def _records_of(
    records: TaskRecords,
    tasks: Sequence[tuple[TaskLocation, bytes]],
) -> Iterator[WritesRecord]:
    """Yield the records of *tasks*."""
    for start in range(0, len(tasks), _AT_ONCE):
        page = tasks[start : start + _AT_ONCE]
        keys = [key for _, key in page]
        for data in records.payloads(keys):
            if data is not None:
                yield records.record(data)


def _beginning_of(record: WritesRecord) -> int:
    """Return the time at which the task's last attempt began, or 0 if unknown."""
    if record.ran is None:
        return 0
    return AttemptRecord(*record.ran).began
