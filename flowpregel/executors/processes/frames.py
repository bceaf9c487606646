"""The frames on a link: a header of fixed size, then a body whose meaning the kind says.

A header begins with the link's own mark, drawn at random when the worker was
started. Bytes that user code writes to the wrong descriptor do not carry it, and
are recognised before anything is decoded.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

HEADER: Final = Struct("<IBBHIQ")
"""mark, kind, flags, spare, number, length of the body."""
_HEADER_SIZE: Final = HEADER.size
LONGEST: Final = 1 << 36
"""No body is longer: a length above it is garbage."""

# Down: from the coordinator to the worker.
NODE: Final = 1
"""What to call for a digest: digest, pickle."""
TASKS: Final = 2
"""Tasks to run, in order: each with its number and length."""
ANSWER: Final = 3
"""The outcome of call *number*."""
STORED: Final = 4
"""The answer to store request *number*."""
FREED: Final = 5
"""Shared memory the coordinator no longer reads: leases of the worker's own segments."""
STOP: Final = 6
"""No more tasks: release what is held, and end."""
RUN: Final = 7
"""What all tasks of run *number* may know about it; empty: forget all runs."""
LEAVE: Final = 8
"""A run has ended: its `Context` channels, and its error."""

# Up: from the worker to the coordinator.
READY: Final = 32
"""Started, and its initializer has run."""
ENDED: Final = 33
"""Task *number* ended: its outcome."""
EMITTED: Final = 34
"""A chunk for the run's custom stream."""
BEAT: Final = 35
"""A sign of life."""
CALLED: Final = 36
"""Task *number* makes a call."""
ASKED: Final = 37
"""A store request."""
LOGGED: Final = 38
"""A log record."""
PRINTED: Final = 39
"""Text for stdout or stderr."""
RETURNED: Final = 40
"""Shared memory the worker no longer reads: lease ids."""
FAILED: Final = 41
"""The worker could not start: why."""
RESULTS: Final = 42
"""Tasks ended, each with one write, of a number or nothing: all that there is to say of them."""

DOWN: Final = frozenset({NODE, TASKS, ANSWER, STORED, FREED, STOP, RUN, LEAVE})
UP: Final = frozenset(
    {READY, ENDED, EMITTED, BEAT, CALLED, ASKED, LOGGED, PRINTED, RETURNED, FAILED, RESULTS}
)

# Flags.
STOPPED: Final = 2
"""ENDED: the stop signal reached the task."""
CAUGHT: Final = 16
"""ENDED: the task made calls, and says which of their failures it has seen."""
STDERR: Final = 4
"""PRINTED: it is for stderr."""
STRUCTURED: Final = 8
"""LOGGED: it is structlog's."""


class Frame(NamedTuple):
    """One message on a link."""

    kind: int
    flags: int
    number: int
    body: bytes


class GarbageError(Exception):
    """Bytes on a link that no worker of ours has sent."""


def pack(mark: int, kind: int, number: int, body: bytes = b"", flags: int = 0) -> bytes:
    """Return a whole frame."""
    return HEADER.pack(mark, kind, flags, 0, number, len(body)) + body


class Parser:
    """Cuts the bytes that arrive into frames.

    Args:
        mark: What every frame begins with.
        kinds: The kinds that may arrive at this end.
    """

    def __init__(self, mark: int, kinds: frozenset[int]) -> None:
        self._mark = mark
        self._kinds = kinds
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes.

        Memory grows with the bytes that arrived, never with what a header claims.

        Raises:
            GarbageError: The bytes are not frames; the link cannot be used again.
        """
        held: bytes | bytearray = data
        if self._held:
            self._held += data
            held = self._held
        frames: list[Frame] = []
        used, last = 0, len(held) - _HEADER_SIZE
        unpack, ours, kinds = HEADER.unpack_from, self._mark, self._kinds
        while used <= last:
            mark, kind, flags, spare, number, length = unpack(held, used)
            if mark != ours or kind not in kinds or spare or length > LONGEST:
                raise GarbageError(f"not a frame: {bytes(held[used : used + HEADER.size]).hex()}")
            if last - used < length:
                break
            start = used + _HEADER_SIZE
            used = start + length
            frames.append(Frame(kind, flags, number, bytes(held[start:used])))
        if held is not self._held:
            self._held = bytearray(held[used:])
        elif used:
            # In place, since a long body arrives in thousands of pieces.
            del self._held[:used]
        return frames
