"""Very many tasks in little memory: what is known of each, in the order of their keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowpregel._lmdb.records import SIZE
from flowpregel.watching.rows import CallState

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
        if not keys:
            return []
        low, missing = self._missing(keys)
        high = low + len(keys) - len(missing)
        states = self._data[low * _TASK + _SUM : high * _TASK : _TASK]
        known = [at for at, state in enumerate(states, low) if with_done or state != _DONE]
        head, tasks = keys[0][:-DIGEST], map(self._task, known)
        again = [(head + task.digest, task.checksum) for task in tasks]
        return sorted([*((keys[at], b"") for at in missing), *again])

    def put(self, tasks: Iterable[KnownTask]) -> list[CallState | None]:
        """Keep what is known of tasks now, in order; return the state of each as it was."""
        parts, states, end = list[bytes](), list[CallState | None](), 0
        for task in tasks:
            at = self._find(task.digest, end)
            is_known = self._digest(at) == task.digest
            states.append(self._task(at).state if is_known else None)
            state = bytes((_STATES.index(task.state),))
            parts += (self._data[end * _TASK : at * _TASK], task.digest, task.checksum, state)
            end = at + is_known
        self._data = b"".join((*parts, self._data[end * _TASK :]))
        return states

    def _missing(self, keys: Sequence[bytes]) -> tuple[int, list[int]]:
        """Return where the first of *keys* is, or would be, and the places of those not known."""
        low, missing, at = self._find(keys[0][-DIGEST:], 0), list[int](), 0

        def is_off(at: int) -> bool:
            # From a key on that is not known, all stand one place further than what is.
            return keys[at][-DIGEST:] != self._digest(low + at - len(missing))

        while at < len(keys):
            if is_off(at):
                missing.append(at)
                at += 1
            else:
                at = bisect_left(range(len(keys)), True, at, key=is_off)
        return low, missing

    def _find(self, digest: bytes, start: int) -> int:
        """Return the place of a task, or where it would be; it is not before *start*."""
        places = range(len(self._data) // _TASK)
        return bisect_left(places, digest, start, key=self._digest)

    def _digest(self, at: int) -> bytes:
        return self._data[at * _TASK : at * _TASK + DIGEST]

    def _task(self, at: int) -> KnownTask:
        data = self._data[at * _TASK : (at + 1) * _TASK]
        return KnownTask(data[:DIGEST], data[DIGEST:_SUM], _STATES[data[_SUM]])
