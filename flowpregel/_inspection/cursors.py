"""The known states of a checkpoint's tasks in compact form, and the tasks that changed.

A reader lists the keys of a checkpoint's tasks, but reads only the records of tasks
that are new or had not succeeded. This is enough while a run holds the thread, because
a stored result does not change during a run. Only `flowpregel redo` deletes results,
and only when no run holds the thread. While no run holds the thread, the reader
compares the checksums of all records.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias

from flowpregel._core.records import Address
from flowpregel._inspection.call_rows import CallState
from flowpregel._inspection.tasks import TaskLocation, TaskRecords
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    NamespaceRecord,
    checkpoint_key,
)
from flowpregel.storage.records import SIZE

_MISSING = CheckpointRecord(
    parent_id=None,
    at=0,
    step=0,
    source="",
    channel_versions={},
    versions_seen={},
    changed=(),
    updated_channels=None,
    metadata={},
    places={},
)
_ChangedRecord: TypeAlias = tuple[bytes, bytes, bytes]
"""A task's digest (the end of the record's key), the checksum of the task's record, and
the record's payload.
"""
_KEYS_PER_READ = 2_000
"""The greatest number of keys that are read into one list. Longer lists are avoided,
because their memory would remain allocated for each OS thread that created one.
"""
_PAUSE_FACTOR = 20
"""The pause between two reads of the tasks of an idle run, as a multiple of the time
that a read takes.
"""
_versions = count(1)
"""The source of version numbers, which are unique in this process (see
`TaskCursor.version`).
"""
DIGEST = 16
"""The size, in bytes, of a task's digest, which is the end of the record's key."""
_STATES: tuple[CallState | None, ...] = (
    None,
    "failed",
    "waiting",
    "unfinished",
    "done",
)
_RUN_ENDS: tuple[CallState, ...] = ("failed", "waiting")
_NUMBERED_STATES = _STATES + _RUN_ENDS
"""The states of tasks. A `TaskTable` stores a state as its index in this tuple. The
last states are those of tasks with which the run has ended.
"""
_DONE = _STATES.index("done")
_STATE_OFFSET = DIGEST + SIZE
_ENTRY = _STATE_OFFSET + 1
"""The size, in bytes, of an entry of a `TaskTable`: a task's digest, the checksum of
the record, and the state.
"""


class TaskEntry(NamedTuple):
    """The known state of a task."""

    digest: bytes
    checksum: bytes
    """The checksum of the task's record."""
    state: CallState | None
    """The state of the task. It is None for an internal task (such as the run's input),
    which is not shown, and for a task whose result was deleted.
    """
    has_ended_run: bool = False
    """True if the run has ended with the error or the question of the task."""

    @property
    def state_number(self) -> int:
        """The number that stands for the state in a `TaskTable`."""
        if self.state is not None and self.has_ended_run:
            return len(_STATES) + _RUN_ENDS.index(self.state)
        return _STATES.index(self.state)


class TaskTable:
    """The known tasks of a checkpoint, sorted by digest, in one byte string.

    Args:
        data: The tasks, which `to_bytes` returned.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    def to_bytes(self) -> bytes:
        """Return the tasks as bytes."""
        return self._data

    def keys_to_read(
        self,
        keys: Sequence[bytes],
        *,
        with_done: bool,
    ) -> list[tuple[bytes, bytes]]:
        """Return the keys of records to read, in order, each with the known checksum.

        The checksum of a new record is empty.

        Args:
            keys: Sorted keys. No known key between the first and the last may be
                missing.
            with_done: True to include the keys of tasks that were done.
        """
        selection: list[tuple[bytes, bytes]] = []
        if not keys:
            return selection
        index = self._find(keys[0][-DIGEST:], 0)
        for key in keys:
            entry = self._entry(index)
            if entry[:DIGEST] != key[-DIGEST:]:
                selection.append((key, b""))
                continue
            index += 1
            if with_done or entry[_STATE_OFFSET] != _DONE:
                checksum = entry[DIGEST:_STATE_OFFSET]
                selection.append((key, checksum))
        return selection

    def update(self, tasks: Iterable[TaskEntry]) -> list[CallState | None]:
        """Store *tasks*, which are sorted by digest, and return their former states."""
        parts: list[bytes] = []
        former_states: list[CallState | None] = []
        end = 0
        for task in tasks:
            index = self._find(task.digest, end)
            unchanged = self._data[end * _ENTRY : index * _ENTRY]
            parts.append(unchanged)
            parts.append(task.digest)
            parts.append(task.checksum)
            parts.append(bytes([task.state_number]))
            end = index
            former_state: CallState | None = None
            if self._digest(index) == task.digest:
                former_entry = self._entry(index)
                former_state = _NUMBERED_STATES[former_entry[_STATE_OFFSET]]
                end += 1
            former_states.append(former_state)
        remainder = self._data[end * _ENTRY :]
        parts.append(remainder)
        self._data = b"".join(parts)
        return former_states

    def digests(self, state: CallState, most: int) -> list[bytes]:
        """Return the digests of tasks in a state, at most the first *most*."""
        states = self._state_numbers()
        indices: list[int] = []
        for number, numbered_state in enumerate(_NUMBERED_STATES):
            if numbered_state == state:
                indices += islice(_positions(states, number), most)
        indices.sort()
        return [self._digest(index) for index in indices[:most]]

    def run_ends(self) -> set[CallState]:
        """Return the states of the tasks with which the run has ended."""
        states = self._state_numbers()
        numbered_ends = enumerate(_RUN_ENDS, len(_STATES))
        return {state for number, state in numbered_ends if number in states}

    def _state_numbers(self) -> bytes:
        """Return the number of each task's state.

        They are searched by methods of `bytes`, which are written in C, because a
        checkpoint may have a million tasks.
        """
        return self._data[_STATE_OFFSET::_ENTRY]

    def all_digests(self) -> bytes:
        """Return the digests of all tasks that have a state."""
        digests = [
            self._data[start : start + DIGEST]
            for start in range(0, len(self._data), _ENTRY)
            if self._data[start + _STATE_OFFSET]
        ]
        return b"".join(digests)

    def _find(self, digest: bytes, start: int) -> int:
        """Return the index of a task, or the index at which to insert it.

        The search begins at the index *start*.
        """
        indices = range(len(self._data) // _ENTRY)
        return bisect_left(
            indices,
            digest,
            start,
            key=self._digest,
        )

    def _entry(self, index: int) -> bytes:
        start = index * _ENTRY
        return self._data[start : start + _ENTRY]

    def _digest(self, index: int) -> bytes:
        start = index * _ENTRY
        return self._data[start : start + DIGEST]


def _positions(states: bytes, number: int) -> Iterator[int]:
    """Yield the positions of *number* in *states*."""
    index = states.find(number)
    while index >= 0:
        yield index
        index = states.find(number, index + 1)


class FailedTasks(NamedTuple):
    """The failed tasks of a checkpoint, of which the first 10,000 are read."""

    bodies: int = 0
    """The number of bodies (tasks that make calls) that failed because one of their
    calls failed. Only the call should be counted as failed.
    """
    first: str = ""
    """The call that failed first, with its error. If no call has failed, the body that
    failed first.
    """


class CheckpointView:
    """A checkpoint, in its stored form, and a cursor over its tasks.

    Args:
        tasks: The reader of the tasks' records.
        namespace: The checkpoint's namespace.
        id: The checkpoint's id.
    """

    def __init__(
        self,
        tasks: TaskRecords,
        namespace: NamespaceRecord,
        id: str,
    ) -> None:
        tables = tasks.tables

        def read(transaction: Any) -> CheckpointRecord | None:
            """Return the checkpoint's record. If it stores only the differences from a
            keyframe (the channels of an earlier checkpoint), the keyframe is not read.
            """
            record = tables.stored_checkpoint(transaction, namespace, id)
            if record is None:
                return None
            return tables.with_metadata(transaction, namespace.prefix, record)

        record = tasks.read(read)
        self.id = id
        self.exists = record is not None
        self.record: CheckpointRecord = record or _MISSING
        self._decode = tasks.codec.decode
        location = TaskLocation(
            address=Address(namespace.thread_id, namespace.namespace, id),
            step=self.record.step + 1,
            key=checkpoint_key(namespace.prefix, id),
            is_over=id != namespace.newest,
        )
        self.tasks = TaskCursor(tasks, location)

    def metadata(self, name: str) -> Any:
        """Return an item of the metadata, decoded without the user's code, or None if
        it is missing.
        """
        data = self.record.metadata.get(name)
        if data is None:
            return None
        return self._decode(data, "the metadata of a checkpoint")

    def continues(self, known_id: str | None) -> bool:
        """Return whether this checkpoint follows the checkpoint *known_id* in the same
        run.
        """
        return self.record.source != "input" and self.record.parent_id == known_id

    @property
    def root_id(self) -> str:
        """The id of the outermost graph's checkpoint that was the newest when this
        checkpoint was made.
        """
        parents = self.metadata("parents")
        if not isinstance(parents, dict):
            return ""
        return str(parents.get(""))


class TaskCursor:
    """The known states of a checkpoint's tasks, and the tasks that changed.

    Args:
        tasks: The reader of the tasks' records.
        location: The location of the tasks' records.
    """

    def __init__(
        self,
        tasks: TaskRecords,
        location: TaskLocation,
    ) -> None:
        self._tasks = tasks
        self.location = location
        self._known = TaskTable()
        self._next_key: bytes | None = location.key
        """The key from which the next read begins, or None after the last task."""
        self.was_read = False
        """True if all tasks have been read once."""
        self.states: Counter[CallState] = Counter()
        self.version = next(_versions)
        """A number that no other cursor has. It is replaced by a new one after each
        read that finds changed tasks.
        """
        self.changes = bytearray()
        """The digests of changed tasks, until the reader of the run clears them."""
        self.is_taken_back = False
        """True if a known task no longer counts, because its result was deleted, or it
        is a failed call that was not made again when its caller ran again. *changes*
        does not show this.
        """
        self._failed: tuple[int, FailedTasks] | None = None
        """The version of the tasks, and the failed tasks in that version."""
        self._store_mark: int | None = None
        """The store's mark (a number that each commit changes) before the tasks were
        read to the end while no run held the thread.
        """
        self._pass_mark: int | None = None
        """The store's mark before the first task was read."""
        self._is_restored = False
        """True if the states come from another reader, and results may have been
        deleted since it read them.
        """
        self._pass_seconds = 0.0
        """The time that reads have taken since the first task was read."""
        self._due_at = 0.0
        """The monotonic time of the next read of a thread that no run holds."""

    @property
    def is_behind(self) -> bool:
        """True if the known states of some tasks have not been compared with the store
        yet.
        """
        return self._next_key is not None

    @property
    def known_failed(self) -> FailedTasks | None:
        """The failed tasks that a reader has set; None if tasks have changed since."""
        if self._failed is None:
            return None
        version, failed = self._failed
        return failed if version == self.version else None

    @known_failed.setter
    def known_failed(self, failed: FailedTasks) -> None:
        self._failed = self.version, failed

    @property
    def run_ends(self) -> set[CallState]:
        """The states of the known tasks, ``failed`` or ``waiting``, with which the run
        has ended.
        """
        return self._known.run_ends()

    def tasks_in(
        self,
        state: CallState,
        most: int,
    ) -> list[tuple[TaskLocation, bytes]]:
        """Return the location and the key of known tasks in a state.

        Args:
            state: The state of the tasks.
            most: The limit on the number of tasks.
        """
        digests = self._known.digests(state, most)
        return [(self.location, self.location.key + digest) for digest in digests]

    def advance(
        self,
        most: int,
        *,
        is_held: bool,
        is_last: bool = False,
        store_mark: int | None = None,
    ) -> bool:
        """Read some changed tasks, or return False if it is too early for another read.

        True is returned without a read if the tasks are known not to have changed.

        Args:
            most: The limit on the number of records to read. The next call continues
                from there.
            is_held: True if a run holds the thread (has its lease). If no run holds it,
                any task may change, but changes are rare, so the tasks are read less
                often.
            is_last: True if another checkpoint has followed. Its tasks do not change
                after that, so they are read at once.
            store_mark: The store's mark (a number that each commit changes), if it is
                known. Tasks of a thread that no run holds are not read again as long as
                the mark is the same.
        """
        began_at = time.monotonic()
        is_urgent = is_held or is_last or self.is_behind
        is_unchanged = store_mark is not None and store_mark == self._store_mark
        if not is_urgent and is_unchanged:
            return True
        if not is_urgent and began_at < self._due_at:
            return False
        start = self._next_key or self.location.key
        if start == self.location.key:
            self._pass_mark = store_mark
            self._pass_seconds = 0.0
        read = partial(
            self._changed_records,
            start=start,
            most=most,
            with_done=self._is_restored or not is_held,
        )
        changed, self._next_key = self._tasks.read(read)
        self._apply(changed)
        self.was_read |= not self.is_behind
        self._is_restored &= self.is_behind
        if not is_held:
            self._pass_seconds += time.monotonic() - began_at
            self._due_at = began_at + _PAUSE_FACTOR * self._pass_seconds
            self._store_mark = None if self.is_behind else self._pass_mark
        return True

    def to_bytes(self) -> tuple[bytes, int | None]:
        """Return the known tasks, and the store's mark (a number that each commit
        changes) before they were read. The mark is None if a run held the thread.
        """
        return self._known.to_bytes(), self._store_mark

    def restore(
        self,
        known: bytes,
        store_mark: int | None,
        states: Counter[CallState],
    ) -> None:
        """Store the tasks that another cursor has read to the end.

        Args:
            known: The known tasks, which `to_bytes` returned.
            store_mark: The mark, which `to_bytes` returned.
            states: The number of tasks in each state.
        """
        self._known = TaskTable(known)
        self._next_key = None
        self.was_read = True
        self._is_restored = True
        self._store_mark = store_mark
        self.states = states

    def repeat_changes(self) -> None:
        """Put all known tasks into *changes* again, for a caller that no longer has the
        tasks.
        """
        self.changes[:] = self._known.all_digests()

    def end_step(self) -> None:
        """Note that another checkpoint has followed. From now on, a failed call that
        was not made again when its caller ran again is left out: set `is_taken_back` if
        there is one.
        """
        if self.location.is_over:
            return
        self.location = self.location._replace(is_over=True)
        failed = self.tasks_in("failed", self.states["failed"])
        for start in range(0, len(failed), _KEYS_PER_READ):
            tasks = failed[start : start + _KEYS_PER_READ]
            self.is_taken_back |= len(self._tasks.rows(tasks)) < len(tasks)

    def _changed_records(
        self,
        transaction: Any,
        start: bytes,
        most: int,
        with_done: bool,
    ) -> tuple[list[_ChangedRecord], bytes | None]:
        """Return the changed records at the key *start* and after it.

        The second value is the key from which the next read resumes, or None at the
        end.
        """
        table = self._tasks.table
        changed: list[_ChangedRecord] = []
        page_size = min(2 * most, _KEYS_PER_READ)
        next_key: bytes | None = start
        while next_key is not None and most > 0:
            keys = table.keys(
                transaction,
                self.location.key,
                next_key,
                page_size,
            )
            next_key = None
            if len(keys) == page_size:
                next_key = keys[-1] + b"\0"
            selection = self._known.keys_to_read(
                self._record_keys(keys),
                with_done=with_done,
            )
            if len(selection) > most:
                next_key, _ = selection[most]
                selection = selection[:most]
            most -= len(selection)
            changed += self._compared(transaction, selection)
        return changed, next_key

    def _compared(
        self,
        transaction: Any,
        selection: Sequence[tuple[bytes, bytes]],
    ) -> Iterator[_ChangedRecord]:
        """Yield the records whose checksum differs from the known checksum.

        Args:
            transaction: An open transaction.
            selection: The key of each record, and the known checksum.
        """
        table = self._tasks.table
        keys = [key for key, _ in selection]
        table.expect(transaction, keys)
        for key, known_checksum in selection:
            record = table.record(transaction, key)
            if record is None:
                continue
            checksum = record[:SIZE]
            if checksum == known_checksum:
                continue
            payload = table.get(transaction, key)
            assert payload is not None
            yield key[-DIGEST:], checksum, payload

    def _record_keys(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return *keys* without the keys of the chunks (parts) of large records, which
        are longer.
        """
        length = len(self.location.key) + DIGEST
        return [key for key in keys if len(key) == length]

    def _apply(self, changed: Sequence[_ChangedRecord]) -> None:
        """Update the known states from changed records, which are sorted by digest."""
        if changed:
            self.version = next(_versions)
        tasks: list[TaskEntry] = []
        for digest, checksum, payload in changed:
            record = self._tasks.record(payload)
            state = self._tasks.state(self.location, record)
            has_ended_run = False
            if state in _RUN_ENDS:
                has_ended_run = self._tasks.has_ended_run(self.location, record)
            entry = TaskEntry(digest, checksum, state, has_ended_run)
            tasks.append(entry)
        former_states = self._known.update(tasks)
        for former_state, task in zip(former_states, tasks, strict=True):
            if former_state is not None:
                self.states[former_state] -= 1
            if task.state is not None:
                self.states[task.state] += 1
                self.changes += task.digest
            elif former_state is not None:
                self.is_taken_back = True
