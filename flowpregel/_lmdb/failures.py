"""LMDB's errors in our words."""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Any

from flowpregel._lmdb import folder
from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)

_LITTLE_ROOM = 4 << 20
_DAMAGE = frozenset(
    {
        "CorruptedError",
        "PageNotFoundError",
        "InvalidError",
        "PanicError",
        "BadTxnError",
        "BadValsizeError",
    }
)


def translated(error: Exception, path: str) -> StoreError:
    """Return our error for one that LMDB raised on the store at *path*."""
    kind = type(error).__name__
    code = getattr(error, "code", 0)
    if kind in _DAMAGE:
        return StoreCorruptError(f"{path} is damaged ({error}); restore a backup")
    if kind == "VersionMismatchError":
        return StoreVersionError(f"{path} was written by another LMDB engine; it was not touched")
    if kind == "ReadonlyError" or code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnlyError(f"{path} cannot be written: {error}; check its rights")
    if kind == "NotFoundError":
        return StoreVersionError(f"{path} is an LMDB file, but no store of flowpregel's ({error})")
    return of_commit(error, path)


def of_commit(error: Exception, path: str) -> StoreError:
    """Return our error for a commit, or a copy, that failed at *path*.

    A full disk is EIO to LMDB, so the room that is left tells which it was.
    """
    if isinstance(error, JournalFailedError) and not error.is_known:
        return StoreError(
            f"{path} could not be written: {error}; whether this commit was kept is not known: "
            "open the store again to see"
        )
    code = getattr(error, "code", 0)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (
        code in (errno.EIO, 0) and _room(path) < _LITTLE_ROOM
    ):
        return StoreFullError(
            f"there is no room to write to {path} ({error}); nothing of this commit was kept, "
            "what was committed before stays readable: make room and try again"
        )
    return StoreError(f"{path} could not be written: {error}; nothing of this commit was kept")


def _room(path: str) -> int:
    try:
        found = os.statvfs(path if os.path.exists(path) else os.path.dirname(path))
    except OSError:
        return _LITTLE_ROOM
    return min(found.f_bavail * found.f_frsize, _room_under_limit(path))


def _room_under_limit(path: str) -> int:
    """Return how much the data file may grow by this process's limit on files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    data = os.path.join(path, folder.DATA)
    return limit - os.path.getsize(data) if os.path.exists(data) else limit


class CommitFailedError(Exception):
    """A commit that failed, whose outcome is to be read from the file."""

    def __init__(self, error: Exception, transaction_id: int, result: Any) -> None:
        super().__init__(error, transaction_id, result)
        self.error, self.transaction_id, self.result = error, transaction_id, result


class JournalFailedError(Exception):
    """The journal could not be read, or written."""

    def __init__(self, error: OSError, *, is_known: bool = True) -> None:
        super().__init__(error, is_known)
        self.code = error.errno or 0
        self.is_known = is_known
        """Whether it is known that nothing was kept."""

    def __str__(self) -> str:
        return f"its journal: {self.args[0]}"
