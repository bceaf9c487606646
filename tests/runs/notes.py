"""A list that every process appends to, so that calls can be counted wherever they are
made.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any


def _remove(path: str, owner: int) -> None:
    """Remove a file, but not in a fork of the process that has made it: a fork that
    ends as a program does would take the file from the others.
    """
    if os.getpid() == owner:
        os.unlink(path)


class Notes:
    """A list in a file, which is gone when the list is.

    A copy that went to another process writes into the same file.
    """

    def __init__(self) -> None:
        handle, self._path = tempfile.mkstemp()
        os.close(handle)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def append(self, item: Any) -> None:
        """Add *item*; one write, so that no other's comes into it."""
        with open(self._path, "ab", buffering=0) as file:
            file.write(pickle.dumps(item))

    def clear(self) -> None:
        """Remove all items."""
        os.truncate(self._path, 0)

    def __iter__(self) -> Iterator[Any]:
        with open(self._path, "rb") as file:
            while file.peek(1):
                yield pickle.load(file)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return [*self] == other

    def __repr__(self) -> str:
        return repr([*self])

    __hash__ = None  # type: ignore[assignment]


class Counted:
    """Notes what a task was called with, in order and in whichever process.

    Args:
        result: Makes the result from the argument.
    """

    def __init__(self, result: Callable[[Any], Any] = lambda value: value) -> None:
        self.seen = Notes()
        self._result = result

    def __call__(self, value: Any) -> Any:
        self.seen.append(value)
        return self._result(value)
