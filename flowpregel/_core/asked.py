"""What a call asks for, by which it is known again, and what is kept of it and how it ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

CODE_DIGITS = 16
"""How much of the digest of a body is of its code alone."""
NOWHERE = -1
"""The place of a call that may come anywhere the next time: one before it is made again."""


class Asked(NamedTuple):
    """What a call asks for. By it a call is known again when its body runs once more."""

    name: str
    """The name of the task."""
    arguments: str
    """A digest of the content of its arguments."""
    code: str
    """A digest of what its function does, or the version that stands for it."""
    text: str
    """The call as a person reads it."""
    is_placed: bool = True
    """Whether its place among the calls of its body is no accident: it did not wait for others."""


class CallRecord(NamedTuple):
    """What is kept of a call, beside how it ended: what it asked for, and who made it."""

    name: str
    arguments: str
    code: str
    text: str
    place: int
    """The how manieth call of its body it was, or `NOWHERE`."""
    caller: str
    """A digest of the body that made it: first of its code, then of what it was given."""


class FailedCall(NamedTuple):
    """A call that failed, for a saver to keep what it takes to make it again."""

    home: str
    """The module and the name of the function; of a chunk's, with ``.map`` after it."""
    given: Any
    """Its arguments."""
    redacted: frozenset[int | str]
    """The positions and names of those that are not kept."""


class Span(NamedTuple):
    """When and where an attempt ran, and what it took; 0 and empty: not known."""

    began: int
    """Wall-clock nanoseconds."""
    seconds: float
    executor: str
    """The kind of executor."""
    pid: int = 0
    cpu: float = 0.0
    """Seconds of CPU."""
    peak: int = 0
    """The most memory, in bytes, that its process had used by then."""
    host: str = ""


FailedAttempt: TypeAlias = tuple[int, float, int, str, str]
"""Began (wall-clock nanoseconds), seconds, pid, error in one line, traceback: plain, to be read
by those who unpickle no class."""


class Ran(NamedTuple):
    """How a task ran: when, for how long, where, and how often it was tried."""

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
    """What the last attempt failed with, in one line; empty: it did not fail."""
    call: str = ""
    """The call as a person reads it, if it failed."""
    planned: int = 0
    """Wall-clock nanoseconds at which its first attempt was to be started."""
    cpu: float = 0.0
    peak: int = 0
    host: str = ""
    """What the last attempt took, and where: see `Span`."""
    failed: tuple[FailedAttempt, ...] = ()
    """The last attempts that failed."""


class LeftResults(Protocol):
    """The calls that finished and that a `Saved` leaves where they are kept."""

    def result(self, task_id: str) -> Sequence[tuple[str, Any]]:
        """Return what is kept of a call; empty: there is no such."""

    def record_at(self, path: str) -> Sequence[tuple[str, Any]]:
        """Return which call has this path, without its result; empty: there is no such."""

    def count(self) -> int:
        """Return how many there are."""

    def records(self) -> Iterable[Sequence[tuple[str, Any]]]:
        """Yield which calls they are, one after the other and without their results."""
