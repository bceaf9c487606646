"""The consumers of a store's queue: the processes of ``flowpregel work``.

::

    meta      number ► jobs, flows, refused runs     of each consumer
    leases    number ► host, process                 of each consumer that is alive

A consumer takes the smallest number that no other consumer has, and holds a lease of
that number until it ends. The entries (descriptions) of all consumers are in one record
in ``meta``, as JSON. If a consumer is killed, its entry stays, but nothing holds the
lease, so the entry is ignored. The next consumer with this number replaces the entry.

Nothing is written under such a lease, so it needs no fence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowpregel._core.records import Address
from flowpregel.errors import StoreError, ThreadBusyError
from flowpregel.storage.locks import LockHolder

if TYPE_CHECKING:
    from flowpregel.checkpoint.leases import LeaseRegistry
    from flowpregel.checkpoint.tables import Tables

CONSUMERS: Final = b"consumers"
"""The key in ``meta`` of the record of consumers."""
_MOST_REFUSED: Final = 100
"""The greatest number of refused runs (runs that a consumer cannot begin) in the entry
of a consumer. The last ones are kept.
"""
_LONGEST_REASON: Final = 1_000
"""The greatest number of characters of the reason why a run is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerEntry:
    """The stored description of a consumer.

    Example:
        >>> entry = ConsumerEntry(jobs=4, flows=("jobs:study",))
        >>> entry.takes("jobs:study"), entry.takes("jobs:nightly")
        (True, False)
    """

    jobs: int = 1
    """The number of runs that the consumer runs at a time."""
    flows: tuple[str, ...] = ()
    """The flows whose runs it takes, as ``MODULE:FLOW``; empty if it takes all."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The reasons why the consumer cannot begin runs, by thread."""

    def takes(self, flow: object) -> bool:
        """Return whether the consumer takes the runs of a flow.

        Args:
            flow: The flow that the runs recorded, as ``MODULE:FLOW``, or None.
        """
        return not self.flows or flow in self.flows

    def refusing(self, thread_id: str, reason: str) -> ConsumerEntry:
        """Return the entry with one more refused run.

        Args:
            thread_id: The thread of the run.
            reason: The reason why the consumer cannot begin it.

        Example:
            >>> dict(ConsumerEntry().refusing("wing", "no such module").refused)
            {'wing': 'no such module'}
        """
        refused = dict(self.refused)
        refused.pop(thread_id, None)
        refused[thread_id] = reason[:_LONGEST_REASON]
        newest = [*refused.items()][-_MOST_REFUSED:]
        return replace(self, refused=dict(newest))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConsumer:
    """A consumer whose process is alive.

    Example:
        >>> from flowpregel.checkpoint.durable import ConsumerEntry
        >>> from flowpregel.storage import LockHolder
        >>> owner = LockHolder("node3", 12)
        >>> QueueConsumer(owner=owner, entry=ConsumerEntry(jobs=4)).owner.host
        'node3'
    """

    owner: LockHolder
    """The process, with its host."""
    entry: ConsumerEntry
    """The description of the consumer."""


class QueueConsumers:
    """The consumers of one store's queue.

    Args:
        tables: The tables of the store.
        leases: The leases in the store.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     saver.consumers.alive()
        []
    """

    def __init__(self, tables: Tables, leases: LeaseRegistry) -> None:
        self._tables = tables
        self._leases = leases

    def alive(self) -> list[QueueConsumer]:
        """Return the consumers that are alive, in the order of their numbers."""
        consumers: list[QueueConsumer] = []
        for number, entry in sorted(self._entries().items()):
            owner = self._leases.owner(_address(number))
            if owner is not None:
                consumers.append(QueueConsumer(owner=owner, entry=entry))
        return consumers

    @contextmanager
    def register(
        self, jobs: int, flows: Collection[str] = ()
    ) -> Iterator[ConsumerRegistration]:
        """Count this process among the consumers while the context is open.

        Args:
            jobs: The number of runs that this process runs at a time.
            flows: The flows whose runs it takes; empty for all.

        Example:
            >>> from os import getpid
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     with saver.consumers.register(jobs=4):
            ...         (consumer,) = saver.consumers.alive()
            ...         print(consumer.owner.pid == getpid(), consumer.entry.jobs)
            ...     saver.consumers.alive()
            True 4
            []
        """
        entry = ConsumerEntry(jobs=jobs, flows=tuple(flows))
        with ExitStack() as resources:
            number = self._taken_number(resources)
            registration = ConsumerRegistration(self._tables, number, entry)
            registration.store()
            resources.callback(registration.remove)
            yield registration

    def _taken_number(self, resources: ExitStack) -> int:
        """Take the smallest free number, and hold its lease until *resources* are
        closed.
        """
        number = 0
        while True:
            lease = self._leases.hold(_address(number), "raise", _no_fence)
            try:
                resources.enter_context(lease)
            except ThreadBusyError:
                number += 1
            else:
                return number

    def _entries(self) -> dict[int, ConsumerEntry]:
        read = partial(self._tables.meta.get, key=CONSUMERS)
        return _entries_in(self._tables.read(read))


class ConsumerRegistration:
    """The entry of this process among the consumers of a store.

    Args:
        tables: The tables of the store.
        number: The number of this process among the consumers.
        entry: The description of this process.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     with saver.consumers.register(jobs=1) as registration:
        ...         registration.refuse("wing", "there is no such module")
        ...         (consumer,) = saver.consumers.alive()
        >>> dict(consumer.entry.refused)
        {'wing': 'there is no such module'}
    """

    def __init__(self, tables: Tables, number: int, entry: ConsumerEntry) -> None:
        self._tables = tables
        self._number = number
        self._entry: ConsumerEntry | None = entry

    def store(self) -> None:
        """Store the entry."""
        self._tables.write(self._put)

    def refuse(self, thread_id: str, reason: str) -> None:
        """Record that this process cannot begin a run, so that tools can show the
        reason.

        Args:
            thread_id: The thread of the run.
            reason: The reason, as a sentence.
        """
        if self._entry is not None:
            self._entry = self._entry.refusing(thread_id, reason)
            self.store()

    def remove(self) -> None:
        """Remove the entry. If the store cannot be reached, the entry stays, and is
        ignored once the lease has expired.
        """
        self._entry = None
        with suppress(StoreError):
            self.store()

    def _put(self, transaction: Any) -> None:
        meta = self._tables.meta
        entries = _entries_in(meta.get(transaction, CONSUMERS))
        entries.pop(self._number, None)
        if self._entry is not None:
            entries[self._number] = self._entry
        records = {number: asdict(entry) for number, entry in entries.items()}
        meta.put(transaction, CONSUMERS, json.dumps(records).encode())


def _entries_in(data: bytes | None) -> dict[int, ConsumerEntry]:
    """Return the entries in the record of a store, by number."""
    entries: dict[int, ConsumerEntry] = {}
    for number, fields in json.loads(data or b"{}").items():
        entries[int(number)] = ConsumerEntry(
            jobs=int(fields["jobs"]),
            flows=tuple(fields["flows"]),
            refused=fields["refused"],
        )
    return entries


def _address(number: int) -> Address:
    """Return the address of the lease of a consumer. Its thread id is empty, which the
    id of a thread never is.
    """
    return Address("", f"consumer {number}")


def _no_fence(_: Address, __: int) -> int:
    """Return 0, because nothing is written under the lease of a consumer."""
    return 0
