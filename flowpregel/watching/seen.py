"""What was seen of a checkpoint and of its tasks, in little memory, and what changed since.

A look goes through the keys of a checkpoint's tasks, and reads the records of those that are new
or had not ended well: a result that is kept stays as it is. Only `flowpregel redo` takes results
back, and where no run holds the thread: then a look compares the checksums of all records.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from flowpregel._core.records import Address
from flowpregel._lmdb.records import SIZE
from flowpregel.checkpoint.layout import CheckpointRecord, NamespaceRecord, checkpoint_key
from flowpregel.watching.tasks import CallState, Place, TaskRecords

_MISSING = CheckpointRecord(None, 0, 0, "", {}, {}, (), None, {}, {})
_Changed: TypeAlias = tuple[bytes, bytes, bytes]
"""The digest of a task, the checksum of its record and that one's payload."""
_AT_ONCE = 2_000
"""Keys. Longer lists, made by one OS thread after the other, the allocator would keep for each."""
_PAUSE = 20
"""How much longer than a look takes nobody looks again at a run that does not go on."""
DIGEST = 16
"""Bytes of what stands for a task at the end of its key."""
_STATES: tuple[CallState | None, ...] = (None, "failed", "waiting", "unfinished", "done")
_DONE = _STATES.index("done")
_SUM = DIGEST + SIZE
_TASK = _SUM + 1
"""Bytes that are kept of a task: its digest, the checksum of its record, and its state."""


class KnownTask(NamedTuple):
    """A task of which something is known."""

    digest: bytes
    checksum: bytes
    """That of its record."""
    state: CallState | None
    """None: it is no node of the user's, or was taken back."""


class KnownTasks:
    """The tasks of a checkpoint of which something is known."""

    def __init__(self) -> None:
        self._data = b""

    def wanted(self, keys: Sequence[bytes], *, with_done: bool) -> list[tuple[bytes, bytes]]:
        """Return the keys of those that are to be read, in order, each with its known checksum.

        Args:
            keys: In order; of what is known between the first and the last none is missing.
            with_done: Whether those are to be read again that were done.
        """
        wanted = list[tuple[bytes, bytes]]()
        at = self._find(keys[0][-DIGEST:], 0) if keys else 0
        for key in keys:
            task = self._data[at * _TASK : (at + 1) * _TASK]
            if task[:DIGEST] != key[-DIGEST:]:
                wanted.append((key, b""))
                continue
            at += 1
            if with_done or task[_SUM] != _DONE:
                wanted.append((key, task[DIGEST:_SUM]))
        return wanted

    def put(self, tasks: Iterable[KnownTask]) -> list[CallState | None]:
        """Keep what is known of tasks now, in order; return the state of each as it was."""
        parts, states, end = list[bytes](), list[CallState | None](), 0
        for task in tasks:
            at = self._find(task.digest, end)
            is_known = self._digest(at) == task.digest
            states.append(_STATES[self._data[at * _TASK + _SUM]] if is_known else None)
            state = bytes((_STATES.index(task.state),))
            parts += (self._data[end * _TASK : at * _TASK], task.digest, task.checksum, state)
            end = at + is_known
        self._data = b"".join((*parts, self._data[end * _TASK :]))
        return states

    def _find(self, digest: bytes, start: int) -> int:
        """Return the place of a task, or where it would be; it is not before *start*."""
        places = range(len(self._data) // _TASK)
        return bisect_left(places, digest, start, key=self._digest)

    def _digest(self, at: int) -> bytes:
        return self._data[at * _TASK : at * _TASK + DIGEST]


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
            keys = [key for key in keys if len(key) == length]  # those of chunks are longer
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
        rows = (self._tasks.row(self.place, self._tasks.record(data)) for _, _, data in changed)
        tasks = [
            KnownTask(digest, checksum, row and row.state)
            for (digest, checksum, _), row in zip(changed, rows, strict=True)
        ]
        for before, task in zip(self._known.put(tasks), tasks, strict=True):
            if before is not None:
                self.states[before] -= 1
            if task.state is None:
                self.is_taken_back |= before is not None
                continue
            self.states[task.state] += 1
            self.changes += task.digest
