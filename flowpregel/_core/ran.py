"""When a task ran, for how long, where, and how often it was tried: kept with its writes."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeAlias

EXECUTORS: Final = (
    "", "inline", "threads", "processes", "coroutines", "futures", "graph", "cache",
)  # fmt: skip
"""Where a task can run, by the number that is kept; the first is any other executor."""
_NUMBERS: Final = {name: number for number, name in enumerate(EXECUTORS)}
_HEAD: Final = struct.Struct("<qfHBI")
PULLED: Final = "~__pregel_pull, "
"""What the path of a task begins with that its node's triggers made; then comes the node."""
_LONGEST: Final = 200
_MOST: Final = 0xFFFF


Span: TypeAlias = tuple[int, float, str, int]
"""When an attempt ran, as its executor saw it: wall-clock nanoseconds at its beginning,
seconds, one of `EXECUTORS`, and the process it ran in (0: not told)."""


class Ran(NamedTuple):
    """What is kept of how a task ran."""

    name: str
    """The name of its node."""
    began: int
    """Wall-clock nanoseconds of the last attempt."""
    seconds: float
    """How long the last attempt took."""
    attempts: int
    """How often it was tried; 0: never, its result was shared by another run."""
    executor: str
    pid: int
    error: str = ""
    """What the last attempt failed with, in a line; empty: it did not."""

    def to_bytes(self, path: str) -> bytes:
        """Return it as it is kept beside the writes of the task at *path*."""
        name, began, seconds, attempts, executor, pid, error = self
        # The path of a task that its node's triggers made says which node it is.
        shown = b"" if path == PULLED + name else _text(name)[:255]
        tries = attempts if attempts < _MOST else _MOST
        head = _HEAD.pack(began, seconds, tries, _NUMBERS.get(executor, 0), pid)
        if not shown and not error:
            return head
        return b"".join((head, bytes((len(shown),)), shown, _text(error)))

    @classmethod
    def of(cls, kept: Ran | bytes, path: str) -> Ran:
        """Return what is kept of the task at *path*, read if it has to be."""
        return kept if isinstance(kept, Ran) else cls.from_bytes(kept, path)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Ran:
        """Return what `to_bytes` was made of."""
        began, seconds, attempts, known, pid = _HEAD.unpack_from(data)
        start = _HEAD.size + 1
        end = start + int.from_bytes(data[start - 1 : start], "little")
        name = data[start:end].decode("utf-8", "replace")
        return cls(
            name or path.removeprefix(PULLED),
            began,
            seconds,
            attempts,
            EXECUTORS[known] if known < len(EXECUTORS) else "",
            pid,
            data[end:].decode("utf-8", "replace"),
        )


def line_of(error: Any) -> str:
    """Return *error* in one line of bounded length; a class of a user's may refuse to tell."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - what a user's __str__ raises
        text = f"(its text cannot be had: {type(problem).__name__})"
    first = text.strip().partition("\n")[0]
    return (f"{name}: {first}" if first else name)[:_LONGEST]


def _text(name: str) -> bytes:
    return name.encode("utf-8", "replace")
