"""Private cache files, in which a reader of a store saves what it has read for the next
reader.

The files are in the user's cache directory, with a folder for each store. They may be
deleted at any time. A file is not read if another user owns it or may read it, or if
its seal, a checksum over its name and content, was not made with the key of the store.
So a file that is read was written by a program that has this key. The files are
encrypted if the store is.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from flowpregel.errors import StoreError
from flowpregel.storage.records import WHOLE, SealedRecords

_PURPOSE: Final = b"reader cache "
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITING: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_PRIVATE: Final = 0o077
"""The permission bits that must not be set for a private file or folder."""
MOST_OF_FILE: Final = 512 << 20
"""The limit on the size of a file, in bytes."""
MOST_OF_ALL: Final = 2 << 30
"""The limit on the total size of the files of all stores, in bytes."""


class CacheFiles:
    """The cache files of one store.

    Args:
        store: The path of the store.
        seal: The object that makes the checksums (seals) of the store's records, and
            encrypts them if the store is encrypted.
    """

    def __init__(self, store: str, seal: SealedRecords) -> None:
        self._seal = seal
        path = os.path.realpath(store)
        self._folder = cache_root() / _digest(path)

    def load(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is no file that can be
        trusted.
        """
        content: bytes | None = None
        # A damaged file, or one of another store, is left until it is replaced.
        key = _name_key(name)
        path = self._path(name)
        with suppress(OSError, StoreError):
            record = _private_content(path)
            if record is not None:
                _, content = self._seal.opened(key, record)
        return content

    def save(self, name: str, content: bytes) -> bool:
        """Write a file in place of the former one, and return whether it was written:
        it may be too large, or the folder may be read-only.
        """
        if len(content) > MOST_OF_FILE:
            return False
        key = _name_key(name)
        record = self._seal.sealed(key, WHOLE, content)
        path = self._path(name)
        partial_name = secrets.token_hex(16)
        partial = path.with_name(partial_name)
        try:
            self._folder.mkdir(
                mode=0o700,
                parents=True,
                exist_ok=True,
            )
            status = self._folder.stat()
            if not _is_private(status):
                return False
            _write_private(partial, record)
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            return False
        return True

    def remove_others(self, names: Collection[str]) -> None:
        """Remove the files of the store whose names are not in *names*. If the files of
        all stores together exceed `MOST_OF_ALL`, remove the oldest of them.
        """
        paths = set(map(self._path, names))
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path not in paths:
                    path.unlink()
        root = cache_root()
        with suppress(OSError):
            _remove_oldest(root)

    def _path(self, name: str) -> Path:
        file_name = _digest(name)
        return self._folder / file_name


def cache_root() -> Path:
    """Return the folder of the cache files of all stores."""
    root = Path.home() / ".cache"
    variable = os.environ.get("XDG_CACHE_HOME", "")
    # According to the XDG specification, a relative path must be ignored.
    if os.path.isabs(variable):
        root = Path(variable)
    return root / "flowpregel" / "readers"


def _name_key(name: str) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    return _PURPOSE + data


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    digest = blake2b(data, digest_size=16)
    return digest.hexdigest()


def _private_content(path: Path) -> bytes | None:
    """Return the content of a file that only this user may read, or None."""
    descriptor = os.open(path, _READING)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if not _is_private(status):
            return None
        if status.st_size > 2 * MOST_OF_FILE:
            return None
        return file.read()


def _write_private(path: Path, content: bytes) -> None:
    """Write a new file that only this user may read."""
    descriptor = os.open(path, _WRITING, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _is_private(status: os.stat_result) -> bool:
    """Return whether only this user may use a file or folder."""
    return status.st_uid == os.geteuid() and not status.st_mode & _PRIVATE


def _remove_oldest(root: Path) -> None:
    """Remove the oldest files below a folder until the rest have at most `MOST_OF_ALL`
    bytes together.
    """
    paths = sorted(
        root.glob("*/*"),
        key=_changed_at,
        reverse=True,
    )
    size = 0
    for path in paths:
        size += path.stat().st_size
        if size > MOST_OF_ALL:
            path.unlink()


def _changed_at(path: Path) -> int:
    status = path.stat()
    return status.st_mtime_ns
