"""The tracked changes of a run: its checkpoints, and a log of the tasks that changed.

`flowpregel._inspection.run_tracker` describes how they are used.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from flowpregel._inspection.call_rows import CallState
from flowpregel._inspection.cursors import DIGEST, TaskCursor
from flowpregel._inspection.tasks import TaskLocation

_INDEX = 4
"""The size, in bytes, of the index of a checkpoint, as the log stores it."""
_CHANGE = _INDEX + DIGEST
"""The size, in bytes, of a change in the log: the checkpoint's index, and the task's
digest.
"""


def _first_mark() -> int:
    """Return the first mark (position in the log) for a run: the wall-clock time in
    microseconds.

    Adding a change takes more than a microsecond, so marks never overtake the clock.
    Two runs therefore never have the same mark, even if different servers track them.
    """
    return time.time_ns() // 1_000


@dataclass(slots=True, eq=False)
class RunCursor:
    """The tracked changes of a thread's last run."""

    first: int = field(default_factory=_first_mark)
    """The mark (a position in the log) before the first change."""
    locations: list[TaskLocation] = field(default_factory=list)
    """The run's checkpoints, by index."""
    newest: dict[str, int] = field(default_factory=dict)
    """The index of the newest checkpoint of each namespace."""
    log: bytearray = field(default_factory=bytearray)
    """The changes of tasks: for each of them the checkpoint's index and the task's
    digest.
    """
    behind: deque[tuple[int, bool]] = field(default_factory=deque)
    """The indices of the checkpoints that must still be read, each with True if another
    checkpoint has followed.
    """
    open_cursors: dict[int, TaskCursor] = field(default_factory=dict)
    """The tasks that can still change, by the index of their checkpoint."""
    ended: Counter[CallState] = field(default_factory=Counter)
    """The number of tasks in each state, without the tasks of *open_cursors*."""
    was_behind: bool = False
    """True if some checkpoints had not been read yet when the last update began."""
    store_mark: int = -1
    """The store's mark (a number that each commit changes) at the last update."""
    is_held: bool = False
    """True if a run held the thread (had its lease) at the last update."""

    @property
    def mark(self) -> int:
        """The mark (a position in the log) after the last change."""
        changes = len(self.log) // _CHANGE
        return self.first + changes

    @property
    def states(self) -> Counter[CallState]:
        """The number of the run's known tasks in each state."""
        states = Counter(self.ended)
        for cursor in self.open_cursors.values():
            states.update(cursor.states)
        return states

    @property
    def root_ids(self) -> set[str | None]:
        """The ids of the outermost graph's checkpoints."""
        return {
            location.address.checkpoint_id
            for location in self.locations
            if not location.address.namespace
        }

    def add_changes(self, index: int, digests: bytes) -> None:
        """Add the digests of a checkpoint's changed tasks to the log."""
        size = len(digests)
        prefix = index.to_bytes(_INDEX, "big")
        for start in range(0, size, DIGEST):
            digest = digests[start : start + DIGEST]
            self.log += prefix
            self.log += digest

    def finish_first(self, *, is_last: bool) -> None:
        """Remove the first checkpoint from `behind`, since all its tasks were read.

        If *is_last*, discard its task cursor too.
        """
        index, _ = self.behind.popleft()
        if is_last:
            cursor = self.open_cursors.pop(index)
            self.ended.update(cursor.states)

    def changed(
        self,
        begin: int,
        end: int,
    ) -> Iterator[tuple[TaskLocation, bytes]]:
        """Yield the location and the key of each changed task in a part of the log."""
        log_begin = begin * _CHANGE
        log_end = end * _CHANGE
        log = bytes(self.log[log_begin:log_end])
        for start in range(0, len(log), _CHANGE):
            change = log[start : start + _CHANGE]
            index = int.from_bytes(change[:_INDEX], "big")
            digest = change[_INDEX:]
            location = self.locations[index]
            yield location, location.key + digest
