"""What a superstep added to a channel.

::

    kind, number of what it was added to, and one of
      bytes               the encoded tuple of its writes
      tuple of values     each write, as it is kept
      tuple of tuples     for each write: the number of a checkpoint, a task, and
                          which of that task's pending writes on it it is

The second form is the usual one, held by the checkpoint's record together with
the pending writes themselves: the pickle has the bytes once. Where those have
records of their own, it is the third.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from flowpregel.checkpoint.lmdb.plain import Kept
from flowpregel.checkpoint.lmdb.state import StepId

Added: TypeAlias = bytes | tuple[Kept, ...]
"""An encoded tuple of writes, or each of them as it is kept."""


class Reference(NamedTuple):
    """A pending write that has a record of its own."""

    number: int
    """Of the checkpoint it was made on."""
    tag: bytes
    """The task's, as `keys.task` gives it."""
    position: int
    """Its index among the task's writes."""


class DeltaRecord(NamedTuple):
    """What was added, and to what."""

    kind: int
    number: int
    """The place of what it was added to, with *kind*."""
    body: Added | tuple[tuple[Any, ...], ...]

    @property
    def previous(self) -> StepId:
        """Where what it was added to is."""
        return self.kind, self.number

    def references(self) -> list[Reference]:
        """Return the pending writes it refers to."""
        return [Reference(*each) for each in self.body if isinstance(each, tuple)]

    def added(self, look_up: Callable[[Reference], Kept]) -> Added:
        """Return what was added; *look_up* gives the write that a reference names."""
        if isinstance(self.body, bytes):
            return self.body
        return tuple(
            [look_up(Reference(*each)) if isinstance(each, tuple) else each for each in self.body]
        )

    def to_bytes(self) -> bytes:
        """Return a record of its own."""
        return pickle.dumps(tuple(self), 5)

    @classmethod
    def from_bytes(cls, data: bytes) -> DeltaRecord:
        """Return the record in *data*. Its checksum must have held."""
        return cls(*pickle.loads(data))
