"""A saver that keeps everything in memory, for tests and for runs that need no disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from flowpregel._core.records import Address
from flowpregel.checkpoint.base import Fences, Lease, OnConflict
from flowpregel.checkpoint.records import RecordSaver
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import ThreadBusyError
from flowpregel.storage.in_memory import CopyingCodec, MemoryStore

__all__ = ["InMemorySaver", "MemorySaver"]


class MemoryTables(Tables):
    """The tables of a store in memory, whose records contain values as objects."""

    shares_values: ClassVar[bool] = False


class InMemorySaver(RecordSaver):
    """A saver that keeps checkpoints and pending writes until the process ends.

    Values are copied when they are stored and when they are read, so a later change of
    an object does not change the history. Any OS thread may use the saver.

    Example:
        >>> [*InMemorySaver().namespaces()]
        []
    """

    commits_at_once: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(MemoryTables(MemoryStore(CopyingCodec())), MemoryLeases())


MemorySaver = InMemorySaver


class MemoryLeases:
    """The leases of one process. Each new lease gets a fence that is greater by one."""

    def __init__(self) -> None:
        self.held: set[tuple[str, int]] = set()
        self._changed = threading.Condition()
        self._owners: dict[tuple[str, str], tuple[int, str]] = {}
        """The fence and the owner of each lease, by thread and namespace."""
        self._last = 0

    @contextmanager
    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> Iterator[Lease]:
        """Hold the right to write at *address* while the context is open.

        Raises:
            ThreadBusyError: Another run holds this right, and *on_conflict* is
                ``"raise"``.
        """
        key = (address.thread_id, address.namespace)
        name = threading.current_thread().name
        with self._changed:
            if on_conflict == "wait":
                self._changed.wait_for(lambda: key not in self._owners)
            replaced = self._owners.get(key)
            if replaced and on_conflict == "raise":
                raise ThreadBusyError(*key, replaced[1])
            self._last = fence = self._last + 1
            self._owners[key] = fence, f"a run in OS thread {name!r}"
            self.held.add((address.thread_id, fence))
        try:
            if replaced:
                fences(address, fence)
            yield Lease(fence)
        finally:
            with self._changed:
                self.held.discard((address.thread_id, fence))
                if self._owners.get(key, (0, ""))[0] == fence:
                    del self._owners[key]
                    self._changed.notify_all()
