"""`File`: a path that counts, as an argument, by what is in the file."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Final

_KNOWN: Final[dict[str, tuple[tuple[int, int, int], str]]] = {}
"""By path: inode, size and time of a file that was read, and the digest of its content."""

_TICK: Final = 2_000_000_000
"""Nanoseconds that a file system's clock may stand still."""


class File(os.PathLike[str]):
    """A path to a file whose content an argument is to be known by, wherever the file lies.

    A call with a plain path is known by the path alone: the file may change, and its result is
    still the recorded one. Pass it to `open`, `os` and `pathlib` like any path.

    Args:
        path: The file. It is read when a call with it is made, and not again
            in this process as long as its inode, size and time are the same,
            unless it was written in the last two seconds.

    Example:
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w", suffix=".csv") as table:
        ...     _ = table.write("a,b")
        ...     table.flush()
        ...     open(File(table.name)).read()
        'a,b'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"File({self.path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __flowpregel_digest__(self) -> str:
        """Return a digest of the content.

        Raises:
            OSError: There is no such file, or it cannot be read.
        """
        path = os.path.abspath(self.path)
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            state = status.st_ino, status.st_size, status.st_mtime_ns
            known, digest = _KNOWN.get(path, (None, ""))
            # A file that was just written may be written again within a tick of its clock.
            if known != state or time.time_ns() - status.st_mtime_ns < _TICK:
                digest = hashlib.file_digest(file, "blake2b").hexdigest()
                _KNOWN[path] = state, digest
        return digest
