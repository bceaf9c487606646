"""The durable saver in a SQLite database: all checkpoints and writes in one file."""

from __future__ import annotations

import os
from dataclasses import replace

from flowpregel.checkpoint.durable import (
    DurableSaver,
    LeaseFiles,
    Retention,
    Tables,
    Verification,
)
from flowpregel.plugins.sqlite import files
from flowpregel.plugins.sqlite.database import SQLiteDatabase
from flowpregel.storage import Codec, StoreOptions

__all__ = ["SQLiteSaver"]


class SQLiteSaver(DurableSaver):
    """Keeps checkpoints, pending writes and deltas in a SQLite database.

    A superstep is one transaction: when `commit` returns, it is on disk, and after a
    crash it is there as a whole or not at all. Several processes of one machine may use
    the database at once.

    Args:
        location: The URL, ``sqlite:///runs.db``, or the path of the file; it is made if
            it is not there (mode 0600).
        readonly: Only read; no file is made or changed.
        codec: The codec of values; by default any Python value, exactly.
        retention: The history to keep; by default all of it.
        options: Rarely needed options.

    Raises:
        ConfigurationError: The URL names no file.
        StoreError: It cannot be opened; the subclasses of the error are the reasons.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with (
        ...     TemporaryDirectory() as folder,
        ...     SQLiteSaver(f"sqlite:///{folder}/runs.db") as saver,
        ... ):
        ...     [*saver.threads()]
        []
    """

    _store: SQLiteDatabase

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        retention: Retention | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        opened_as = options or StoreOptions()
        store = SQLiteDatabase(
            location, readonly=readonly, codec=codec, options=opened_as
        )
        leases = _leases_of(store, opened_as)
        super().__init__(store, Tables(store), leases, opened_as, retention)
        self.location = files.url_of(store.path)

    def opened_to_look(self, codec: Codec) -> tuple[SQLiteDatabase, LeaseFiles]:
        store = SQLiteDatabase(
            self.location, readonly=True, codec=codec, options=self.options
        )
        return store, _leases_of(store, self.options)

    def verify(self) -> Verification:
        """Read everything, and return the damage.

        It checks the checksum of every record, the parts of every checkpoint, and the
        pages of the file. No value is decoded.
        """
        verification = super().verify()
        problems = (*verification.problems, *self._store.unsound_pages())
        return replace(verification, problems=problems)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store at this moment into the new file *path*.

        Runs may continue at the same time. The copy is compacted, is a store by itself
        with the same key, and appears only when it is whole and on disk.

        Args:
            path: The path of the copy, or its URL.

        Raises:
            StoreError: There is a file at *path*.
            StoreFullError: There is no room.
        """
        self._store.backup(files.path_in(path))

    def compact(self) -> None:
        """Write the file again without free pages.

        Raises:
            StoreBusyError: Another program uses the database.
        """
        self._store.compact()


def _leases_of(store: SQLiteDatabase, options: StoreOptions) -> LeaseFiles:
    """Return the leases in a store: locks in files, beside the database."""
    folder = files.locks_of(store.path)
    return LeaseFiles(folder, store.table(b"live"), options.lock_timeout)
