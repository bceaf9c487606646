"""The contract between the engines that store records and the code that uses them.

::

    savers, long-term stores, caches     checkpoint, store, cache: no engine is known
       │ read(work), write(work), table(name)
    Store                                one opening of a store, as an engine gives it
       │ work(transaction), called once or more
    Table                                payloads by key, with checksums

Three engines implement this contract: `flowpregel.storage.lmdb`,
`flowpregel.plugins.sqlite` and `flowpregel.plugins.postgres`;
`flowpregel.storage.in_memory` keeps the same records in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from flowpregel.storage.renames import RENAMED

if TYPE_CHECKING:
    from flowpregel.storage.codec import ValueCodec
    from flowpregel.storage.tables import Table

Item = TypeVar("Item")
_SNAPSHOT_ITEMS: Final = 100
"""The number of items after which a new snapshot begins. The number is limited because
a snapshot keeps the records that it has read in memory.
"""
Transaction: TypeAlias = Any
"""A transaction object of an engine. `Store` passes it to *work*, which passes it to
the methods of tables.
"""


class KeyRange(NamedTuple):
    """A range of keys that will be read from a snapshot.

    Example:
        >>> KeyRange(b"threads", b"a", b"b").is_backwards
        False
    """

    table: bytes
    """The name of the table."""
    first: bytes
    """The smallest key."""
    end: bytes
    """The key after the greatest one."""
    is_backwards: bool = False
    """True if the greatest keys will be read first."""


class Store(Protocol):
    """An open store. Any OS thread of this process may use it."""

    codec: ValueCodec
    """The codec of values."""

    def read(self, work: Callable[[Transaction], Any], /) -> Any:
        """Return ``work(transaction)``.

        *work* reads a consistent snapshot. It may be called more than once, and no
        object of the transaction may be used after it returns.
        """

    def write(self, work: Callable[[Transaction], Any], /) -> Any:
        """Return ``work(transaction)`` after all changes that *work* made are durable.

        Other users of the store see all of the changes or none, and so does a program
        that is started after a power cut. If *work* raises an exception, nothing is
        stored and the exception is raised. *work* may be called again, in a new
        transaction.
        """

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""

    def close(self) -> None:
        """Close the store. It is safe to call this more than once."""


class DurableStore(Store, Protocol):
    """A store on disk, which other processes use too."""

    path: str
    """The location of the store for messages, without a password."""

    def sizes(self) -> tuple[int, int]:
        """Return the size on disk, and the size of the map or 0 if there is none."""

    def change_counter(self) -> int:
        """Return a number that stays the same as long as nothing is committed."""


def use_renames_of(store: Store) -> None:
    """Decode the values of *store* with the new class names that the store records."""
    read = partial(store.table(b"meta").get, key=RENAMED)
    store.codec.load_renames_with(lambda: store.read(read))


def shared_snapshot(store: Store) -> AbstractContextManager[object]:
    """Return a context in which the reads of this OS thread share one snapshot, if the
    engine has a method ``snapshot`` that returns such a context.

    The engine of a database on another machine should have it, because each transaction
    there costs round trips. With any other engine, each read has a transaction of its
    own.

    Args:
        store: An open store of any engine.
    """
    snapshot: Any = getattr(store, "snapshot", nullcontext)
    context: AbstractContextManager[object] = snapshot()
    return context


def in_snapshots(
    store: Store,
    items: Iterable[Item],
    prefetch: Callable[[Sequence[Item]], object],
) -> Iterator[Item]:
    """Yield *items*. The reads inside the caller's loop, on this OS thread, share a
    snapshot of the store, which is renewed after every few items. This needs an engine
    with a method ``snapshot``.

    Args:
        store: An open store of any engine.
        items: The items, in order.
        prefetch: A function that is called in each snapshot, with the items for which
            the snapshot is used.
    """
    remaining = iter(items)
    while chunk := list(islice(remaining, _SNAPSHOT_ITEMS)):
        with shared_snapshot(store):
            prefetch(chunk)
            yield from chunk


def prefetcher(store: Store) -> Callable[[Sequence[KeyRange]], object] | None:
    """Return the method ``prefetch`` of an engine, or None if the engine has none.

    The engine of a database on another machine should have it, beside ``snapshot``. It
    takes ranges of keys, and may read the first records of all of them in one round
    trip, as soon as one of them is read in the shared snapshot of this OS thread. It
    must limit the records that it reads ahead, and reads what is beyond the limit when
    it is needed. Outside a shared snapshot, it does nothing.

    Args:
        store: An open store of any engine.
    """
    prefetch: Callable[[Sequence[KeyRange]], object] | None
    prefetch = getattr(store, "prefetch", None)
    return prefetch


class StoreUser:
    """An object that keeps records in a store, and that closes the store in `close`."""

    _store: Store

    def close(self) -> None:
        """Close the store. It is safe to call this more than once."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
