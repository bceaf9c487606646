"""The durable saver: checkpoints and pending writes in one LMDB folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowpregel._interrupts import held
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.layout import Tables
from flowpregel.checkpoint.leases import LeaseFiles
from flowpregel.checkpoint.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.retention import Retention
from flowpregel.errors import StoreError, StoreFullError
from flowpregel.storage.codec import Codec, PythonCodec
from flowpregel.storage.lmdb import files
from flowpregel.storage.lmdb.store import OpenStore, open_store
from flowpregel.storage.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel.storage.records import Seal

__all__ = [
    "Codec",
    "LMDBSaver",
    "PythonCodec",
    "Retention",
    "Stats",
    "StoreOptions",
    "ThreadInfo",
    "Verification",
]


class LMDBSaver(DurableSaver):
    """Keeps checkpoints, pending writes and deltas in a folder on disk.

    A superstep is one transaction: once `commit` returns, it is on disk, and
    after a crash it is there as a whole or not at all. The folder may be used by
    several processes at once; in one process all savers of a folder share it.

    Args:
        path: The folder; made if it is not there (mode 0700).
        map_size: The bytes of address space to begin with; it grows by itself.
        readonly: Only read; nothing is made or changed.
        lock: Register as a reader. False, with *readonly*, reads from a folder
            that cannot be written; nobody else may write it meanwhile.
        codec: Turns values into bytes; by default any Python value, exactly.
        retention: How much history is kept; by default all of it.
        options: The rarely needed.

    Raises:
        StoreError: It cannot be opened; the classes below it say why.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with (
        ...     TemporaryDirectory() as folder,
        ...     LMDBSaver(folder + "/runs.lmdb") as saver,
        ... ):
        ...     [*saver.threads()]
        []
    """

    _store: OpenStore

    def __init__(  # noqa: PLR0913 - a public face: each is a choice of its own
        self,
        path: str | os.PathLike[str],
        *,
        map_size: int = DEFAULT_MAP_SIZE,
        readonly: bool = False,
        lock: bool = True,
        codec: Codec | None = None,
        retention: Retention | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        opened_as = options or StoreOptions()
        store = open_store(
            path,
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            codec=codec,
            options=opened_as,
        )
        files_of = LeaseFiles(
            store.environment.path, store.table(b"live"), opened_as.lock_timeout
        )
        leases = store.environment.shared.setdefault("leases", files_of)
        super().__init__(store, Tables(store), leases, opened_as, retention)

    def opened_to_look(self, codec: Codec) -> tuple[OpenStore, LeaseFiles]:
        lock = os.access(self.path, os.W_OK)
        store = open_store(
            self.path, readonly=True, lock=lock, codec=codec, options=self.options
        )
        return store, LeaseFiles(self.path, store.table(b"live"))

    def verify(self) -> Verification:
        """Read everything, and return what is damaged.

        Checks every record's checksum, whether every checkpoint's parts are
        there, and the pages of the file. Nothing is decoded. Writers wait while
        the pages are looked at.
        """
        found = super().verify()
        if self._store.environment.readonly:
            return found
        with held(), self._store.environment.exclusively(self.options.lock_timeout):
            pages = files.unsound_pages(self.path)
        return replace(found, problems=(*found.problems, *pages))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store, as it is at one moment, into the new folder *path*.

        It may be used meanwhile. The copy is compacted, is a store of its own
        under the same key, and appears only when it is whole and on disk.

        Raises:
            StoreError: There is something at *path* already.
            StoreFullError: There is no room.
        """
        target = files.real_path(path)
        if files.exists(target) or not files.create(
            target, self._store.environment.copy
        ):
            raise StoreError(f"there is a store at {target} already; give a new folder")
        files.close_to_others(target)

    def compact(self) -> None:
        """Write the file anew without the room that is free.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        self._store.environment.replace(self.options.lock_timeout)

    def change_keys(
        self, *, encryption_key: bytes | None, key: bytes | None = None
    ) -> None:
        """Write every record anew under other keys, into a new file, and close the
        saver.

        All that is in the folder is meant: threads, items of an `LMDBStore`,
        results of an `LMDBCache`. Whatever happens on the way, a crash or a full
        disk, the store is as it was, or is the new one. Open it with the new keys
        then: with the old ones it is refused.

        Args:
            encryption_key: 16, 24 or 32 bytes that everything is encrypted under
                from now on; None: nothing is.
            key: What records are sealed under, to be given as
                ``FLOWPREGEL_STORE_KEY`` then; None: what they are sealed under now.

        Raises:
            StoreBusyError: Something else has the store open.
            StoreForeignError: There is a record that this saver has no key for.
            StoreFullError: There is no room for a second file.

        Example:
            >>> import os
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     saver = LMDBSaver(folder + "/runs.lmdb")
            ...     saver.change_keys(encryption_key=os.urandom(32))
        """
        # Made for its checks of both keys: while nothing is closed yet.
        StoreOptions(encryption_key=encryption_key, trust=key)
        same = self._store.seal
        is_kept = key is None and same.is_kept
        self._store.seal_anew(Seal(key or same.key, encryption_key, is_kept=is_kept))

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Do *work*, which drops something; on a full disk, with the room of the
        ballast.
        """
        try:
            return self._write(work)
        except StoreFullError:
            if not files.drop_ballast(self.path):
                raise
            return self._write(work)
