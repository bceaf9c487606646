"""A cache on disk, for processes; its records are those of
`flowpregel.cache.memory`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from flowpregel._lmdb.locks import FileLock
from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.store import OpenStore, open_store
from flowpregel.cache.base import FullKey
from flowpregel.cache.memory import RecordCache, place_of

__all__ = ["LMDBCache"]


class LMDBCache(RecordCache):
    """Keeps the values that were used last, in a store's folder. Any OS thread may use
    it.

    Args:
        path: The folder; it may be that of an `LMDBSaver`.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with (
        ...     TemporaryDirectory() as folder,
        ...     LMDBCache(folder + "/cache.lmdb") as cache,
        ... ):
        ...     cache.set({(("square",), "3"): (9, None)})
        ...     cache.get([(("square",), "3")])
        {(('square',), '3'): 9}
    """

    def _open(
        self, path: str | os.PathLike[str], options: StoreOptions | None
    ) -> OpenStore:
        store = open_store(path, options=options)
        self._claims = os.path.join(store.environment.path, "claims")
        with suppress(FileNotFoundError):
            for left in os.listdir(self._claims):  # by processes that were killed
                with self._claimed(left):
                    pass
        return store

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        with suppress(FileExistsError):
            os.mkdir(self._claims, 0o700)
        return self._claimed(place_of(key).hex())

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        file, is_free = FileLock(os.path.join(self._claims, name)), False
        try:
            # Whoever had it may have removed the file since it was opened.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
        finally:
            file.close(remove=is_free)
