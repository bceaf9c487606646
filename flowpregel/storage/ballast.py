"""The ballast: a file that only reserves space, for deletions on a full disk."""

from __future__ import annotations

import os
from contextlib import suppress

from flowpregel.storage.locks import open_file

_NAME = "ballast"
_SIZE = 128 << 10


def make_ballast(folder: str) -> None:
    """Create the ballast in *folder*, if there is space.

    On a full disk even a deletion of records needs space, which `drop_ballast` frees.

    Example:
        >>> import os
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     make_ballast(folder)
        ...     os.listdir(folder)
        ['ballast']
    """
    path = os.path.join(folder, _NAME)
    # If the file exists already, or this user may create no file in the folder, nothing
    # is done.
    with suppress(OSError):
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(file, "wb", buffering=0) as ballast:
            try:
                # The bytes are random, because a file system can compress other bytes.
                ballast.write(os.urandom(_SIZE))
            except OSError:  # The disk is full already, so no reserve can be made.
                os.unlink(path)


def drop_ballast(folder: str) -> bool:
    """Remove the ballast to free its space, and return True if there was one.

    Args:
        folder: The folder that `make_ballast` was called with.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.storage import make_ballast
        >>> with TemporaryDirectory() as folder:
        ...     make_ballast(folder)
        ...     drop_ballast(folder), drop_ballast(folder)
        (True, False)
    """
    with suppress(OSError):
        os.unlink(os.path.join(folder, _NAME))
        return True
    return False
