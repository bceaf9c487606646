"""The refusal of stores that other users may have written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from flowpregel.errors import StoreForeignError
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.options import TRUST_VARIABLE


def refuse_foreign_files(paths: Iterable[str]) -> None:
    """Refuse a store that other users may have written.

    Values are pickles, which can run code. The checksums do not protect from such
    users, because they can read the key in the store, and because engines do not check
    their own pages.

    Args:
        paths: The files and folders of the store.

    Raises:
        StoreForeignError: One of *paths* belongs to another user, or other users can
            write to it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     refuse_foreign_files([folder])
    """
    for path in paths:
        with translate_os_errors(path):
            status = os.lstat(path)
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
