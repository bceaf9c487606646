"""A file that only takes up room, so that there is some for a deletion when the disk is full."""

from __future__ import annotations

import os
from typing import Final

from flowpregel._lmdb import files

_NAME: Final = "ballast"
_SIZE: Final = 128 << 10


def make(folder: str) -> None:
    """Put a file beside the data that only takes up room, if there is room for it.

    On a full disk even a deletion needs some; `drop` gives it.
    """
    path = os.path.join(folder, _NAME)
    try:
        file = files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError:  # it is there, or nothing can be made here
        return
    try:
        os.write(file, os.urandom(_SIZE))  # no file system makes less of that
    except OSError:  # the disk is full already
        os.unlink(path)
    finally:
        os.close(file)


def drop(folder: str) -> bool:
    """Give the room of the ballast back; return whether there was any."""
    try:
        os.unlink(os.path.join(folder, _NAME))
    except OSError:
        return False
    return True
