"""A long-term store on disk; its records are those of `flowpregel.store.memory`."""

from __future__ import annotations

import os

from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.store import OpenStore, open_store
from flowpregel.store.memory import ItemStore

__all__ = ["LMDBStore"]


class LMDBStore(ItemStore):
    """Keeps items in a store's folder. Any OS thread may use it, and several processes.

    Args:
        path: The folder; it may be that of an `LMDBSaver`.
        index: How to find items by meaning (``embed``, ``dims``, ``fields``);
            without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with (
        ...     TemporaryDirectory() as folder,
        ...     LMDBStore(folder + "/notes.lmdb") as store,
        ... ):
        ...     store.put(("notes",), "a", {"text": "the cat sat"})
        ...     store.get(("notes",), "a").value
        {'text': 'the cat sat'}
    """

    def _open(
        self, path: str | os.PathLike[str], options: StoreOptions | None
    ) -> OpenStore:
        return open_store(path, options=options)
