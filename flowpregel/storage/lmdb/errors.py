"""The translation of LMDB's errors into flowpregel's."""

from __future__ import annotations

import errno
import os

from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)
from flowpregel.storage.errors import is_disk_full

DATA = "data.mdb"
"""The name of LMDB's data file."""
_DAMAGE = (
    "CorruptedError",
    "PageNotFoundError",
    "InvalidError",
    "PanicError",
    "BadTxnError",
    "BadValsizeError",
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def of_lmdb(error: Exception, path: str) -> StoreError:
    """Return flowpregel's error for an LMDB error on the store at *path*."""
    kind = type(error).__name__
    code = getattr(error, "code", 0)
    if kind in _DAMAGE:
        return StoreCorruptError(f"{path} is damaged ({error}); restore a backup")
    if kind == "VersionMismatchError":
        return StoreVersionError(
            f"{path} was written by another LMDB engine; it was not touched"
        )
    if kind == "ReadonlyError" or code in _READ_ONLY:
        return StoreReadOnlyError(
            f"{path} cannot be written: {error}; check its permissions"
        )
    if kind == "NotFoundError":
        return StoreVersionError(
            f"{path} is an LMDB file, but not a flowpregel store ({error})"
        )
    return of_commit(error, path)


def of_commit(error: Exception, path: str) -> StoreError:
    """Return flowpregel's error for a commit or a copy that failed at *path*.

    LMDB reports a full disk as EIO, so the free space decides whether the disk was
    full.
    """
    code = getattr(error, "code", 0)
    is_full = code in _FULL
    if code in (errno.EIO, 0):
        is_full = is_disk_full(os.path.join(path, DATA))
    if is_full:
        return StoreFullError(
            f"there is no room to write to {path} ({error}); nothing of this commit "
            "was stored, but earlier commits stay readable: make room and try again"
        )
    return StoreError(
        f"{path} could not be written: {error}; nothing of this commit was stored"
    )
