"""The refusal of stores that other users may have written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from flowpregel.errors import StoreForeignError
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.options import TRUST_VARIABLE


def refuse_foreign_files(paths: Iterable[str]) -> None:
    """Refuse a store that other users may have written.

    Values are pickles, which can run code. The checksums do not protect from such
    users, because they can read the key in the store, and because engines do not check
    their own pages.

    Args:
        paths: The files and folders of the store. Paths that do not exist are skipped.

    Raises:
        StoreForeignError: One of *paths* belongs to another user, or other users can
            write to it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     refuse_foreign_files([folder])
    """
    for path in paths:
        status = _status_of(path)
        if status is None:
            continue
        if stat.S_ISLNK(status.st_mode):
            # A symbolic link needs no check here, because it is refused when it is
            # opened.
            continue
        if status.st_uid != os.geteuid():
            reason = (
                f"belongs to user {status.st_uid}, but this process runs as user "
                f"{os.geteuid()}"
            )
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(status.st_mode)
            reason = f"can be written by other users (mode {mode:o})"
        else:
            continue
        raise StoreForeignError(
            f"{path} {reason}; nothing was read. If you trust everyone who can write "
            "to it, pass StoreOptions(trust=True), or `flowpregel ... --trust`, or "
            f"set {TRUST_VARIABLE}=1"
        )


def _status_of(path: str) -> os.stat_result | None:
    """Return the status of the file at *path*, or None if it does not exist.

    Another process may delete a file at any time: SQLite deletes the log of a database
    when the last connection to it is closed.
    """
    with translate_os_errors(path), suppress(FileNotFoundError):
        return os.lstat(path)
    return None
