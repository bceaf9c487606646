"""The translation of operating system errors into flowpregel's, and the import of
packages that may be missing.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from flowpregel.errors import (
    ConfigurationError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)

LITTLE_ROOM = 4 << 20
"""The free space, in bytes, below which an unspecific write error of a storage engine
is taken to mean that the disk is full.
"""


def of_system(error: OSError, path: str) -> StoreError:
    """Return flowpregel's error for an `OSError` on *path*."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreReadOnlyError(
                f"{path} cannot be used: {reason}; check the permissions of the folder"
            )
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFullError(f"{path}: {reason}; make room and try again")
        case errno.ELOOP:
            return StoreError(
                f"{path} contains a loop of symbolic links; give the folder itself"
            )
        case errno.ENOTDIR | errno.EEXIST:
            return StoreError(
                f"{path} leads through a file; a store is a folder: give the path of "
                "one"
            )
        case errno.ENOENT:
            return StoreError(
                f"{path} cannot be used: {reason}; if the store was deleted or moved "
                "while it was open, open it again, or start the program again"
            )
    return StoreError(f"{path} cannot be used: {reason}")


@contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Translate an `OSError` in the context into flowpregel's error, which names
    *path*.

    Example:
        >>> with translate_os_errors("/runs.lmdb"):
        ...     raise PermissionError(13, "Permission denied")
        Traceback (most recent call last):
        flowpregel.errors.StoreReadOnlyError: ...
    """
    try:
        yield
    except OSError as error:
        raise of_system(error, path) from error


def is_disk_full(path: str) -> bool:
    """Return whether an unspecific write error on the file at *path* probably means a
    full disk: there is little free space.

    Args:
        path: The path of the file, which need not exist.

    Example:
        >>> is_disk_full("runs.db")  # so a failed write has another cause
        False
    """
    return room_for(path) < LITTLE_ROOM


def room_for(file: str) -> int:
    """Return the number of bytes by which *file* can grow.

    This is limited by the free space on the disk and by the process's limit on file
    sizes. *file* need not exist.
    """
    folder = os.path.dirname(file)
    while folder and not os.path.exists(folder):
        folder = os.path.dirname(folder)
    try:
        disk = os.statvfs(folder or ".")
    except OSError:
        return LITTLE_ROOM
    room = disk.f_bavail * disk.f_frsize
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return room
    size = os.path.getsize(file) if os.path.exists(file) else 0
    return min(room, limit - size)


def extra_module(
    module: str,
    purpose: str,
    extra: str,
) -> Any:
    """Import and return a module of a package that an extra installs.

    Args:
        module: The full name of the module.
        purpose: The feature that needs the module, for the message.
        extra: The name of the extra.

    Raises:
        ConfigurationError: The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigurationError(
            f"{purpose} needs the package {package}; install flowpregel[{extra}]"
        ) from error
