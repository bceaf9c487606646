"""The store that a command works on: opened for reading where nothing else is needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flowpregel._lmdb import files
from flowpregel.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from flowpregel._core.records import Saved
    from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions

KEY_FILE = "FLOWPREGEL_ENCRYPTION_KEY_FILE"


def reading(path: str | None) -> LMDBSaver:
    """Open a store that is there, to look at it; nothing in it is made or changed.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast
    from flowpregel.cli.lenient import LenientCodec  # noqa: PLC0415 - keeps --help fast

    real = existing(path)
    locks = os.access(real, os.W_OK)
    return LMDBSaver(real, readonly=True, lock=locks, codec=LenientCodec(), options=options())


def writing(path: str | None) -> LMDBSaver:
    """Open a store that is there, to change it.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast

    return LMDBSaver(existing(path), options=options())


def making(path: str) -> LMDBSaver:
    """Open a store to run something with it, or make it."""
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast

    return LMDBSaver(path, options=options())


def options() -> StoreOptions:
    """Return how stores are opened here: with the key in the file that a variable names."""
    from flowpregel.checkpoint.lmdb import StoreOptions  # noqa: PLC0415 - keeps --help fast

    file = os.environ.get(KEY_FILE)
    return StoreOptions(encryption_key=key_in(file) if file else None)


def key_in(file: str) -> bytes:
    """Return the encryption key that a file holds.

    Raises:
        ConfigurationError: It cannot be read, or holds no key.
    """
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise ConfigurationError(f"the key file {file} cannot be read: {error.strerror}") from error


def existing(path: str | None) -> str:
    """Return the path of a store that is there."""
    if not path:
        raise ConfigurationError("which store? pass --store PATH, or set FLOWPREGEL_STORE")
    real = files.real_path(path)
    if not files.exists(real):
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
