"""The files among the arguments of calls: their digests, and their changes. Files are
compared by content.

A `File` adds itself to a list while its digest is computed. The collected files are
stored with the call, or with the input, so that a message can name a file that has
changed since. The files in the arguments of a node's calls are stored with the node's
writes, beside the list of the results that the node has used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

Value = TypeVar("Value")
FileContent: TypeAlias = tuple[str, str, int]
"""The recorded form of a file: path, digest of the content, and size."""
_DIGITS = 16
NOT_A_TASK = "\n"
"""The prefix of the names of used results that are not results of tasks, such as files.

It is a newline character, with which no name of a task begins.
"""
USED_FILE = NOT_A_TASK + "file "
"""The prefix of a file's name, where it is recorded among the names of used results."""
MOST_FILES = 1_000
"""The greatest number of used files that are stored with a node's writes. Further files
are left out.
"""
_COLLECTED: ContextVar[list[FileContent] | None] = ContextVar(
    "flowpregel_files", default=None
)


def file_content(
    path: str,
    digest: str,
    size: int,
) -> FileContent:
    """Return a file in the form in which it is recorded."""
    return (
        path,
        digest[:_DIGITS],
        size,
    )


def collect_file(
    path: str,
    digest: str,
    size: int,
) -> None:
    """Add a file to the list that `with_files` collects while a digest is computed."""
    collected = _COLLECTED.get()
    content = file_content(
        path,
        digest,
        size,
    )
    if collected is not None and content not in collected:
        collected.append(content)


def with_files(
    take_digest: Callable[[], Value],
) -> tuple[Value, tuple[FileContent, ...]]:
    """Call *take_digest*. Return its result, and the files that were collected during
    the call.
    """
    collected: list[FileContent] = []
    token = _COLLECTED.set(collected)
    try:
        return take_digest(), tuple(collected)
    finally:
        _COLLECTED.reset(token)


def changed_files(
    recorded: Iterable[Sequence[object]], now: Iterable[FileContent]
) -> list[tuple[FileContent, str]]:
    """Return the files whose content has changed, each with a description of the
    change.

    Example:
        >>> changed_files([("a.csv", "8fa3e39f", 6)], [("a.csv", "566080d2", 7)])[0][1]
        "file 'a.csv' was 6 bytes [8fa3e39f] and is now 7 bytes [566080d2]"
    """
    before = {path: (digest, size) for path, digest, size in recorded}
    changed = []
    for path, digest, size in now:
        was = before.get(path)
        if was is not None and was[0] != digest:
            text = (
                f"file {path!r} was {was[1]:,} bytes [{str(was[0])[:8]}] and is now "
                f"{size:,} bytes [{digest[:8]}]"
            )
            changed.append(((path, digest, size), text))
    return changed
