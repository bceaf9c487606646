"""A long-term store on disk. The module `flowpregel.store.memory` describes its
records.
"""

from __future__ import annotations

import os

from flowpregel.storage.lmdb.store import OpenStore, open_store
from flowpregel.storage.options import StoreOptions
from flowpregel.store.memory import ItemStore

__all__ = ["LMDBStore"]


class LMDBStore(ItemStore):
    """A store in a folder, for any OS thread and several processes.

    Args:
        path: The folder; an `LMDBSaver` may use the same one.
        index: The index of embeddings for queries (``embed``, ``dims``, ``fields``);
            without an index, a query ranks items by shared words.
        ttl: The time to live of items that are put without one.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with LMDBStore(folder + "/notes.lmdb") as store:
        ...         store.put(("notes",), "a", {"text": "the cat sat"})
        ...         store.get(("notes",), "a").value
        {'text': 'the cat sat'}
    """

    def _open(
        self, path: str | os.PathLike[str], options: StoreOptions | None
    ) -> OpenStore:
        return open_store(path, options=options)
