"""The address of a store's page, which stays the same when the server is started again.

The secret and the port are in a file with the store: ``page.address`` in its folder, or
beside its file. Only the owner may read that file, as for the store itself. A store at
a URL of a database has none, and gets another secret each time.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from typing import NamedTuple

_NAME = "page.address"
_CONTENT = re.compile(r"([\w-]{43})\n([0-9]{1,5})\n")


class PageAddress(NamedTuple):
    """The parts of the page's address that stay the same when the server is started
    again.
    """

    token: str
    port: int
    """The port on which the server listened last; 0 if there was none."""


def kept_address(store: str) -> PageAddress:
    """Return the address that is stored with a store, or a new one.

    Args:
        store: The path of the store's folder or file, or the URL of a database.
    """
    path = _path_of(store)
    text = ""
    if path is not None:
        with suppress(OSError, UnicodeDecodeError):
            text = _private_text(path)
    match = _CONTENT.fullmatch(text)
    if match is None:
        return PageAddress(secrets.token_urlsafe(32), 0)
    return PageAddress(match[1], int(match[2]))


def keep_address(store: str, address: PageAddress) -> None:
    """Store an address with a store, if its folder can be written.

    Args:
        store: As for `kept_address`.
        address: The address to store.
    """
    path = _path_of(store)
    if path is None or kept_address(store) == address:
        return
    # The file is replaced, not overwritten, because it may belong to another user, or
    # be readable by others.
    with suppress(OSError):
        with suppress(FileNotFoundError):
            os.unlink(path)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            file.write(f"{address.token}\n{address.port}\n")


def _path_of(store: str) -> str | None:
    """Return the path of the file in which a store's address is kept, or None for a
    store at a URL, which has no such file.
    """
    if os.path.isdir(store):
        return os.path.join(store, _NAME)
    return f"{store}.{_NAME}" if os.path.isfile(store) else None


def _private_text(path: str) -> str:
    """Return the content of a file that only this user may read, or an empty string."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags)) as file:
        status = os.fstat(file.fileno())
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or stat.S_IMODE(status.st_mode) & 0o077:
            return ""
        return file.read(100)
