"""The tasks that have left something on a checkpoint, read where they lie, as rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flowpregel._core import records
from flowpregel._core.calls import line_of
from flowpregel._core.ids import CallRecord, Ran, caller_of
from flowpregel._core.records import Address
from flowpregel.checkpoint.arguments import arguments_key, decoded
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.output import CallOutput, output_key
from flowpregel.checkpoint.tables import Tables, WritesRecord, digest
from flowpregel.checkpoint.work import Work, work_from
from flowpregel.watching.preview import plain, question
from flowpregel.watching.rows import CallRow, CallState

if TYPE_CHECKING:
    from flowpregel._lmdb.records import StoreOnDisk

_SHOWN = (records.CALLED, records.ERROR, records.INTERRUPT)
"""The writes that a row is made of; of others it matters that they are there."""
_TAKEN = attrgetter(*CallRow._fields[CallRow._fields.index("planned") :])
"""Takes the end of a row out of how a task ran."""
_NEVER = Ran("", 0, 0.0, 0, "", 0)
_CALLED, _TEXT = WRITES_IDX_MAP[records.CALLED], CallRecord._fields.index("text")
"""Where a task's record has which call it is, and where that has it as text."""
_INPUT = "__start__"
"""The name of what takes in the input."""
_ATTEMPT = ("began", "seconds", "pid", "error", "traceback")


class Place(NamedTuple):
    """A checkpoint, and where what its tasks have left is."""

    address: Address
    step: int
    """Of its tasks."""
    key: bytes
    """What the keys of their records begin with: their digests follow."""


class TaskRecords:
    """Reads what tasks have left in a store: nothing of it is remembered.

    Args:
        store: Open, with a codec that decodes inertly.
    """

    def __init__(self, store: StoreOnDisk) -> None:
        self.tables = Tables(store)
        self.table = self.tables.writes
        self.read: Callable[[Callable[[Any], Any]], Any] = store.environment.read
        self.codec = store.codec

    def record(self, data: bytes) -> WritesRecord:
        """Return the record with this payload."""
        return WritesRecord(*self.tables.fields_of(data))

    def state(self, place: Place, record: WritesRecord) -> CallState | None:
        """Return the state of the row that `row` returns."""
        if _is_done(record):
            return "done"
        row = self.row(place, record)
        return row and row.state

    def row(self, place: Place, record: WritesRecord) -> CallRow | None:
        """Return a task as a row; None: it is no node of the user's, or was taken back."""
        ran = _NEVER if record.ran is None else Ran(*record.ran)
        name, text, state, questions = ran.name, ran.call, "done", 0
        error: Any = ""
        if _is_done(record):  # as most are: little of it has to be decoded
            data = record.writes.get(_CALLED)
            called = data and self.codec.decode(data[1], "a call")
            text = str(called[_TEXT]) if isinstance(called, tuple) else text
        else:
            work = self._work(place, record)
            name = name or (work.asked.name if work.asked else "")
            text = (work.name or "") if work.is_call else ""
            state, questions = work.state, len(work.interrupts)
            error = work.error or ""
            is_empty = not name and state == "unfinished"
            if is_empty or name == _INPUT or record.task_id == records.RUN_TASK_ID:
                return None
        return CallRow(
            record.task_id, name, text, cast(CallState, state), place.step,
            place.address.checkpoint_id or "", place.address.namespace, record.path,
            caller_of(record.path), error if isinstance(error, str) else line_of(error), questions,
            *_TAKEN(ran),
        )  # fmt: skip

    def rows(self, found: Iterable[tuple[Place, bytes]]) -> tuple[CallRow, ...]:
        """Return tasks as rows, each once, without those that were taken back.

        Args:
            found: The checkpoint and the key of each.
        """
        places = {key: place for place, key in found}
        kept = zip(places.values(), self._payloads(places), strict=True)
        rows = (self.row(place, self.record(data)) for place, data in kept if data is not None)
        return tuple(row for row in rows if row is not None)

    def call(self, places: Collection[Place], call_id: str) -> dict[str, Any] | None:
        """Return all that is kept of a task, as `StoreReader.call` does."""
        keys = [place.key + digest(call_id) for place in places]
        for place, data in zip(places, self._payloads(keys), strict=True):
            if data and (row := self.row(place, record := self.record(data))) is not None:
                return {"row": row, **self._detail(place, record)}
        return None

    def _detail(self, place: Place, record: WritesRecord) -> dict[str, Any]:
        """Return what a row does not tell of a task."""
        work = self._work(place, record, whole=True)
        (data,) = self._payloads([arguments_key(place.key, record.task_id)])
        kept = None if data is None else decoded(data, self.codec)
        arguments = kept and {str(at): each for at, each in enumerate(kept.args)} | kept.kwargs
        failed = work.ran.failed if work.ran else ()
        return {
            "arguments": plain(arguments),
            "result": plain(work.result if work.writes is None else work.writes),
            "error": plain(work.error),
            "attempts": [dict(zip(_ATTEMPT, each, strict=True)) for each in failed],
            "questions": [*map(question, work.interrupts)],
        }

    def output(self, places: Iterable[Place], call_id: str) -> str:
        """Return what a task has printed and logged; empty: nothing."""
        keys = [output_key(at.key[:8], at.address.checkpoint_id) + digest(call_id) for at in places]
        kept = (CallOutput(*self.tables.fields_of(data)) for data in self._payloads(keys) if data)
        return "".join(output.text for output in kept)

    def _payloads(self, keys: Collection[bytes]) -> list[bytes | None]:
        """Return what is at each of *keys*, all as it was at one moment."""

        def found(transaction: Any) -> list[bytes | None]:
            self.table.expect(transaction, [*keys])
            return [self.table.get(transaction, key) for key in keys]

        return cast(list[bytes | None], self.read(found))

    def _work(self, place: Place, record: WritesRecord, *, whole: bool = False) -> Work:
        """Return how a task ran, and what it left, with its result only if it is the *whole*."""
        ran = None if record.ran is None else Ran(*record.ran)
        kept = {
            name: self.codec.decode(data, "a task's write") if whole or name in _SHOWN else None
            for _, (name, data) in sorted(record.writes.items())
        }
        return work_from(place.address, place.step, record.task_id, kept, ran)


def _is_done(record: WritesRecord) -> bool:
    """Return whether, so much is known undecoded, a node of the user's has ended well."""
    names = (name for name, _ in record.writes.values())
    is_node = record.task_id != records.RUN_TASK_ID and record.ran and record.ran[0] != _INPUT
    return bool(is_node) and not records.CONTROL_WRITES.issuperset(names)
