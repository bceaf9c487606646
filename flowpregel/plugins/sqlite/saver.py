"""A durable saver that stores all checkpoints and writes in one SQLite database."""

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
from flowpregel.storage import Codec, StoreOptions, drop_ballast

__all__ = ["SQLiteSaver"]


class SQLiteSaver(DurableSaver):
    """A saver that stores checkpoints, pending writes and deltas in a SQLite database.

    A superstep is one transaction: once `commit` returns, the superstep is on disk, and
    after a crash it is either complete or absent. Several processes of one machine may
    use the database at once.

    Args:
        location: The URL, such as ``sqlite:///runs.db``, or the path of the file; it is
            created (mode 0600) if it does not exist.
        readonly: True to read only; no file is created or changed.
        codec: The codec of values; the default encodes any Python value exactly.
        retention: The history to keep; by default all of it.
        options: Rarely needed options.

    Raises:
        ConfigurationError: The URL names no file.
        StoreError: The store cannot be opened; the subclass of the error gives the
            reason.

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
        self.location: str = files.url_of(store.path)
        self.locks_folder: str = files.locks_of(store.path)

    def opened_to_look(self, codec: Codec) -> tuple[SQLiteDatabase, LeaseFiles]:
        store = SQLiteDatabase(
            self.location, readonly=True, codec=codec, options=self.options
        )
        return store, _leases_of(store, self.options)

    def verify(self) -> Verification:
        """Read all records, and return the damage that was found.

        This checks the checksum of every record, that every checkpoint is complete, and
        the pages of the file. No value is decoded.
        """
        verification = super().verify()
        problems = (*verification.problems, *self._store.unsound_pages())
        return replace(verification, problems=problems)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy a snapshot of the store into the new file *path*.

        Runs may continue at the same time. The copy is compacted, and is an independent
        store with the same key. It appears only when it is complete and on disk.

        Args:
            path: The path of the copy, or its URL.

        Raises:
            StoreError: There is a file at *path*.
            StoreFullError: There is not enough space.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     with SQLiteSaver(f"{folder}/runs.db") as saver:
            ...         saver.backup(f"{folder}/copy.db")
            ...     with SQLiteSaver(f"{folder}/copy.db", readonly=True) as copy:
            ...         [*copy.threads()]
            []
        """
        self._store.backup(files.path_in(path))

    def free_reserve(self) -> bool:
        return drop_ballast(files.locks_of(self.path))

    def compact(self) -> None:
        """Rewrite the file without free pages.

        Raises:
            StoreBusyError: Another program uses the database.
        """
        self._store.compact()

    def change_keys(
        self, *, encryption_key: bytes | None, key: bytes | None = None
    ) -> None:
        """Rewrite every record with other secret keys, in one transaction, and close
        the saver.

        This covers everything in the database: threads, the items of a `SQLiteStore`
        and the results in a `SQLiteCache`. After a crash, or if the disk is full, the
        store is either the old one, unchanged, or the complete new one. Open the store
        with the new keys afterwards, because the old keys are refused.

        Args:
            encryption_key: The key of 16, 24 or 32 bytes with which to encrypt all
                records, or None to store them without encryption.
            key: The key for the checksums of all records, or None to keep the present
                key. You must pass a new key as ``FLOWPREGEL_STORE_KEY`` from then on.

        Raises:
            StoreBusyError: Another process or object has the store open.
            StoreForeignError: This saver cannot decrypt one of the records.
            StoreFullError: There is not enough space for a second file and the log.
            StoreError: The database also has tables of another program; or the old
                records could not be overwritten, which the message then reports.

        Example:
            >>> import os
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     saver = SQLiteSaver(f"{folder}/runs.db")
            ...     saver.change_keys(encryption_key=os.urandom(32))
        """
        seal = self._store.seal.changed(encryption_key, key)
        self._output.flush()
        self._store.seal_again(seal)


def _leases_of(store: SQLiteDatabase, options: StoreOptions) -> LeaseFiles:
    """Return the leases of a store, which are file locks beside the database."""
    folder = files.locks_of(store.path)
    return LeaseFiles(folder, store.table(b"live"), options.lock_timeout)
