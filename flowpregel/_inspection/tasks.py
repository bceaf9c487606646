"""Runs, and the tasks that have left something on a checkpoint, as rows.

The fields of a row are fit for JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from flowpregel._core import records
from flowpregel._core.ids import AttemptRecord, caller_of
from flowpregel._core.provenance import line_of
from flowpregel._core.records import Address
from flowpregel._inspection.preview import question_to_json, to_json
from flowpregel.checkpoint.arguments import KeptArguments, decoded
from flowpregel.checkpoint.layout import (
    ARGUMENTS,
    OUTPUT,
    Tables,
    WritesRecord,
    beside,
    digest,
)
from flowpregel.checkpoint.output import CallOutput
from flowpregel.checkpoint.work import Status, Work, work_from

if TYPE_CHECKING:
    from flowpregel.storage.stores import DurableStore

CallState: TypeAlias = Literal["failed", "waiting", "unfinished", "done"]
"""The state of a call by its records: a *waiting* call needs an answer; an *unfinished*
call has left something, such as a saved state, and has not ended. A running call has
often left nothing yet."""


class RunRow(NamedTuple):
    """A run, by its thread's newest checkpoint and by the process that runs it now."""

    thread_id: str
    status: Status
    flow: str | None
    """``MODULE:FLOW``, if the run recorded it."""
    step: int
    """The superstep of the newest checkpoint; -1: the run has just begun."""
    created: int
    """Wall-clock nanoseconds at which the thread began."""
    updated: int
    """Wall-clock nanoseconds of the newest checkpoint."""
    checkpoints: int
    """The number of the thread's checkpoints."""
    states: dict[CallState, int]
    """The numbers of tasks and calls of the present superstep, by their state."""
    host: str = ""
    """The host on which the run is running now; empty if it is not running."""
    pid: int = 0
    """The process in which the run is running now; 0: it is not running."""


class CallRow(NamedTuple):
    """A call of a task, or a node's task, by its records in the store."""

    id: str
    name: str
    """The node's name; empty if it is not stored."""
    text: str
    """The call with short arguments, as ``parse('c.txt')``; empty: it is no call."""
    state: CallState
    step: int
    checkpoint_id: str
    """The checkpoint that the task left something on."""
    namespace: str
    """The namespace of the task's graph; empty for the outermost graph."""
    path: str
    """The position in the superstep: sorted by path, calls come after their caller."""
    caller: str
    """The path of the task whose body made the call; empty if it is no call."""
    error: str
    """The error that the task failed with, in one line."""
    questions: int
    """The number of answers that the task waits for."""
    planned: int
    """Wall-clock nanoseconds at which the first attempt was scheduled; 0: not known."""
    began: int
    """Wall-clock nanoseconds at which the last attempt began; 0: not known."""
    seconds: float
    """The duration of the last attempt."""
    attempts: int
    """The number of attempts; 0, with *began*: another run shared its result."""
    executor: str
    host: str
    pid: int
    """The process that ran the last attempt; 0: not known."""
    cpu: float
    """Seconds of CPU time of the last attempt; 0: not known."""
    peak: int
    """The peak memory of the last attempt's process in bytes; 0: not known."""


class CallChanges(NamedTuple):
    """The calls of a run that changed since a mark."""

    mark: int
    """The mark to pass next time."""
    is_whole: bool
    """True if *rows* begins with all calls: forget the rows of earlier changes."""
    is_more: bool
    """True if there are more changes, which the next call returns."""
    rows: tuple[CallRow, ...]
    """New and changed calls. A call that changes again appears once more, later."""


_DISPLAYED_WRITES = (records.CALLED, records.ERROR, records.INTERRUPT)
"""The writes whose values a row needs; of other writes it needs only the names."""
_NEVER_RUN = AttemptRecord("", 0, 0.0, 0, "", 0)
_INPUT = "__start__"
"""The name of the node that takes in the input."""
_ATTEMPT_FIELDS = ("began", "seconds", "pid", "error", "traceback")


class TaskLocation(NamedTuple):
    """The location of the records of tasks that started from one checkpoint."""

    address: Address
    step: int
    """The superstep of the tasks."""
    key: bytes
    """The prefix of the records' keys: a key is the prefix and the task's digest."""


class TaskRecords:
    """Reads the records of tasks in a store, and remembers none of them.

    Args:
        store: An open store, with a codec that decodes inertly.
    """

    def __init__(self, store: DurableStore) -> None:
        self.tables = Tables(store)
        self.table = self.tables.writes
        self.read: Callable[[Callable[[Any], Any]], Any] = store.read
        self.codec = store.codec

    def record(self, data: bytes) -> WritesRecord:
        """Return the record with this payload."""
        fields = self.tables.fields_of(data)
        return WritesRecord(*fields)

    def row(
        self,
        location: TaskLocation,
        record: WritesRecord,
    ) -> CallRow | None:
        """Return a task as a row.

        None: it is no node of the user's, or its writes were taken back.
        """
        ran = _NEVER_RUN if record.ran is None else AttemptRecord(*record.ran)
        work = self._work(location, record)
        name = ran.name
        if not name and work.call_key is not None:
            name = work.call_key.name
        is_taken_back = not name and work.state == "unfinished"
        is_internal = name == _INPUT or record.task_id == records.RUN_TASK_ID
        if is_taken_back or is_internal:
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
            error=_error_line(work.error),
            questions=len(work.interrupts),
            planned=ran.planned,
            began=ran.began,
            seconds=ran.seconds,
            attempts=ran.attempts,
            executor=ran.executor,
            host=ran.host,
            pid=ran.pid,
            cpu=ran.cpu,
            peak=ran.peak,
        )

    def rows(self, tasks: Iterable[tuple[TaskLocation, bytes]]) -> tuple[CallRow, ...]:
        """Return tasks as rows, each once, without those that were taken back.

        Args:
            tasks: The location and the key of each task.
        """
        locations = {key: location for location, key in tasks}
        payloads = self._payloads(locations)
        rows: list[CallRow] = []
        for location, data in zip(locations.values(), payloads, strict=True):
            if data is None:
                continue
            record = self.record(data)
            row = self.row(location, record)
            if row is not None:
                rows.append(row)
        return tuple(rows)

    def call(
        self,
        locations: Collection[TaskLocation],
        call_id: str,
    ) -> dict[str, Any] | None:
        """Return all stored data of a task, as `StoreReader.call` does."""
        keys = [location.key + digest(call_id) for location in locations]
        payloads = self._payloads(keys)
        for location, data in zip(locations, payloads, strict=True):
            if data:
                record = self.record(data)
                row = self.row(location, record)
                if row is not None:
                    return self._details(location, record, row)
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
            "arguments": to_json(self._arguments(location, record.task_id)),
            "result": to_json(result),
            "error": to_json(work.error),
            "attempts": attempts,
            "questions": [question_to_json(interrupt) for interrupt in work.interrupts],
        }

    def _arguments(
        self,
        location: TaskLocation,
        task_id: str,
    ) -> dict[str, Any] | None:
        """Return the stored arguments by position and name, or None if none are."""
        key = beside(ARGUMENTS, location.key) + digest(task_id)
        (data,) = self._payloads([key])
        if data is None:
            return None
        arguments: KeptArguments = decoded(data, self.codec)
        by_name = {
            str(position): argument for position, argument in enumerate(arguments.args)
        }
        return by_name | arguments.kwargs

    def output(
        self,
        locations: Iterable[TaskLocation],
        call_id: str,
    ) -> str:
        """Return the printed and logged text of a task, empty if there is none."""
        keys = [
            beside(OUTPUT, location.key) + digest(call_id) for location in locations
        ]
        texts: list[str] = []
        for data in self._payloads(keys):
            if data:
                output = CallOutput(*self.tables.fields_of(data))
                texts.append(output.text)
        return "".join(texts)

    def _payloads(self, keys: Collection[bytes]) -> list[bytes | None]:
        """Return the payload at each of *keys*, all in one transaction."""

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
        """Return a task by its writes; only the *whole* one contains its result."""
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


def _error_line(error: Any) -> str:
    """Return the error of a task in one line, empty if it has not failed."""
    if not error:
        return ""
    if isinstance(error, str):
        return error
    return line_of(error)
