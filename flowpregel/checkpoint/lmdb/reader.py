"""Checkpoints out of the store: copied in a short transaction, decoded after it.

Decoding runs code of the user's classes, which must not keep a transaction
open: a reader that stands still keeps every freed page from being used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, cast

from flowpregel._core.copies import Replayed
from flowpregel._core.records import (
    Address,
    Checkpoint,
    DeltaHistory,
    PendingWrite,
    Saved,
    Source,
    parted,
)
from flowpregel._lmdb.codec import Codec, decode, reading
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import matches
from flowpregel.checkpoint.lmdb import taskrecord
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.deltarecord import Added
from flowpregel.checkpoint.lmdb.plain import Kept, decoder, value_of
from flowpregel.checkpoint.lmdb.results import Results, Sieve
from flowpregel.checkpoint.lmdb.state import DELTAS, VALUES
from flowpregel.checkpoint.lmdb.taskrecord import KeptTask
from flowpregel.checkpoint.lmdb.view import Chain, Found, View

_PAGE = 8
"""How many checkpoints of a history are read in one transaction."""


@dataclass(frozen=True, slots=True)
class Copied:
    """All that is kept of one checkpoint, nothing decoded."""

    address: Address
    found: Found
    newest: tuple[str, int]
    """The id and number of the newest of its thread and namespace."""
    values: dict[str, Kept]
    deltas: dict[str, tuple[Chain, int]]
    """By channel: how many deltas of a chain, from the oldest on."""
    tasks: list[KeptTask]
    names: dict[int, str]
    """Of the channels that they write to."""
    left: Results | None = None
    """Reads the results of calls that *tasks* leaves out, if there are any."""


class Reader:
    """Reads checkpoints.

    Args:
        book: The store's records.
        read: Runs a function in a read transaction.
        codec: Decodes values.
        bare: Whether to leave out what the channels hold: for who looks at tasks alone.
    """

    def __init__(
        self,
        book: Book,
        read: Callable[[Callable[[Any], Any]], Any],
        codec: Codec,
        *,
        bare: bool = False,
    ) -> None:
        self._bare = bare
        self._book = book
        self._read = read
        self._codec = codec

    def load(
        self, address: Address, before: str | None, *, leaves_results: bool = False
    ) -> Saved | None:
        """Return the checkpoint at *address*, or None."""

        def work(transaction: Any) -> Copied | None:
            return self._load(transaction, address, before, leaves_results)

        copied: Copied | None = self._read(work)
        return None if copied is None else self._decoded(copied, at_once=True)

    def touch(self, address: Address) -> None:
        """Read all that `load` would, and decode nothing of it."""
        self._read(lambda t: self._load(t, address, None))

    def history(
        self,
        address: Address,
        filter: Mapping[str, Any] | None,
        before: str | None,
        limit: int | None,
    ) -> Iterator[Saved]:
        """Yield the checkpoints at *address*, newest first, in a transaction for each page."""
        left = -1 if limit is None else max(limit, 0)
        # Neighbours in a history have most of their deltas in common.
        chains: dict[str, Chain] = {}
        if address.checkpoint_id is not None:
            found = self.load(address, before) if left else None
            if found is not None and matches(found.checkpoint, filter):
                yield found
            return
        while left:
            size = _PAGE if left < 0 or filter else min(left, _PAGE)
            page = self._read(
                partial(self._page, chains, address=address, before=before, size=size)
            )
            for copied in page:
                before = copied.found.change.id
                if filter and not matches(self._checkpoint(copied, {}), filter):
                    continue
                yield self._decoded(copied)
                left -= 1
                if not left:
                    return
            if len(page) < size:
                return

    def metadata(self, encoded: bytes) -> dict[str, Any]:
        """Return the metadata that a state has encoded."""
        if not encoded:
            return {}
        return dict(decode(self._codec, encoded, "the metadata of a checkpoint"))

    # ------------------------------------------------------------ inside a transaction

    def _load(
        self,
        transaction: Any,
        address: Address,
        before: str | None,
        leaves_results: bool = False,
    ) -> Copied | None:
        scope = self._book.scopes.get(transaction, address.thread_id, address.namespace)
        if scope is None:
            return None
        named = address.checkpoint_id
        newest = self._book.newest(transaction, scope, None if named else before)
        if newest is None or (named is not None and before is not None and named >= before):
            return None
        number: int | None = newest[1]
        if named is not None and named != newest[0]:
            number = self._book.number(transaction, scope, named)
        view = self._book.view(transaction, scope)
        found = None if number is None else view.find(number)
        if found is None:
            return None
        if named is None and before is not None:
            newest = self._book.newest(transaction, scope)
        assert newest is not None
        return self._copied(transaction, view, found, newest, {}, leaves_results)

    def _page(
        self,
        chains: dict[str, Chain],
        transaction: Any,
        *,
        address: Address,
        before: str | None,
        size: int,
    ) -> list[Copied]:
        scope = self._book.scopes.get(transaction, address.thread_id, address.namespace)
        newest = None if scope is None else self._book.newest(transaction, scope)
        if scope is None or newest is None:
            return []
        page = []
        view = self._book.view(transaction, scope)
        for _, number in self._book.newest_first(transaction, scope, before):
            found = view.find(number)
            assert found is not None
            page.append(self._copied(transaction, view, found, newest, chains))
            if len(page) == size:
                break
        return page

    def _copied(
        self,
        transaction: Any,
        view: View,
        found: Found,
        newest: tuple[str, int],
        chains: dict[str, Chain],
        leaves_results: bool = False,
    ) -> Copied:
        values, deltas = {}, {}
        for channel, place in () if self._bare else found.state.places.items():
            if place[0] in VALUES:
                values[channel] = view.value(channel, place)
            elif place[0] in DELTAS:
                chain = chains.get(channel)
                if chain is None or place[1] not in chain.positions:
                    chain = chains[channel] = view.deltas(channel, place[1])
                deltas[channel] = chain, chain.end(place[1])
        sieve = Sieve(self._book, transaction) if leaves_results else None
        kept = view.tasks(found.number, None if sieve is None else sieve.leaves)
        name_of = partial(self._book.names.name, transaction)
        tasks = [taskrecord.unpack(task, name_of) for task in kept.values()]
        left = None
        if sieve is not None and sieve.count:
            left = Results(self._book, self._read, self._codec, view.scope, found.number)
        names = {write.channel: name_of(write.channel) for task in tasks for write in task.writes}
        address = Address(view.scope.thread_id, view.scope.namespace, found.change.id)
        return Copied(address, found, newest, values, deltas, tasks, names, left)

    # ------------------------------------------------------------ after it

    def _decoded(self, copied: Copied, *, at_once: bool = False) -> Saved:
        writes, ran = parted(self._writes(copied))
        values = {channel: self._value(kept, channel) for channel, kept in copied.values.items()}
        return Saved(
            address=copied.address,
            checkpoint=self._checkpoint(copied, values),
            writes=writes,
            ran=ran,
            deltas={
                channel: DeltaHistory(
                    MISSING if chain.seed is MISSING else self._value(chain.seed, channel),
                    (*writes,) if at_once else writes,
                )
                for channel, (chain, end) in copied.deltas.items()
                for writes in (self._writes_of(chain, end, channel),)
            },
            is_latest=copied.newest[1] == copied.found.number,
            newest_id=copied.newest[0],
            left=copied.left,
        )

    def _checkpoint(self, copied: Copied, values: Mapping[str, Any]) -> Checkpoint:
        change, state = copied.found.change, copied.found.state
        return Checkpoint(
            id=change.id,
            parent_id=change.parent_id,
            at=change.at,
            step=change.step,
            source=cast(Source, change.source),
            channel_versions=state.versions,
            versions_seen=state.seen,
            changed=change.changed,
            updated_channels=change.updated,
            values=values,
            metadata=self.metadata(state.metadata),
        )

    def _writes(self, copied: Copied) -> Iterator[tuple[str, PendingWrite]]:
        """Yield the pending writes by path, task and position, each with its path."""
        for task in sorted(copied.tasks, key=lambda each: (each.path, each.task_id)):
            for write in sorted(task.writes, key=itemgetter(0)):
                yield task.path, task.decode(self._codec, write, copied.names[write.channel])

    def _writes_of(self, chain: Chain, end: int, channel: str) -> Replayed:
        """Return what was added to a channel, oldest first."""
        codec, what = self._codec, f"what was added to channel {channel!r}"

        def decoded(many: Sequence[Added]) -> tuple[tuple[Any, ...], ...]:
            one = decoder(codec)
            with reading(what):
                return tuple(
                    [
                        codec.decode(added) if isinstance(added, bytes) else tuple(map(one, added))
                        for added in many
                    ]
                )

        return Replayed(chain.oldest_first, end, decoded)

    def _value(self, kept: Kept, channel: str) -> Any:
        return value_of(self._codec, kept, f"a value of channel {channel!r}")
