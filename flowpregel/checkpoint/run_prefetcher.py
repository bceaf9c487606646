"""A prefetcher, which reads records of several runs from a store on another machine
before they are needed.

::

    threads of a chunk ──► their namespaces       one round trip
    namespaces ──► checkpoints, newest tasks      one, if needed
              ├──► earlier tasks, nested graphs   one, if needed
              └──► signals                        one, if needed
    threads ──► leases                            one round trip
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import (
    SIGNALS,
    NamespaceRecord,
    checkpoint_key,
    digest,
    sidecar_key,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.storage.records import after
from flowpregel.storage.stores import KeyRange, Store, prefetcher

if TYPE_CHECKING:
    from flowpregel.checkpoint.leases import LeaseRegistry

_FIRST_ID = b"\1"
"""The smallest id of a checkpoint that is read ahead. The keys of the records beside
pending writes, such as printed texts, are smaller.
"""


class RunPrefetcher:
    """A reader of records that will be needed, inside a snapshot that several reads
    share. It reads nothing if this kind of store does not read ahead.

    Args:
        store: The open store.
        tables: The tables of the store.
        leases: The processes that hold runs.
    """

    def __init__(
        self,
        store: Store,
        tables: Tables,
        leases: LeaseRegistry,
    ) -> None:
        self._prefetch = prefetcher(store)
        self._tables = tables
        self._leases = leases

    def rows(self, namespaces: Collection[NamespaceRecord]) -> None:
        """Announce the records for a list with one row for each run, so that they are
        read together.

        Args:
            namespaces: The records of the runs' outermost graphs.
        """
        if self._prefetch is None:
            return
        ranges: list[KeyRange] = []
        for namespace in namespaces:
            newest = _newest_key(namespace)
            ranges.append(KeyRange(b"checkpoints", newest, after(newest)))
            ranges.append(_newest_tasks(namespace))
        self._prefetch(ranges)
        self._leases.owners([Address(run.thread_id) for run in namespaces])

    def threads(self, thread_ids: Collection[str]) -> None:
        """Announce the records for the status and the last run of threads, so that they
        are read together.

        Args:
            thread_ids: The ids of the threads.
        """
        if self._prefetch is None:
            return
        namespaces: list[KeyRange] = []
        for thread_id in thread_ids:
            prefix = digest(thread_id)
            namespaces.append(KeyRange(b"threads", prefix, after(prefix)))
        self._prefetch(namespaces)
        newest: list[KeyRange] = []
        earlier: list[KeyRange] = []
        signals: list[KeyRange] = []
        for thread_id in thread_ids:
            for namespace in self._tables.used(thread_id):
                if namespace.namespace:
                    earlier.append(_checkpoints(namespace))
                    earlier.append(_newest_tasks(namespace))
                else:
                    newest.append(_checkpoints(namespace))
                    newest.append(_newest_tasks(namespace))
                    prefix = sidecar_key(SIGNALS, namespace.prefix)
                    signals.append(KeyRange(b"writes", prefix, after(prefix)))
                earlier.append(_earlier_tasks(namespace))
        self._prefetch(newest)
        self._prefetch(earlier)
        self._prefetch(signals)
        self._leases.owners([Address(thread_id) for thread_id in thread_ids])


def _newest_key(namespace: NamespaceRecord) -> bytes:
    """Return the key of a namespace's newest checkpoint."""
    return checkpoint_key(namespace.prefix, namespace.newest or "")


def _checkpoints(namespace: NamespaceRecord) -> KeyRange:
    """Return the keys of a namespace's checkpoints."""
    end = after(namespace.prefix)
    return KeyRange(b"checkpoints", namespace.prefix, end, is_backwards=True)


def _newest_tasks(namespace: NamespaceRecord) -> KeyRange:
    """Return the keys of the tasks of a namespace's newest checkpoint."""
    newest = _newest_key(namespace)
    return KeyRange(b"writes", newest, after(newest))


def _earlier_tasks(namespace: NamespaceRecord) -> KeyRange:
    """Return the keys of the tasks of the checkpoints before the newest one."""
    first = namespace.prefix + _FIRST_ID
    newest = _newest_key(namespace)
    return KeyRange(b"writes", first, newest, is_backwards=True)
