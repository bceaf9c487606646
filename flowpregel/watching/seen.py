"""What was read of a checkpoint and of its tasks, and what changed since.

A look reads the keys of a checkpoint's tasks, and the records of those that are new or had not
ended well: a result that is kept stays as it is. Only `flowpregel redo` takes results back, and
where no run holds the thread: then a look compares the checksums of all records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

from flowpregel._core import records
from flowpregel._core.asked import Ran
from flowpregel._core.calls import line_of
from flowpregel._core.ids import caller_of
from flowpregel._core.records import Address
from flowpregel._lmdb.records import SIZE
from flowpregel.checkpoint.arguments import arguments_key
from flowpregel.checkpoint.tables import (
    NamespaceRecord,
    Tables,
    WritesRecord,
    checkpoint_key,
    digest,
)
from flowpregel.checkpoint.work import Work, work_from
from flowpregel.watching.rows import CallRow, CallState

Decode = Callable[[bytes, str], Any]
_SHOWN = (records.CALLED, records.ERROR, records.INTERRUPT)
"""The writes that a row is made of; of others it matters that they are there."""
_TAKEN = tuple({*CallRow._fields} & {*Ran._fields} - {"name", "error"})
"""What a row has of how a task ran."""
_PAUSE = 20
"""How much longer than a look takes nobody looks again at a run that does not go on."""


class SeenCheckpoint:
    """A checkpoint, and what was read of the tasks that left something on it.

    Args:
        tables: The store's records.
        read: Runs a function in a read transaction.
        decode: Decodes a value inertly.
        namespace: The checkpoint's.
        id: Its id.
    """

    def __init__(
        self, tables: Tables, read: Any, decode: Decode, namespace: NamespaceRecord, id: str
    ) -> None:
        self._tables, self._read, self._decode = tables, read, decode
        record = read(partial(tables.checkpoint, namespace=namespace, checkpoint_id=id))
        self.id, self.is_there = id, record is not None
        self._address = Address(namespace.thread_id, namespace.namespace, id)
        self._prefix = checkpoint_key(namespace.prefix, id)
        self.parent_id: str | None = record and record.parent_id
        self.at: int = record.at if record else 0
        self.step: int = record.step if record else 0
        self.source: str = record.source if record else ""
        self._metadata = record.metadata if record else {}
        self._sums: dict[bytes, bytes] = {}
        """By key, the checksum of each task's record."""
        self._done: set[bytes] = set()
        """The keys of those that ended well."""
        self.unread: list[bytes] = []
        """The keys of those that are to be read yet."""
        self._count = 0
        """How many there were when the keys were read."""
        self.rows: dict[bytes, CallRow] = {}
        self.states: Counter[CallState] = Counter()
        self.changes: list[CallRow] = []
        """What changed, until somebody takes it out."""
        self.is_taken_back = False
        """Whether something went that was there, so that *changes* does not tell all."""
        self._due = 0.0
        """When it is looked at again, if no run has the thread: monotonic seconds."""

    def item(self, name: str) -> Any:
        """Return an item of its metadata, read inertly; None: it has no such."""
        data = self._metadata.get(name)
        return None if data is None else self._decode(data, "the metadata of a checkpoint")

    @property
    def root_id(self) -> str:
        """The checkpoint of the outermost graph from which its nested one was started."""
        parents = self.item("parents")
        return str(parents.get("")) if isinstance(parents, dict) else ""

    def look(self, most: int, *, is_held: bool, is_last: bool = False) -> bool:
        """Read some of what changed; return False if it is too early to look again.

        Args:
            most: Of how many tasks: the others are left *unread* until the next time.
            is_held: Whether a run has the thread. If not, anything may have changed, but seldom
                does: it is not looked at too often.
            is_last: Another checkpoint has followed: from now on nothing changes any more.
        """
        began = time.monotonic()
        if not self.unread:
            if not (is_held or is_last) and began < self._due:
                return False
            known = self._done if is_held else ()
            self._count, self.unread = self._read(partial(self._keys, known=known))
        keys, self.unread = self.unread[:most], self.unread[most:]
        for key, checksum, payload in self._read(partial(self._changed, keys=keys)):
            self._sums[key] = checksum
            self._take_in(key, WritesRecord(*self._tables.fields_of(payload)))
        self.is_taken_back |= not self.unread and self._count < len(self._sums)
        if not is_held:
            self._due = began + _PAUSE * (time.monotonic() - began)
        return True

    def _keys(self, transaction: Any, known: Collection[bytes]) -> tuple[int, list[bytes]]:
        """Return how many tasks have left something, and the keys of those that are not *known*."""
        table, count, found = self._tables.writes, 0, []
        length = len(self._prefix) + SIZE  # those of chunks are longer
        for key in table.keys(transaction, self._prefix):
            if key not in known:
                if len(key) != length:
                    continue
                found.append(key)
            count += 1
        return count, found

    def _changed(self, transaction: Any, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        """Return key, checksum and payload of those records that are not as they were."""
        table, changed = self._tables.writes, []
        table.expect(transaction, [*keys])
        for key in keys:
            record = table.record(transaction, key)
            if record is not None and record[:SIZE] != self._sums.get(key):
                payload = table.get(transaction, key)
                assert payload is not None
                changed.append((key, record[:SIZE], payload))
        return changed

    def row(self, call_id: str) -> CallRow | None:
        """Return a task that left something on it; None: there is no such."""
        return self.rows.get(self._prefix + digest(call_id))

    def work_of(self, call_id: str) -> tuple[Ran | None, Work]:
        """Return how that task ran, and what it left, its result too."""
        key = self._prefix + digest(call_id)
        data = self._read(partial(self._tables.writes.get, key=key))
        return self._work(WritesRecord(*self._tables.fields_of(data)), whole=True)

    def arguments_key(self, call_id: str) -> bytes:
        """Return the key of that task's arguments, which are kept of a call that failed."""
        return arguments_key(self._prefix, call_id)

    def _take_in(self, key: bytes, record: WritesRecord) -> None:
        before, row = self.rows.pop(key, None), self._row(record)
        if before is not None:
            self.states[before.state] -= 1
        if row is None:
            self.is_taken_back |= before is not None
            return
        self.rows[key] = row
        self.states[row.state] += 1
        self.changes.append(row)
        (self._done.add if row.state == "done" else self._done.discard)(key)

    def _row(self, record: WritesRecord) -> CallRow | None:
        """Return a task as a row; None: it is no node of the user's, or was taken back."""
        ran, work = self._work(record)
        name = ran.name if ran else work.asked.name if work.asked else ""
        is_empty = not name and work.state == "unfinished"
        if record.task_id == records.RUN_TASK_ID or name == "__start__" or is_empty:
            return None
        error = work.error
        return CallRow(
            id=record.task_id,
            name=name,
            text=work.name or "" if work.is_call else "",
            state=cast(CallState, work.state),
            step=work.step,
            checkpoint_id=self.id,
            namespace=self._address.namespace,
            path=record.path,
            caller=caller_of(record.path),
            error=error if isinstance(error, str) else line_of(error) if error else "",
            questions=len(work.interrupts),
            **({} if ran is None else {each: getattr(ran, each) for each in _TAKEN}),
        )

    def _work(self, record: WritesRecord, *, whole: bool = False) -> tuple[Ran | None, Work]:
        """Return how a task ran, and what it left, with its result only if it is the *whole*."""
        ran = None if record.ran is None else Ran(*record.ran)
        kept = {
            channel: self._decode(data, "a task's write") if whole or channel in _SHOWN else None
            for _, (channel, data) in sorted(record.writes.items())
        }
        return ran, work_from(self._address, self.step + 1, record.task_id, kept, ran)
