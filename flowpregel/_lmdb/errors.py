"""Errors of LMDB and of the operating system, translated into ours."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)

DATA = "data.mdb"
_LITTLE_ROOM = 4 << 20
_DAMAGE = (
    "CorruptedError", "PageNotFoundError", "InvalidError", "PanicError", "BadTxnError",
    "BadValsizeError",
)  # fmt: skip


def of_system(error: OSError, path: str) -> StoreError:
    """Return our error for one that the operating system raised on *path*."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreReadOnlyError(
                f"{path} cannot be used: {reason}; check the rights of the folder"
            )
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFullError(f"{path}: {reason}; make room and try again")
        case errno.ELOOP:
            return StoreError(f"{path} goes in circles of symbolic links; give the folder itself")
        case errno.ENOTDIR | errno.EEXIST:
            return StoreError(f"{path} leads through a file; a store is a folder: give one's path")
    return StoreError(f"{path} cannot be used: {reason}")


@contextmanager
def named(path: str) -> Iterator[None]:
    """Raise our error in place of an `OSError` on *path*."""
    try:
        yield
    except OSError as error:
        raise of_system(error, path) from error


def of_lmdb(error: Exception, path: str) -> StoreError:
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

    LMDB reports a full disk as EIO, so the free space decides which error it was.
    """
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
    """Return how much the data file may grow: on its disk, and by this process's limit on files."""
    try:
        found = os.statvfs(path if os.path.exists(path) else os.path.dirname(path))
    except OSError:
        return _LITTLE_ROOM
    room, (limit, _) = found.f_bavail * found.f_frsize, resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return room
    data = os.path.join(path, DATA)
    return min(room, limit - (os.path.getsize(data) if os.path.exists(data) else 0))
