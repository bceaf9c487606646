"""The store that a command works on: opened for reading where nothing else is needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from flowpregel._core.records import Address, Saved
from flowpregel._lmdb import folder
from flowpregel.checkpoint.lmdb import LMDBSaver, PythonCodec
from flowpregel.errors import ConfigurationError, StoreError


@dataclass(frozen=True)
class Unreadable:
    """Stands for a value that cannot be decoded here, its class missing perhaps."""

    why: str

    def __repr__(self) -> str:
        return f"<unreadable: {self.why}>"


class LenientCodec(PythonCodec):
    """Decodes what can be, and shows the rest as `Unreadable`.

    One value whose class is gone must not hide all the others.
    """

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded, or an `Unreadable`."""
        try:
            return super().decode(data)
        except Exception as error:  # noqa: BLE001 - unpickling runs any code of the user's
            return Unreadable(f"{type(error).__name__}: {error}")


def reading(path: str | None) -> LMDBSaver:
    """Open a store that is there, to look at it; nothing in it is made or changed.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    real = existing(path)
    return LMDBSaver(real, readonly=True, lock=os.access(real, os.W_OK), codec=LenientCodec())


def writing(path: str | None) -> LMDBSaver:
    """Open a store that is there, to change it.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
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
    saved = saver.load(Address(thread_id))
    if saved is None:
        raise ConfigurationError(
            f"the store at {saver.path} has no thread {thread_id!r}; `flowpregel ls` lists them"
        )
    return saved
