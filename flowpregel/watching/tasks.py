"""The tasks that have left something on a checkpoint, read where they lie, as rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flowpregel._core import records
from flowpregel._core.asked import Ran
from flowpregel._core.calls import line_of
from flowpregel._core.ids import caller_of
from flowpregel._core.records import Address
from flowpregel.checkpoint.arguments import arguments_key, decoded
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
        channels = (channel for channel, _ in record.writes.values())
        is_node = (
            record.ran and record.ran[0] != "__start__" and record.task_id != records.RUN_TASK_ID
        )
        if is_node and not records.CONTROL_WRITES.issuperset(channels):
            return "done"  # as most are: nothing else of it has to be decoded
        row = self.row(place, record)
        return row and row.state

    def row(self, place: Place, record: WritesRecord) -> CallRow | None:
        """Return a task as a row; None: it is no node of the user's, or was taken back."""
        ran, work = self._work(place, record)
        name = ran.name if ran else work.asked.name if work.asked else ""
        is_empty = not name and work.state == "unfinished"
        if record.task_id == records.RUN_TASK_ID or name == "__start__" or is_empty:
            return None
        error = work.error
        return CallRow(
            record.task_id,
            name,
            work.name or "" if work.is_call else "",
            cast(CallState, work.state),
            place.step,
            place.address.checkpoint_id or "",
            place.address.namespace,
            record.path,
            caller_of(record.path),
            error if isinstance(error, str) else line_of(error) if error else "",
            len(work.interrupts),
            *_TAKEN(ran or _NEVER),
        )

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
            row = data and self.row(place, self.record(data))
            if data and row:
                return {"row": row, **self._detail(place, call_id, self.record(data))}
        return None

    def _detail(self, place: Place, call_id: str, record: WritesRecord) -> dict[str, Any]:
        ran, work = self._work(place, record, whole=True)
        (data,) = self._payloads([arguments_key(place.key, call_id)])
        arguments: dict[str, Any] | None = None
        if data is not None:
            kept = decoded(data, self.codec)
            arguments = {str(at): each for at, each in enumerate(kept.args)} | kept.kwargs
        return {
            "arguments": plain(arguments),
            "result": plain(work.result if work.writes is None else work.writes),
            "error": plain(work.error),
            "attempts": [
                dict(zip(_ATTEMPT, each, strict=True)) for each in (ran.failed if ran else ())
            ],
            "questions": [*map(question, work.interrupts)],
        }

    def output(self, places: Iterable[Place], call_id: str) -> str:
        """Return what a task has printed and logged; empty: nothing."""
        keys = [
            output_key(place.key[:8], place.address.checkpoint_id) + digest(call_id)
            for place in places
        ]
        kept = (CallOutput(*self.tables.fields_of(data)) for data in self._payloads(keys) if data)
        return "".join(output.text for output in kept)

    def _payloads(self, keys: Collection[bytes]) -> list[bytes | None]:
        """Return what is at each of *keys*, all as it was at one moment."""
        return cast(list[bytes | None], self.read(partial(self._found, keys=[*keys])))

    def _found(self, transaction: Any, keys: list[bytes]) -> list[bytes | None]:
        self.table.expect(transaction, keys)
        return [self.table.get(transaction, key) for key in keys]

    def _work(
        self, place: Place, record: WritesRecord, *, whole: bool = False
    ) -> tuple[Ran | None, Work]:
        """Return how a task ran, and what it left, with its result only if it is the *whole*."""
        ran = None if record.ran is None else Ran(*record.ran)
        kept = {
            channel: self.codec.decode(data, "a task's write")
            if whole or channel in _SHOWN
            else None
            for _, (channel, data) in sorted(record.writes.items())
        }
        return ran, work_from(place.address, place.step, record.task_id, kept, ran)
