"""`NamedBarrierValue`, which waits for a set of names, and a variant that also waits
until no other node is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, BaseChannel
from flowpregel.errors import ConfigurationError, InvalidUpdateError

Name = TypeVar("Name")


class NamedBarrierValue(BaseChannel[None, Name]):
    """A channel that is available, with the value None, once each name in *names* was
    written.

    When the channel has triggered a task, it waits for all names again.

    Args:
        typ: The type of the names.
        names: The names to wait for.

    Raises:
        ConfigurationError: *names* is empty, or a single string.

    Example:
        >>> channel = NamedBarrierValue(str, {"left", "right"})
        >>> channel.update(["left"]), channel.is_available()
        (True, False)
        >>> channel.update(["right"]), channel.is_available()
        (True, True)
    """

    reacts_to_silence = False

    def __init__(self, typ: Any, names: Iterable[Name]) -> None:
        super().__init__(typ)
        self.names: frozenset[Name] = frozenset(names)
        self.seen: set[Name] = set()
        if isinstance(names, str) or not self.names:
            raise ConfigurationError(
                f"a barrier waits for a set of at least one name, not {names!r}"
            )

    def update(self, values: Sequence[Name]) -> bool:
        """Add *values* to the names that were written, and return whether one of them
        is new.

        Raises:
            InvalidUpdateError: The channel does not wait for one of *values*.
        """
        new = set()
        for value in values:
            if not self._is_name(value):
                waited = ", ".join(sorted(map(repr, self.names)))
                raise InvalidUpdateError(
                    f"channel {self.key!r} waits for {waited}, but {value!r} was "
                    "written; write one of these names, or add it to the names"
                )
            new.add(value)
        if new <= self.seen:
            return False
        self.seen |= new
        return True

    def _is_name(self, value: Any) -> bool:
        try:
            return value in self.names
        except TypeError:
            # All names are hashable, so a value that is not hashable cannot be one of
            # them.
            return False

    def get(self) -> None:
        """Return None, once all names were written."""
        if not self.is_available():
            raise self._empty()

    def is_available(self) -> bool:
        """Return whether all names were written."""
        return self.seen == self.names

    def checkpoint(self) -> Any:
        """Return the names written so far, in a new set."""
        return set(self.seen)

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel to which the names *saved* were already written. Names
        that the channel no longer waits for are dropped.
        """
        new = copy(self)
        new.seen = set() if saved is MISSING else set(saved) & self.names
        return new

    def consume(self) -> bool:
        """Wait for all names again, if all were written."""
        if not self.is_available():
            return False
        self.seen = set()
        return True

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, self.names)


class NamedBarrierValueAfterFinish(NamedBarrierValue[Name]):
    """A channel that is available, with the value None, once each name in *names* was
    written and nothing else is left to run.

    Args:
        typ: The type of the names.
        names: The names to wait for.

    Raises:
        ConfigurationError: *names* is empty, or a single string.

    Example:
        >>> channel = NamedBarrierValueAfterFinish(str, {"left"})
        >>> channel.update(["left"]), channel.is_available()
        (True, False)
        >>> channel.finish(), channel.is_available()
        (True, True)
    """

    def __init__(self, typ: Any, names: Iterable[Name]) -> None:
        super().__init__(typ, names)
        self.finished: bool = False

    def is_available(self) -> bool:
        """Return whether all names were written and `finish` was called since."""
        return self.finished and super().is_available()

    def checkpoint(self) -> Any:
        """Return ``(names written so far, finished)``."""
        return set(self.seen), self.finished

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel from a ``(names, finished)`` pair."""
        seen: Any = MISSING
        finished = False
        if saved is not MISSING:
            seen, finished = saved
        new = super().from_checkpoint(seen)
        # The program may have added names since the checkpoint. The channel must still
        # wait for the added names.
        new.finished = finished and new.seen == new.names
        return new

    def consume(self) -> bool:
        """Wait for all names again, if the channel was available."""
        consumed = super().consume()
        if consumed:
            self.finished = False
        return consumed

    def finish(self) -> bool:
        """Make the channel available, if all names were written."""
        if self.finished or self.seen != self.names:
            return False
        self.finished = True
        return True
