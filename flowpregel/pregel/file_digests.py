"""The content digests of files, and the changes of files since a run used them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from flowpregel._core.files import FileContent, changed_files, file_content


class _State(NamedTuple):
    """The state of a file. If the state is unchanged, the content is unchanged, too."""

    inode: int
    size: int
    changed_at: int
    """The time of the last change of the file, in wall-clock nanoseconds."""


_KNOWN: Final[dict[str, tuple[_State, str]]] = {}
"""The state and the content digest of each file that was read, by path."""
_TICK: Final = 2_000_000_000
"""The coarsest resolution of modification times among file systems, in nanoseconds."""


def content_digest(path: str) -> tuple[str, int]:
    """Return a digest of the content of a file, and its size.

    A file that has not changed since it was last read is not read again. The content of
    a folder is the names and the contents of everything in it.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return _tree_digest(path)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        state = _State(
            inode=status.st_ino,
            size=status.st_size,
            changed_at=status.st_mtime_ns,
        )
        known_state, digest = _KNOWN.get(path, (None, ""))
        # A file that was just written is digested again, because another write need not
        # change the modification time.
        age = time.time_ns() - state.changed_at
        if known_state != state or age < _TICK:
            content = hashlib.file_digest(file, "blake2b")
            digest = content.hexdigest()
            _KNOWN[path] = state, digest
    return digest, state.size


def _tree_digest(folder: str) -> tuple[str, int]:
    """Return a digest of the files below a folder, and their total size.

    A link to a folder counts by its target, because links may form a circle. Sockets
    and pipes count by their names.
    """
    tree = hashlib.blake2b()
    total = 0
    for path in _paths_below(folder):
        content = ""
        if os.path.isfile(path):
            content, size = content_digest(path)
            total += size
        elif os.path.islink(path):
            content = os.readlink(path)
        relative = os.path.relpath(path, folder)
        for text in (relative, content):
            data = os.fsencode(text)
            # The length comes first, so that no two trees give the same bytes.
            length = len(data)
            header = length.to_bytes(8, "big")
            tree.update(header)
            tree.update(data)
    return tree.hexdigest(), total


def _paths_below(folder: str) -> list[str]:
    """Return the paths of all files and folders below a folder, in a fixed order.

    Raises:
        OSError: A folder cannot be read.
    """
    paths: list[str] = []
    entries = list(os.scandir(folder))
    entries.sort(key=attrgetter("name"))
    for entry in entries:
        paths.append(entry.path)
        if entry.is_dir(follow_symlinks=False):
            paths.extend(_paths_below(entry.path))
    return paths


def changes_since(recorded: Iterable[FileContent]) -> list[str]:
    """Return a text for each of the recorded files whose content has changed.

    A file that cannot be read is left out, because it has no content to compare, and no
    new result could be computed from it. If a path was recorded with several contents,
    because the run itself wrote to the file, each of these contents counts as
    unchanged.
    """
    contents: dict[str, list[FileContent]] = {}
    for content in recorded:
        versions = contents.setdefault(content[0], [])
        versions.append(content)
    texts = []
    for path, versions in contents.items():
        try:
            digest, size = content_digest(path)
        except OSError:
            continue
        present = file_content(
            path,
            digest,
            size,
        )
        if present in versions:
            continue
        changes = changed_files(
            versions[-1:],
            [present],
        )
        for _, text in changes:
            texts.append(text)
    return texts
