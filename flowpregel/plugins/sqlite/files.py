"""The URL of a SQLite database, and the files of the database.

::

    runs.db           the database
    runs.db-wal       SQLite's log of commits, while the database is open
    runs.db-shm       SQLite's index of the log
    runs.db-locks/    our locks: of writers, of leases, of claims

The database is created in a draft and then renamed, so it is either complete or absent.
In this process, only SQLite may open the database file: its locks are POSIX locks, and
a process loses these when it closes any descriptor of the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from flowpregel.errors import ConfigurationError, StoreError, StoreReadOnlyError
from flowpregel.storage import (
    FileLock,
    draft_in,
    refuse_foreign_files,
    sync_path,
    translate_os_errors,
)

SCHEME = "sqlite"
EXAMPLE = "sqlite:///runs.db"
WAL_SUFFIX = "-wal"
_LOCKS_SUFFIX = "-locks"
_WRITE_LOCK = "write.lock"


def path_in(location: str | os.PathLike[str]) -> str:
    """Return the path, without symbolic links, of the database that a URL or path
    names.

    Example:
        >>> path_in("sqlite:////data/runs.db")
        '/data/runs.db'

    Raises:
        ConfigurationError: *location* is not a URL of a SQLite file.
        StoreError: The path is that of a folder, or its links form a cycle.
    """
    text = os.fspath(location)
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() == SCHEME:
        if not rest.startswith("/"):
            raise ConfigurationError(
                f"{text!r} names no file: write sqlite:///{rest or 'runs.db'} for a "
                f"relative path, sqlite:////folder/runs.db for an absolute one"
            )
        text = rest[1:]
    elif separator:
        raise ConfigurationError(f"{text!r} is not an SQLite URL: write {EXAMPLE}")
    if not text or text == ":memory:":
        raise ConfigurationError(
            f"{os.fspath(location)!r} names no file: write {EXAMPLE}; to keep runs in "
            "memory, use InMemorySaver"
        )
    real = os.path.realpath(text)
    with translate_os_errors(real):
        if os.path.lexists(real) and not stat.S_ISREG(os.stat(real).st_mode):
            raise StoreError(
                f"{real} is not a regular file, as an SQLite store must be: give the "
                "path of one, or, for a store in a folder, write the path without "
                f"{SCHEME}:///"
            )
    return real


def url_of(path: str) -> str:
    """Return the URL of the database at an absolute *path*."""
    return f"{SCHEME}:///{path}"


def locks_of(path: str) -> str:
    """Return the folder that contains the locks of the database at *path*."""
    return path + _LOCKS_SUFFIX


def refuse_others_files(path: str) -> None:
    """Raise an error if other users may have written to the database.

    Raises:
        StoreForeignError: The database or its log belongs to another user, or other
            users can write to it.
        StoreError: The log is a symbolic link.
    """
    log = path + WAL_SUFFIX
    if os.path.islink(log):
        raise StoreError(f"{log} is a symbolic link, which a store must not contain")
    refuse_foreign_files((path, log))


def refuse_unread_log(path: str) -> None:
    """Raise an error if the database at *path* has a log that is not empty.

    SQLite ignores the log of a database that is opened as immutable. The newest commits
    would be missing without an error.

    Raises:
        StoreReadOnlyError: There is such a log. A process that crashed has left it, or
            one that is running uses it.
    """
    log = path + WAL_SUFFIX
    if os.path.exists(log) and os.path.getsize(log):
        raise StoreReadOnlyError(
            f"the newest commits may be in {log}, which SQLite cannot read in a folder "
            "that this user cannot write to: copy both files to a folder of your own"
        )


def write_lock(path: str) -> FileLock:
    """Return the lock for writers of the database at *path*, not yet acquired."""
    folder = locks_of(path)
    with translate_os_errors(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return FileLock(os.path.join(folder, _WRITE_LOCK))


def create_database(path: str, fill: Callable[[str], None]) -> bool:
    """Create the database at *path* in one step, from a draft that *fill* fills.

    The caller holds the lock for writers, so no other process creates the database at
    the same time.

    Returns:
        False if there is a file at *path* already.
    """
    folder, name = os.path.split(path)
    with translate_os_errors(path), draft_in(folder, f".{name}.new.") as draft:
        file = os.path.join(draft, name)
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        fill(file)
        sync_path(file)
        if os.path.lexists(path):
            return False
        os.rename(file, path)
        sync_path(folder)
    return True
