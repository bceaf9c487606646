"""A cache on disk, with the records of `flowpregel.cache.memory`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from flowpregel.cache.base import FullKey
from flowpregel.cache.memory import RecordCache, digest_of_key
from flowpregel.storage.lmdb.store import OpenStore, open_store
from flowpregel.storage.locks import FileLock
from flowpregel.storage.options import StoreOptions

__all__ = ["LMDBCache"]


class LMDBCache(RecordCache):
    """A cache of recently used values in a folder, for any OS thread and process.

    Args:
        path: The folder; an `LMDBSaver` may use the same.
        max_entries: The number of values to keep; the least recently used is deleted
            first.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> key = (("square",), "3")
        >>> with TemporaryDirectory() as folder:
        ...     with LMDBCache(folder + "/cache.lmdb") as cache:
        ...         cache.set({key: (9, None)})
        ...         cache.get([key])
        {(('square',), '3'): 9}
    """

    def _open(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions | None,
    ) -> OpenStore:
        store = open_store(path, options=options)
        self._claims = os.path.join(store.environment.path, "claims")
        with suppress(FileNotFoundError):
            # Remove the files of processes that were killed.
            names = os.listdir(self._claims)
            for name in names:
                with self._claimed(name):
                    pass
        return store

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        with suppress(FileExistsError):
            os.mkdir(self._claims, 0o700)
        name = digest_of_key(key).hex()
        return self._claimed(name)

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        path = os.path.join(self._claims, name)
        file = FileLock(path)
        is_free = False
        try:
            # Its last owner may have removed the file since it was opened.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
        finally:
            file.close(remove=is_free)
