"""A cache on disk, with the records that `flowpregel.cache.memory` describes."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from flowpregel.cache.base import FullKey
from flowpregel.cache.memory import RecordCache, digest_of_key
from flowpregel.storage.claims import ClaimFiles
from flowpregel.storage.lmdb.store import OpenStore, open_store
from flowpregel.storage.options import StoreOptions

__all__ = ["LMDBCache"]


class LMDBCache(RecordCache):
    """A cache of recently used values in a folder, for any OS thread and process.

    Args:
        path: The folder; an `LMDBSaver` may use the same one.
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
        self._claims = ClaimFiles(store.path)
        return store

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        return self._claims.claim(digest_of_key(key))
