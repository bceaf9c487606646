"""The store that a command works on: opened for reading where nothing else is needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flowpregel._lmdb import folder
from flowpregel.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from flowpregel._core.records import Saved
    from flowpregel.checkpoint.lmdb import LMDBSaver


def reading(path: str | None) -> LMDBSaver:
    """Open a store that is there, to look at it; nothing in it is made or changed.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast
    from flowpregel.cli.lenient import LenientCodec  # noqa: PLC0415 - keeps --help fast

    real = existing(path)
    return LMDBSaver(real, readonly=True, lock=os.access(real, os.W_OK), codec=LenientCodec())


def writing(path: str | None) -> LMDBSaver:
    """Open a store that is there, to change it.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast

    return LMDBSaver(existing(path))


def existing(path: str | None) -> str:
    """Return the path of a store that is there."""
    if not path:
        raise ConfigurationError("which store? pass --store PATH, or set FLOWPREGEL_STORE")
    real = folder.real_path(path)
    if not folder.exists(real):
        raise StoreError(f"there is no store at {real}")
    return real


def newest(saver: LMDBSaver, thread_id: str) -> Saved:
    """Return a thread's newest checkpoint.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    from flowpregel._core.records import Address  # noqa: PLC0415 - keeps --help fast

    saved = saver.load(Address(thread_id))
    if saved is None:
        raise ConfigurationError(
            f"the store at {saver.path} has no thread {thread_id!r}; `flowpregel ls` lists them"
        )
    return saved
