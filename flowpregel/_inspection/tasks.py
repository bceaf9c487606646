"""Rows of runs, and the tasks that have records stored with a checkpoint.

The fields of a row have types that JSON supports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from flowpregel._core import records
from flowpregel._core.ids import AttemptRecord, caller_of
from flowpregel._core.previews import outputs_in
from flowpregel._core.provenance import line_of
from flowpregel._core.records import Address
from flowpregel._inspection.call_previews import media_to_json, read_preview
from flowpregel._inspection.call_rows import NUMBER_FIELDS, CallRow, CallState
from flowpregel._inspection.output_files import base_folders, checked_output
from flowpregel._inspection.preview import PreviewLimits, question_to_json, to_json
from flowpregel.checkpoint.arguments import StoredArguments, decoded
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.labels import INPUT
from flowpregel.checkpoint.layout import (
    ARGUMENTS,
    MEDIA,
    OUTPUT,
    WritesRecord,
    digest,
    sidecar_key,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.work import Status, Work, work_from

if TYPE_CHECKING:
    from flowpregel.storage.stores import DurableStore

CallPart: TypeAlias = Literal["arguments", "result", "error"]
"""A part of the data of a call that may be a large value."""


class RunRow(NamedTuple):
    """A run, described by the thread's newest checkpoint and the current process."""

    thread_id: str
    """The id of the thread."""
    status: Status
    """The status of the run."""
    flow: str | None
    """``MODULE:FLOW``, if the run recorded it."""
    step: int
    """The superstep of the newest checkpoint, or -1 if the run has just begun."""
    created: int
    """The time at which the thread began, in wall-clock nanoseconds."""
    updated: int
    """The time of the newest checkpoint, in wall-clock nanoseconds."""
    checkpoints: int
    """The number of the thread's checkpoints."""
    states: dict[CallState, int]
    """The number of the current superstep's tasks and calls, by their state."""
    host: str = ""
    """The host on which the run is running now; empty if it is not running."""
    pid: int = 0
    """The id of the process in which the run is running now; 0 if it is not running."""
    is_behind: bool = False
    """True if the reader has not read all tasks yet, so that *states* and *status* are
    based on some of the tasks.
    """


_DISPLAYED_WRITES = (
    records.CALLED,
    records.ERROR,
    records.ERROR_SOURCE,
    records.INTERRUPT,
)
"""The channels of writes whose values a row contains. Other writes are not decoded."""
_QUESTION = PreviewLimits(
    depth=8,
    count=200,
    size=20_000,
    total=2_000,
)
"""The limits on the preview of a question, which a person must be able to read to the
end.
"""
_NEVER_RUN = AttemptRecord("", 0, 0.0, 0, "", 0)
_ATTEMPT_FIELDS = ("began", "seconds", "pid", "error", "traceback")


class TaskLocation(NamedTuple):
    """The location of the records of tasks that started from one checkpoint."""

    address: Address
    step: int
    """The superstep of the tasks."""
    key: bytes
    """The prefix of the records' keys. A key is the prefix and the task's digest."""
    is_over: bool = False
    """True if another checkpoint has followed, so the tasks do not change any more."""


class TaskRecords:
    """A reader of the tasks' records in a store, which remembers none of them.

    Args:
        store: An open store whose codec runs none of the user's code.
    """

    def __init__(self, store: DurableStore) -> None:
        self.tables = Tables(store)
        self.table = self.tables.writes
        self.read: Callable[[Callable[[Any], Any]], Any] = store.read
        self.codec = store.codec
        self._folders = base_folders(store)

    def record(self, data: bytes) -> WritesRecord:
        """Decode *data*, a payload that `payloads` returned, and return the record."""
        fields = self.tables.fields_of(data)
        return WritesRecord(*fields)

    def state(
        self,
        location: TaskLocation,
        record: WritesRecord,
    ) -> CallState | None:
        """Return the state of a task's row, or None if the task has no row."""
        if _is_done(record):
            return "done"
        row = self.row(location, record)
        return None if row is None else row.state

    def row(
        self,
        location: TaskLocation,
        record: WritesRecord,
    ) -> CallRow | None:
        """Return the row of a task.

        None is returned for an internal task (such as the run's input), for a task
        whose result was deleted, and for a failed call that was not made again when its
        caller ran again.
        """
        ran = _NEVER_RUN if record.ran is None else AttemptRecord(*record.ran)
        work = self._work(location, record)
        name = ran.name
        if not name and work.call_key is not None:
            name = work.call_key.name
        is_taken_back = not name and work.state == "unfinished"
        is_internal = name == INPUT or record.task_id == records.RUN_TASK_ID
        is_dropped = location.is_over and work.needs_retry
        if is_taken_back or is_internal or is_dropped:
            return None
        text = work.name if work.is_call else None
        return CallRow(
            id=record.task_id,
            name=name,
            text=text or "",
            state=cast(CallState, work.state),
            step=location.step,
            checkpoint_id=location.address.checkpoint_id or "",
            namespace=location.address.namespace,
            path=record.path,
            caller=caller_of(record.path),
            error=error_line(work.error),
            questions=len(work.interrupts),
            planned=ran.planned,
            began=ran.began,
            seconds=ran.seconds,
            attempts=ran.attempts,
            executor=ran.executor,
            host=ran.host,
            pid=ran.pid,
            preview=bytes(ran.preview).decode(errors="replace"),
            **{field: getattr(ran, field) for field in NUMBER_FIELDS},
        )

    def has_ended_run(self, location: TaskLocation, record: WritesRecord) -> bool:
        """Return whether the run has ended with the error or the question of a task."""
        if caller_of(record.path):
            return False
        return self._work(location, record).has_ended_run

    def rows(self, tasks: Iterable[tuple[TaskLocation, bytes]]) -> tuple[CallRow, ...]:
        """Return the rows of tasks, without duplicates.

        Tasks whose results were deleted are left out.

        Args:
            tasks: The location and the key of each task.
        """
        locations = {key: location for location, key in tasks}
        payloads = self.payloads(locations)
        rows: list[CallRow] = []
        for location, data in zip(locations.values(), payloads, strict=True):
            if data is None:
                continue
            record = self.record(data)
            row = self.row(location, record)
            if row is not None:
                rows.append(row)
        return tuple(rows)

    def questions(
        self,
        tasks: Collection[tuple[TaskLocation, bytes]],
    ) -> list[dict[str, Any]]:
        """Return the open interrupts of tasks, each with ``id`` and ``value``.

        Args:
            tasks: The location and the key of each task.
        """
        questions: list[dict[str, Any]] = []
        payloads = self.payloads([key for _, key in tasks])
        for (location, _), data in zip(tasks, payloads, strict=True):
            if data is not None:
                work = self._work(location, self.record(data))
                questions += map(question_to_json, work.interrupts)
        return questions

    def call(
        self,
        locations: Collection[TaskLocation],
        call_id: str,
    ) -> dict[str, Any] | None:
        """Return all stored data of a task, as `StoreReader.call` does."""
        keys = [location.key + digest(call_id) for location in locations]
        payloads = self.payloads(keys)
        for location, data in zip(locations, payloads, strict=True):
            if data:
                record = self.record(data)
                row = self.row(location, record)
                if row is not None:
                    return self._details(location, record, row)
        return None

    def value(
        self,
        locations: Collection[TaskLocation],
        call_id: str,
        part: CallPart,
    ) -> Any:
        """Return the whole value of a part of a task, as `StoreReader.value` does."""
        keys = [location.key + digest(call_id) for location in locations]
        for location, data in zip(locations, self.payloads(keys), strict=True):
            if not data:
                continue
            if part == "arguments":
                return self._arguments(location, call_id)
            work = self._work(location, self.record(data), whole=True)
            if part == "error":
                return work.error
            return work.result if work.writes is None else work.writes
        return None

    def _details(
        self,
        location: TaskLocation,
        record: WritesRecord,
        row: CallRow,
    ) -> dict[str, Any]:
        """Return all stored data of the task with this record."""
        work = self._work(location, record, whole=True)
        result = work.result if work.writes is None else work.writes
        failed_attempts = work.ran.failed if work.ran else ()
        attempts = [
            dict(zip(_ATTEMPT_FIELDS, attempt, strict=True))
            for attempt in failed_attempts
        ]
        return {
            "row": row,
            "preview": read_preview(row.preview).to_json(),
            "media": media_to_json(self._media(location, record), row.began),
            "outputs": [
                checked_output(file, self._folders).to_json()
                for file in outputs_in(row.preview).files
            ],
            "arguments": to_json(self._arguments(location, record.task_id)),
            "result": to_json(result),
            "error": to_json(work.error),
            "attempts": attempts,
            "questions": [
                question_to_json(interrupt, _QUESTION) for interrupt in work.interrupts
            ],
        }

    def _arguments(
        self,
        location: TaskLocation,
        task_id: str,
    ) -> dict[str, Any] | None:
        """Return the stored arguments by position and name.

        None is returned if no arguments are stored.
        """
        key = sidecar_key(ARGUMENTS, location.key) + digest(task_id)
        (data,) = self.payloads([key])
        if data is None:
            return None
        arguments: StoredArguments = decoded(data, self.codec)
        by_name = {
            str(position): argument for position, argument in enumerate(arguments.args)
        }
        return by_name | arguments.kwargs

    def _media(self, location: TaskLocation, record: WritesRecord) -> bytes:
        """Return the recorded media of a call, if its attempt is recorded."""
        if record.ran is None:
            return b""
        key = sidecar_key(MEDIA, location.key) + digest(record.task_id)
        (data,) = self.payloads([key])
        return bytes(data or b"")

    def output(
        self,
        locations: Iterable[TaskLocation],
        call_id: str,
    ) -> str:
        """Return the text that a task has printed and logged."""
        keys = [
            sidecar_key(OUTPUT, location.key) + digest(call_id)
            for location in locations
        ]
        texts: list[str] = []
        for data in self.payloads(keys):
            if data:
                output = CallOutput(*self.tables.fields_of(data))
                texts.append(output.text)
        return "".join(texts)

    def payloads(self, keys: Collection[bytes]) -> list[bytes | None]:
        """Return the payload at each of *keys*, read in one transaction.

        Args:
            keys: The keys of tasks, or of other records beside a checkpoint.
        """

        def get_all(transaction: Any) -> list[bytes | None]:
            """Return the payloads within *transaction*."""
            key_list = list(keys)
            self.table.expect(transaction, key_list)
            return [self.table.get(transaction, key) for key in key_list]

        payloads: list[bytes | None] = self.read(get_all)
        return payloads

    def _work(
        self,
        location: TaskLocation,
        record: WritesRecord,
        *,
        whole: bool = False,
    ) -> Work:
        """Return the `Work` (the description of a task) that is made from a task's
        *record*.

        Args:
            location: The location of the record.
            record: The record of the task.
            whole: True to decode all writes, including the result; False to decode
                only those that a row of a table displays.
        """
        ran = None if record.ran is None else AttemptRecord(*record.ran)
        values: dict[str, Any] = {}
        for _, (name, data) in sorted(record.writes.items()):
            values[name] = None
            if whole or name in _DISPLAYED_WRITES:
                values[name] = self.codec.decode(data, "a task's write")
        return work_from(
            location.address,
            location.step,
            record.task_id,
            values,
            ran,
        )


def _is_done(record: WritesRecord) -> bool:
    """Return True if a task has ended well, as far as its record shows without values.

    Nothing is decoded, because most tasks of a large run have ended well. If False is
    returned, `TaskRecords.row` decides.
    """
    if record.ran is None:
        return False
    if record.task_id == records.RUN_TASK_ID:
        return False
    name = AttemptRecord(*record.ran).name
    if not name or name == INPUT:
        return False
    for channel, _ in record.writes.values():
        if channel not in records.CONTROL_WRITES:
            return True
    return False


def error_line(error: Any) -> str:
    """Return the error of a task in one line, or an empty string if there is none."""
    if not error:
        return ""
    if isinstance(error, str):
        return error
    return line_of(error)
