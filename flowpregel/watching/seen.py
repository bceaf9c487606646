"""What was seen of a checkpoint and of its tasks, in little memory, and what changed since.

A look goes through the keys of a checkpoint's tasks, and reads the records of those that are new
or had not ended well: a result that is kept stays as it is. Only `flowpregel redo` takes results
back, and where no run holds the thread: then a look compares the checksums of all records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from flowpregel._core.records import Address
from flowpregel._lmdb.records import SIZE
from flowpregel.checkpoint.layout import CheckpointRecord, NamespaceRecord, checkpoint_key
from flowpregel.watching.known import DIGEST, KnownTask, KnownTasks
from flowpregel.watching.rows import CallState
from flowpregel.watching.tasks import Place, TaskRecords

_MISSING = CheckpointRecord(None, 0, 0, "", {}, {}, (), None, {}, {})
_Changed: TypeAlias = tuple[bytes, bytes, bytes]
"""The digest of a task, the checksum of its record and that one's payload."""
_AT_ONCE = 2_000
"""Keys. Longer lists, made by one OS thread after the other, the allocator would keep for each."""
_PAUSE = 20
"""How much longer than a look takes nobody looks again at a run that does not go on."""


class SeenCheckpoint:
    """A checkpoint.

    Args:
        tasks: Reads those that have left something on it.
        namespace: Its own.
        id: Its id.
    """

    def __init__(self, tasks: TaskRecords, namespace: NamespaceRecord, id: str) -> None:
        read = partial(tasks.tables.checkpoint, namespace=namespace, checkpoint_id=id)
        found = tasks.read(read)
        self.id, self.is_there = id, found is not None
        self.record: CheckpointRecord = found or _MISSING
        self._decode = tasks.codec.decode
        address = Address(namespace.thread_id, namespace.namespace, id)
        key = checkpoint_key(namespace.prefix, id)
        self.tasks = SeenTasks(tasks, Place(address, self.record.step + 1, key))

    def item(self, name: str) -> Any:
        """Return an item of its metadata, read inertly; None: it has no such."""
        data = self.record.metadata.get(name)
        return None if data is None else self._decode(data, "the metadata of a checkpoint")

    @property
    def root_id(self) -> str:
        """The checkpoint of the outermost graph from which its nested one was started."""
        parents = self.item("parents")
        return str(parents.get("")) if isinstance(parents, dict) else ""


class SeenTasks:
    """What was seen of the tasks that have left something on a checkpoint.

    Args:
        tasks: Reads them.
        place: Where they are.
    """

    def __init__(self, tasks: TaskRecords, place: Place) -> None:
        self._tasks, self.place = tasks, place
        self._known = KnownTasks()
        self._next: bytes | None = None
        """The key from which on they are looked at the next time; None: from the first."""
        self.states: Counter[CallState] = Counter()
        self.changes = bytearray()
        """The digests of those that changed, until somebody takes them out."""
        self.is_taken_back = False
        """Whether something went that was there, so that *changes* does not tell all."""
        self._due = 0.0
        """When they are looked at again, if no run has the thread: monotonic seconds."""

    @property
    def is_behind(self) -> bool:
        """Whether some of them are still to be looked at."""
        return self._next is not None

    def look(self, most: int, *, is_held: bool, is_last: bool = False) -> bool:
        """Read some of what changed; return False if it is too early to look again.

        Args:
            most: How many records are read: the others the next time.
            is_held: Whether a run has the thread. If not, anything may have changed, but seldom
                does: it is not looked at too often.
            is_last: Another checkpoint has followed: from now on nothing changes any more.
        """
        began = time.monotonic()
        if not (is_held or is_last or self.is_behind) and began < self._due:
            return False
        start = self._next or self.place.key
        read = partial(self._read, start=start, most=most, is_held=is_held)
        changed, self._next = self._tasks.read(read)
        self._take_in(changed)
        if not is_held:
            self._due = began + _PAUSE * (time.monotonic() - began)
        return True

    def _read(
        self, transaction: Any, start: bytes, most: int, is_held: bool
    ) -> tuple[list[_Changed], bytes | None]:
        """Return what changed from the key *start* on, and where to go on; None: that is all."""
        table, length = self._tasks.table, len(self.place.key) + DIGEST
        changed: list[_Changed] = []
        at_once = min(2 * most, _AT_ONCE)
        following: bytes | None = start
        while following is not None and most > 0:
            keys = table.keys(transaction, self.place.key, following, at_once)
            following = keys[-1] + b"\0" if len(keys) == at_once else None
            if {*map(len, keys)} != {length}:  # those of chunks are longer
                keys = [key for key in keys if len(key) == length]
            wanted = self._known.wanted(keys, with_done=not is_held)
            if len(wanted) > most:
                following = wanted[most][0]
            wanted = wanted[:most]
            most -= len(wanted)
            table.expect(transaction, [key for key, _ in wanted])
            for key, checksum in wanted:
                record = table.record(transaction, key)
                if record is not None and record[:SIZE] != checksum:
                    payload = table.get(transaction, key)
                    assert payload is not None
                    changed.append((key[-DIGEST:], record[:SIZE], payload))
        return changed, following

    def _take_in(self, changed: Sequence[_Changed]) -> None:
        """Note what became of those that changed, in their order."""
        tasks = [
            KnownTask(digest, checksum, self._tasks.state(self.place, self._tasks.record(payload)))
            for digest, checksum, payload in changed
        ]
        for before, task in zip(self._known.put(tasks), tasks, strict=True):
            if before is not None:
                self.states[before] -= 1
            if task.state is None:
                self.is_taken_back |= before is not None
                continue
            self.states[task.state] += 1
            self.changes += task.digest
