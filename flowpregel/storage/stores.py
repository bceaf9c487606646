"""The contract between those who keep records and those who use them.

::

    savers, long-term stores, caches     checkpoint, store, cache: no engine is known
       │ read(work), write(work), table(name)
    Store                                one opening of a store, as an engine gives it
       │ work(transaction), called once or more
    Table                                payloads by key, sealed

Three engines implement it: `flowpregel.storage.lmdb`, `flowpregel.plugins.sqlite` and
`flowpregel.plugins.postgres`; `flowpregel.storage.in_memory` keeps the same records in
this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from flowpregel.storage.codec import ValueCodec
    from flowpregel.storage.tables import Table

Transaction: TypeAlias = Any
"""An engine's own object: its `Store` passes it to work, its tables take it."""


class Store(Protocol):
    """One opening of a store, for any OS thread of this process."""

    codec: ValueCodec
    """The codec of values."""

    def read(self, work: Callable[[Transaction], Any], /) -> Any:
        """Return ``work(transaction)``.

        All that *work* reads is of one moment. It may be called again, and nothing of
        the transaction may be used after it returns.
        """

    def write(self, work: Callable[[Transaction], Any], /) -> Any:
        """Return ``work(transaction)`` after everything that it put is durable.

        Others see all of it or nothing, and so does a program that is started after a
        power cut. If *work* raises, nothing is stored and the exception is raised.
        *work* may be called again, in a new transaction.
        """

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""

    def close(self) -> None:
        """Give the opening back; may be called again."""


class DurableStore(Store, Protocol):
    """A store on disk, which other processes use too."""

    path: str
    """The location of the store, for messages: without a password."""

    def sizes(self) -> tuple[int, int]:
        """Return the bytes on disk, and the bytes of the map (0: there is none)."""

    def change_counter(self) -> int:
        """Return a number that stays the same as long as nothing is committed."""


class StoreUser:
    """An object that keeps records in a store, and closes the store with itself."""

    _store: Store

    def close(self) -> None:
        """Close the store; may be called again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
