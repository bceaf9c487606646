"""The failed and waiting tasks of a checkpoint, which explain how a run stands."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from flowpregel._core.ids import AttemptRecord, caller_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flowpregel._inspection.cursors import CheckpointView, TaskCursor
    from flowpregel._inspection.tasks import TaskLocation, TaskRecords
    from flowpregel.checkpoint.layout import WritesRecord

_MOST_ASKING = 50
"""The number of waiting tasks that are read."""
_MOST_FAILED = 10_000
"""The number of failed tasks that are read."""
_AT_ONCE = 1_000
"""The number of tasks that are read in one transaction."""


class FailedTasks(NamedTuple):
    """The failed tasks of a checkpoint, of which at most `_MOST_FAILED` are read."""

    bodies: int = 0
    """The number of bodies that failed with one of their calls, so that only the call
    should be counted as failed.
    """
    first: str = ""
    """The call that failed first, with its error. Without a call it is a body."""


class FailedTaskReader:
    """A reader of the failed tasks of checkpoints, which reads them again only if tasks
    have changed.

    Args:
        records: The reader of the tasks' records.
    """

    def __init__(self, records: TaskRecords) -> None:
        self._records = records
        self._known: WeakKeyDictionary[TaskCursor, tuple[int, FailedTasks]]
        self._known = WeakKeyDictionary()
        """The version of the tasks when they were read, and the result, by cursor."""

    def read(self, checkpoint: CheckpointView) -> FailedTasks:
        """Return the failed tasks of a checkpoint.

        Args:
            checkpoint: The checkpoint from which the tasks started.
        """
        cursor = checkpoint.tasks
        known = self._known.get(cursor)
        if known is None or known[0] != cursor.version:
            known = cursor.version, _failed_tasks(self._records, cursor)
            self._known[cursor] = known
        return known[1]


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
    # A call is more precise than the body that made it and failed with it.
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
        # An interrupt of LangGraph's class may have no readable id.
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
