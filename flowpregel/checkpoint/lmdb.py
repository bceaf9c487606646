"""The durable saver: checkpoints and pending writes in one LMDB folder."""

from __future__ import annotations

import os
from dataclasses import replace

from flowpregel._interrupts import defer_interrupts
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.leases import LeaseFiles
from flowpregel.checkpoint.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.retention import Retention
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import StoreError
from flowpregel.storage.ballast import drop_ballast
from flowpregel.storage.codec import Codec, PythonCodec
from flowpregel.storage.lmdb import files
from flowpregel.storage.lmdb.store import OpenStore, open_store
from flowpregel.storage.options import DEFAULT_MAP_SIZE, StoreOptions

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
    """A saver that keeps checkpoints, pending writes and deltas in a folder on disk.

    A superstep is one transaction: once `commit` returns, the superstep is on disk, and
    after a crash it is either complete or absent. Several processes may use the folder
    at once. Within a process, all savers of a folder share one LMDB environment.

    Args:
        path: The folder. If it does not exist, it is created with mode 0700.
        map_size: The initial address space, in bytes. It grows by itself.
        readonly: True to open an existing store for reading only.
        lock: True to register as a reader. Pass False, together with *readonly*, to
            read from a folder that this user cannot write to. In this case no process
            may write to the folder at the same time.
        codec: The codec that turns values into bytes. The default encodes any Python
            value exactly.
        retention: The history to keep. The default keeps all of it.
        options: Rarely needed options.

    Raises:
        StoreError: The store cannot be opened. The subclass of the error shows the
            reason.

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
        self.locks_folder: str = store.environment.path

    def opened_to_look(self, codec: Codec) -> tuple[OpenStore, LeaseFiles]:
        lock = os.access(self.path, os.W_OK)
        store = open_store(
            self.path, readonly=True, lock=lock, codec=codec, options=self.options
        )
        return store, LeaseFiles(self.path, store.table(b"live"))

    def verify(self) -> Verification:
        """Read all records, and return the damage that was found.

        This checks the checksum of every record, that every checkpoint is complete, and
        the pages of the file. No value is decoded. Writers wait while the pages are
        read.
        """
        verification = super().verify()
        if self._store.environment.readonly:
            return verification
        with (
            defer_interrupts(),
            self._store.environment.exclusively(self.options.lock_timeout),
        ):
            pages = files.unsound_pages(self.path)
        return replace(verification, problems=(*verification.problems, *pages))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy a snapshot of the store into the new folder *path*.

        The store may be in use. The copy is compacted, and is an independent store with
        the same key. It appears only when it is complete and on disk.

        Raises:
            StoreError: There is a store at *path* already.
            StoreFullError: There is not enough space on the disk.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     with LMDBSaver(folder + "/runs") as saver:
            ...         saver.backup(folder + "/copy")
            ...     with LMDBSaver(folder + "/copy", readonly=True) as copy:
            ...         [*copy.threads()]
            []
        """
        target = files.real_path(path)
        if files.exists(target) or not files.create(
            target, self._store.environment.copy
        ):
            raise StoreError(f"there is already a store at {target}; give a new folder")
        files.close_to_others(target)

    def compact(self) -> None:
        """Rewrite the file without its unused space.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        self._store.environment.replace(self.options.lock_timeout)

    def change_keys(
        self, *, encryption_key: bytes | None, key: bytes | None = None
    ) -> None:
        """Rewrite every record with other secret keys, into a new file, and close the
        saver.

        This covers everything in the folder: threads, the items of an `LMDBStore` and
        the results in an `LMDBCache`. After a crash, or if the disk is full, the store
        is either the old one, unchanged, or the complete new one. Open the store with
        the new keys afterwards, because the old keys are refused.

        Args:
            encryption_key: The key of 16, 24 or 32 bytes with which to encrypt all
                records, or None to store them without encryption.
            key: The key for the checksums of all records, or None to keep the present
                key. You must pass a new key as ``FLOWPREGEL_STORE_KEY`` from then on.

        Raises:
            StoreBusyError: Another process or object has the store open.
            StoreForeignError: This saver cannot decrypt one of the records.
            StoreFullError: There is not enough space for a second file.

        Example:
            >>> import os
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     saver = LMDBSaver(folder + "/runs.lmdb")
            ...     saver.change_keys(encryption_key=os.urandom(32))
        """
        seal = self._store.seal.changed(encryption_key, key)
        self._output.flush()
        self._store.seal_again(seal)

    def free_reserve(self) -> bool:
        return drop_ballast(self.path)
