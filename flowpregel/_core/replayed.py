"""What many supersteps added to a channel, decoded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, overload

Decode: TypeAlias = Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]]
"""Returns what was kept of some supersteps, each time in new objects."""


class Replayed(Sequence[tuple[Any, ...]]):
    """The writes of a channel's supersteps, oldest first: a tuple for each.

    The states of one history have most of them in common. They share what was
    kept of it, and decode what they need: no object is in two of them.

    Args:
        kept: What was kept of all supersteps of the channel, oldest first.
        end: How many of them count.
        decode: Decodes some.
    """

    __slots__ = ("_decode", "_kept", "_start", "_stop")

    def __init__(self, kept: Sequence[Any], end: int, decode: Decode, start: int = 0) -> None:
        self._kept = kept
        self._start = start
        self._stop = end
        self._decode = decode

    def since(self, start: int) -> Replayed:
        """Return those from *start* on, which is counted from the first that was kept."""
        return Replayed(self._kept, self._stop, self._decode, start)

    def until(self, end: int) -> Replayed:
        """Return those before *end*, which is counted from the first that was kept."""
        return Replayed(self._kept, end, self._decode, self._start)

    def shares(self, other: Replayed) -> bool:
        """Return whether both are parts of what was kept of the same supersteps."""
        return self._kept is other._kept

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[Any, ...], ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(self._start, self._stop)[index]
        if isinstance(chosen, int):
            return self._decode([self._kept[chosen]])[0]
        return self._decode([self._kept[at] for at in chosen])

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._decode(self._kept[self._start : self._stop]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | Replayed):
            return NotImplemented
        return tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as its items, which may be anything

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or what goes to another process, is the tuple that it stands for.
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))
