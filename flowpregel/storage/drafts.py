"""Drafts: files and folders that are completed before they get their final name."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob

ABANDONED = 60.0
"""Age, in seconds, from which an unlocked draft may be removed, because the process
that made it must have been killed.
"""


def sync_path(path: str) -> None:
    """Make the contents of *path* (a file or a folder) durable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sync_path(folder)
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def draft_in(
    parent: str,
    prefix: str,
    abandoned: float = ABANDONED,
) -> Iterator[str]:
    """Create a folder for a draft, and remove it when the context ends.

    This also removes the drafts that killed processes have left.

    Args:
        parent: The folder in which the draft is created.
        prefix: The beginning of the folder's name.
        abandoned: The age, in seconds, from which a draft whose lock is free is removed
            as abandoned.

    Example:
        >>> import os
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with draft_in(parent, "copy-") as draft:
        ...         os.listdir(parent) == [os.path.basename(draft)]
        True
    """
    # If this user may write to the folder but not list it, `glob` finds no draft, and
    # none is removed.
    for path in glob(escape(os.path.join(parent, prefix)) + "*"):
        with suppress(OSError):
            _remove_abandoned(path, abandoned)
    draft = tempfile.mkdtemp(prefix=prefix, dir=parent)
    lock = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield draft
    finally:
        os.close(lock)
        shutil.rmtree(draft, ignore_errors=True)


def _remove_abandoned(draft: str, seconds: float) -> None:
    """Remove a draft if its lock is free and it is at least *seconds* old."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(draft, flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(lock).st_mtime >= seconds:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        os.close(lock)
