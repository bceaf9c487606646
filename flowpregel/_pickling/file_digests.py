"""The digests of files and folders, with their states (inode, size, time of the last
change). While the state is unchanged, the content need not be read again.

::

    stat --> `FileState`, unchanged since the digest was taken? --> the known digest
                          |
                          changed, or unknown
                          v
                          the content is read, and digested

An unchanged state proves that the content is unchanged only if the digest was computed
some time after the last change. Otherwise another change may have followed within the
resolution of the file system's clock, and altered neither size nor time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple


class FileState(NamedTuple):
    """The state of a file or a folder. If it is unchanged, the content is unchanged
    too, with the exception that the module's docstring describes.
    """

    inode: int
    size: int
    """The size of the file, or of all files in the folder."""
    changed_at: int
    """The time of the last change of the file, or of anything in the folder, in
    wall-clock nanoseconds.
    """
    entries: str = ""
    """A digest of the names, sizes and times of everything in a folder, or an empty
    string for a file.
    """


class FileDigest(NamedTuple):
    """The digest of the content of a file or folder, and its state when the digest was
    computed.
    """

    digest: str
    state: FileState


class WrittenFile(NamedTuple):
    """The record of an output file or folder of a task."""

    path: str
    """The path as the task gave it, which may be relative."""
    folder: str
    """The working directory of the task if the path is relative, otherwise an empty
    string.
    """
    digest: str
    """A digest of the content of the file or folder."""
    state: FileState
    """The state of the file or folder when the task had returned."""
    is_settled: bool
    """True if an unchanged state proves that the content is unchanged (see
    `_is_settled`).
    """


_DIGITS: Final = 16
"""The number of hexadecimal digits in `FileState.entries`."""
_KNOWN: Final[dict[str, FileDigest]] = {}
"""The computed digests of files and folders, by absolute path."""
_OUTPUTS: Final[dict[str, FileDigest]] = {}
"""The records of the output files of calls, by absolute path."""
_TICK: Final = 50_000_000
"""The coarsest resolution of modification times that are not whole seconds, in
nanoseconds.
"""
_SECONDS_TICK: Final = 2_000_000_000
"""The coarsest resolution of modification times that are whole seconds, in
nanoseconds.
"""


def file_digest(path: str) -> FileDigest:
    """Return the digest of the content of a file or a folder, and its state.

    A file that has not changed since it was last read is not read again. The content of
    a folder is the names and the contents of everything in it.

    Args:
        path: The path of the file or folder.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    path = os.path.abspath(path)
    began = time.time_ns()
    if os.path.isdir(path):
        state = folder_state(path)
        known = _KNOWN.get(path)
        if known is not None and known.state == state:
            return known
        digest = FileDigest(_tree_digest(path), state)
    else:
        with open(path, "rb") as file:
            state = _state_of_file(os.fstat(file.fileno()))
            known = _KNOWN.get(path)
            if known is not None and known.state == state:
                return known
            content = hashlib.file_digest(file, "blake2b")
        digest = FileDigest(content.hexdigest(), state)
    if _is_settled(state, began):
        _KNOWN[path] = digest
    else:
        _KNOWN.pop(path, None)
    return digest


def present_or_recorded_digest(path: str) -> FileDigest:
    """Return the digest of a file or folder. If it is the output of a task and no
    longer exists, return the recorded digest.

    Args:
        path: The path of the file or folder.

    Raises:
        OSError: The file does not exist and is no known output, or cannot be read.
    """
    try:
        return file_digest(path)
    except FileNotFoundError:
        recorded = _OUTPUTS.get(os.path.abspath(path))
        if recorded is None:
            raise
        return recorded


def note_output(output: WrittenFile, path: str) -> None:
    """Remember the record of an output, so that the output need not be read.

    Args:
        output: The record of the output.
        path: The present path of the output.
    """
    path = os.path.abspath(path)
    recorded = FileDigest(output.digest, output.state)
    _OUTPUTS[path] = recorded
    if output.is_settled:
        _KNOWN.setdefault(path, recorded)


def present_state(path: str) -> FileState:
    """Return the state of a file or folder, without reading contents.

    Raises:
        OSError: The file does not exist.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return folder_state(path)
    return _state_of_file(status)


def written_file(path: str, folder: str) -> WrittenFile:
    """Return the record of an output file or folder that a task has completed.

    Args:
        path: The path as the task gave it.
        folder: The working directory of the task if the path is relative.

    Raises:
        OSError: The file cannot be read.
    """
    began = time.time_ns()
    digest, state = file_digest(os.path.join(folder, path))
    return WrittenFile(
        path=path,
        folder=folder,
        digest=digest,
        state=state,
        is_settled=_is_settled(state, began),
    )


def has_recorded_content(
    output: WrittenFile, path: str, state: FileState | None = None
) -> bool:
    """Return whether the file or folder at *path* has the content of an output.

    The content is read only if the size is the same and the modification time is not.

    Args:
        output: The record of the output.
        path: The present path of the output.
        state: The state of the file or folder, if `present_state` has just returned it.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    recorded = output.state
    if state is None:
        state = present_state(path)
    # The inode is not compared with the recorded one. A copy that kept the size and the
    # time of the output has another inode, but its content need not be read.
    state = state._replace(inode=recorded.inode)
    if state == recorded:
        return True
    is_folder = bool(recorded.entries)
    is_same_kind = is_folder == bool(state.entries)
    # The content of a pipe or a device is not read, because reading it may never end.
    is_readable = is_folder or os.path.isfile(path)
    if not is_same_kind or not is_readable or state.size != recorded.size:
        return False
    return file_digest(path).digest == output.digest


def _state_of_file(status: os.stat_result) -> FileState:
    return FileState(
        inode=status.st_ino,
        size=status.st_size,
        changed_at=status.st_mtime_ns,
    )


def _is_settled(state: FileState, at: int) -> bool:
    """Return whether a file in *state* was last changed so long before the time *at*
    that any change after *at* alters the state.
    """
    is_in_seconds = state.changed_at % 1_000_000_000 == 0
    tick = _SECONDS_TICK if is_in_seconds else _TICK
    return at - state.changed_at >= tick


# ---------------------------------------------------------------- folders


def folder_state(folder: str) -> FileState:
    """Return the state of a folder, which includes that of everything in it.

    Raises:
        OSError: A folder cannot be read.
    """
    tree = hashlib.blake2b()
    status = os.stat(folder)
    size = 0
    changed_at = status.st_mtime_ns
    for path in _paths_below(folder):
        content = ""
        if os.path.isfile(path):
            file_status = os.stat(path)
            size += file_status.st_size
            changed_at = max(changed_at, file_status.st_mtime_ns)
            content = f"{file_status.st_size} {file_status.st_mtime_ns}"
        elif os.path.islink(path):
            content = os.readlink(path)
        _add_entry(tree, os.path.relpath(path, folder), content)
    return FileState(
        inode=status.st_ino,
        size=size,
        changed_at=changed_at,
        entries=tree.hexdigest()[:_DIGITS],
    )


def _tree_digest(folder: str) -> str:
    """Return a digest of the names and the contents of everything below a folder.

    A link to a folder is digested by its target path, not by the content, because links
    may form a circle. Sockets and pipes are digested by their names alone.
    """
    tree = hashlib.blake2b()
    for path in _paths_below(folder):
        content = ""
        if os.path.isfile(path):
            content = file_digest(path).digest
        elif os.path.islink(path):
            content = os.readlink(path)
        _add_entry(tree, os.path.relpath(path, folder), content)
    return tree.hexdigest()


def _add_entry(tree: hashlib.blake2b, name: str, content: str) -> None:
    """Add the name and the content of an entry of a folder to a digest."""
    for text in (name, content):
        data = os.fsencode(text)
        # The length comes before each item, so that different folders never give the
        # same bytes.
        length = len(data)
        tree.update(length.to_bytes(8, "big"))
        tree.update(data)


def _paths_below(folder: str) -> Iterator[str]:
    """Yield the paths of all files and folders below a folder, in a fixed order.

    Raises:
        OSError: A folder cannot be read.
    """
    entries = list(os.scandir(folder))
    entries.sort(key=attrgetter("name"))
    for entry in entries:
        yield entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _paths_below(entry.path)
