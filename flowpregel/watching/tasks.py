"""Runs, and the tasks that have left something on a checkpoint, read where they lie, as rows.

The fields of a row are fit for JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from flowpregel._core import records
from flowpregel._core.ids import Ran, caller_of
from flowpregel._core.provenance import line_of
from flowpregel._core.records import Address
from flowpregel.checkpoint.arguments import decoded
from flowpregel.checkpoint.layout import ARGUMENTS, OUTPUT, Tables, WritesRecord, beside, digest
from flowpregel.checkpoint.output import CallOutput
from flowpregel.checkpoint.work import Status, Work, work_from
from flowpregel.watching.preview import plain, question

if TYPE_CHECKING:
    from flowpregel._lmdb.records import StoreOnDisk

CallState: TypeAlias = Literal["failed", "waiting", "unfinished", "done"]
"""How a call stands by what is kept of it: *waiting*, for an answer; *unfinished*, it has left
something (what it saved, say) and has not ended. One that runs has often left nothing yet."""


class RunRow(NamedTuple):
    """A run: what its thread's newest checkpoint tells, and who has it now."""

    thread_id: str
    status: Status
    flow: str | None
    """``MODULE:FLOW``, if the run recorded it."""
    step: int
    """The superstep of its newest checkpoint; -1: it has just begun."""
    created: int
    """Wall-clock nanoseconds at which the thread began."""
    updated: int
    """Wall-clock nanoseconds of its newest checkpoint."""
    checkpoints: int
    """How many the thread has."""
    states: dict[CallState, int]
    """How many tasks of its present superstep, and calls in it, stand how."""
    host: str = ""
    """Where it runs now; empty: nowhere."""
    pid: int = 0
    """In which process it runs now; 0: in none."""


class CallRow(NamedTuple):
    """A call of a task, or a node's task, by what it has left in the store."""

    id: str
    name: str
    """Of its node; empty: only its flow knows."""
    text: str
    """The call with short arguments, such as ``parse('c.txt')``; empty: it is no call."""
    state: CallState
    step: int
    checkpoint_id: str
    """The checkpoint that it left something on."""
    namespace: str
    """Of the graph that it belongs to; empty: of the outermost."""
    path: str
    """Where it stands in its superstep: sorted by it, calls come after those that made them."""
    caller: str
    """The path of the task whose body made the call; empty: it is no call."""
    error: str
    """What it failed with, in one line."""
    questions: int
    """How many answers it waits for."""
    planned: int
    """Wall-clock nanoseconds at which its first attempt was given away to be run; 0: not known."""
    began: int
    """Wall-clock nanoseconds at which its last attempt began; 0: not known."""
    seconds: float
    """How long that took."""
    attempts: int
    """How often it was tried; 0 and *began*: its result was shared by another run."""
    executor: str
    host: str
    pid: int
    """In which process the last attempt ran; 0: not known."""
    cpu: float
    """Seconds of CPU that the last attempt took; 0: not known."""
    peak: int
    """The most memory, in bytes, that its process had used when it ended; 0: not known."""


class CallChanges(NamedTuple):
    """What changed of a run's calls since a mark."""

    mark: int
    """To be given the next time."""
    is_whole: bool
    """Whether *rows* begins with all there is: drop what was known before."""
    is_more: bool
    """Whether there is more, which is told the next time."""
    rows: tuple[CallRow, ...]
    """New ones and changed ones; one that changed again is there once more, later."""


_SHOWN = (records.CALLED, records.ERROR, records.INTERRUPT)
"""The writes that a row is made of; of others it matters that they are there."""
_TAKEN = attrgetter(*CallRow._fields[CallRow._fields.index("planned") :])
"""Takes the end of a row out of how a task ran."""
_NEVER = Ran("", 0, 0.0, 0, "", 0)
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
        self.read: Callable[[Callable[[Any], Any]], Any] = store.read
        self.codec = store.codec

    def record(self, data: bytes) -> WritesRecord:
        """Return the record with this payload."""
        return WritesRecord(*self.tables.fields_of(data))

    def row(self, place: Place, record: WritesRecord) -> CallRow | None:
        """Return a task as a row; None: it is no node of the user's, or was taken back."""
        ran = _NEVER if record.ran is None else Ran(*record.ran)
        work = self._work(place, record)
        name = ran.name or (work.asked.name if work.asked else "")
        is_empty = not name and work.state == "unfinished"
        if is_empty or name == _INPUT or record.task_id == records.RUN_TASK_ID:
            return None
        text, error = (work.name or "") if work.is_call else "", work.error or ""
        return CallRow(
            record.task_id, name, text, cast(CallState, work.state), place.step,
            place.address.checkpoint_id or "", place.address.namespace, record.path,
            caller_of(record.path), error if isinstance(error, str) else line_of(error),
            len(work.interrupts), *_TAKEN(ran),
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
                work = self._work(place, record, whole=True)
                (data,) = self._payloads([beside(ARGUMENTS, place.key) + digest(record.task_id)])
                kept = None if data is None else decoded(data, self.codec)
                given = kept and {str(at): each for at, each in enumerate(kept.args)} | kept.kwargs
                failed = work.ran.failed if work.ran else ()
                return {
                    "row": row,
                    "arguments": plain(given),
                    "result": plain(work.result if work.writes is None else work.writes),
                    "error": plain(work.error),
                    "attempts": [dict(zip(_ATTEMPT, each, strict=True)) for each in failed],
                    "questions": [*map(question, work.interrupts)],
                }
        return None

    def output(self, places: Iterable[Place], call_id: str) -> str:
        """Return what a task has printed and logged; empty: nothing."""
        keys = [beside(OUTPUT, at.key) + digest(call_id) for at in places]
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
