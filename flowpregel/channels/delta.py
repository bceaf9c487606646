"""`DeltaChannel`, for which a superstep stores its writes instead of the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, HoldingChannel, Missing, PrepareWrite
from flowpregel.channels.folding import (
    Fold,
    concrete,
    detached,
    hooks_of,
    identity_of,
    only_replacement,
    without_snapshot,
)
from flowpregel.errors import ConfigurationError

Value = TypeVar("Value")
Update = TypeVar("Update")


class DeltaChannel(HoldingChannel[Value, Update]):
    """Folds all writes into the value, but stores only the writes of each superstep.

    The value is rebuilt from the nearest snapshot and the later writes, in one call of
    the reducer. So the reducer must be deterministic, and must give the same result
    whether writes come in one batch or in several. An `Overwrite` replaces the value
    (``Overwrite(None)`` with ``typ()``), and every other write of the same superstep is
    dropped.

    Args:
        reducer: A function that takes the value and a list of writes, and returns the
            new value. It should not modify the old value, to which other objects may
            refer.
        typ: The type of the value, which is initially ``typ()``. None means a list, or
            ``T`` inside ``Annotated[T, DeltaChannel(...)]``.
        snapshot_frequency: The number of updates after which the whole value is stored
            too, or None for no snapshots.

    Raises:
        ConfigurationError: *reducer* cannot be called, or *snapshot_frequency*
            is not a positive int.

    Example:
        >>> channel = DeltaChannel(lambda state, writes: state + writes, list)
        >>> channel.update([1, 2]), channel.get()
        (True, [1, 2])
    """

    reacts_to_silence = False

    value: Value | Missing
    """The value, or `MISSING` if the channel has none."""
    fold: Fold | None
    """The reducer's index of the value (a `Fold`), such as the positions of messages by
    id. None until the index is built.
    """

    def __init__(
        self,
        reducer: Callable[[Value, Sequence[Update]], Value],
        typ: Any = None,
        *,
        snapshot_frequency: int | None = None,
    ) -> None:
        if not callable(reducer):
            raise ConfigurationError(
                "a delta reducer is a function of the value and a list of writes, not "
                f"{reducer!r}"
            )
        if snapshot_frequency is not None and (
            type(snapshot_frequency) is not int or snapshot_frequency < 1
        ):
            raise ConfigurationError(
                f"snapshot_frequency is {snapshot_frequency!r}; use a number of "
                "updates of at least 1, or None for no snapshots"
            )
        super().__init__(list if typ is None else concrete(typ))
        self.reducer = reducer
        self.prepares_with: PrepareWrite | None = hooks_of(reducer).prepare
        self.snapshot_frequency = snapshot_frequency
        self.fold = None

    @property
    def folds_with(self) -> Callable[..., Any] | None:
        """The reducer, which folds the writes."""
        return self.reducer

    def update(self, values: Sequence[Update]) -> bool:
        """Fold the writes in one call of the reducer, or take the `Overwrite` among
        them.

        Raises:
            InvalidUpdateError: The writes contain several `Overwrite`.
            Exception: The exception of the reducer, with a note that names the
                channel.
        """
        if not values:
            return False
        self.replay((values,))
        return True

    def replay(self, batches: Sequence[Sequence[Update]]) -> None:
        """Fold the writes of many supersteps, oldest first, in one call of the reducer.

        The result is the same as that of one `update` after the other. An `Overwrite`
        in a batch discards the writes of earlier batches.

        Args:
            batches: The writes of each superstep.

        Raises:
            InvalidUpdateError: One superstep has several `Overwrite`.
            Exception: The exception of the reducer, with a note that names the
                channel.

        Example:
            >>> channel = DeltaChannel(lambda state, writes: state + writes, list)
            >>> channel.replay([["a"], ["b", "c"]])
            >>> channel.get()
            ['a', 'b', 'c']
        """
        batches = (*batches,)
        value, start = self.typ() if self.value is MISSING else self.value, 0
        for index, batch in enumerate(batches):
            if (by := only_replacement(batch, self.key)) is not MISSING:
                value, start = self.typ() if by is None else detached(by), index + 1
        writes = [*chain.from_iterable(batches[start:])]
        try:
            self.value = self._folded(value, writes) if writes else value
        except Exception as error:
            error.add_note(
                f"raised by the reducer of channel {self.key!r}, given {len(writes)} "
                "writes in one batch"
            )
            raise

    def _folded(self, value: Value, writes: Sequence[Update]) -> Value:
        """Return *value* with *writes* added by the reducer.

        If the reducer keeps an index of the value, the index of the last call is used
        again, because building it takes time that grows with the value.
        """
        start = hooks_of(self.reducer).fold
        if start is None:
            return self.reducer(value, writes)
        fold = self.fold
        if fold is None or not fold.continues(value):
            fold = start(value)
        # If the reducer refuses a write, the index may already include a part of that
        # write. So the index is kept only if the call succeeds.
        self.fold = None
        folded: Value = fold.add(writes)
        self.fold = fold
        return folded

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the index, so that the index is not sent to
        workers.
        """
        state = self.__dict__.copy()
        state["fold"] = None
        return state

    def checkpoint(self) -> Any:
        """Return `MISSING`, because deltas and snapshots are stored separately from the
        checkpoint's values.
        """
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that contains a shallow copy of *saved*, or ``typ()`` if
        *saved* is `MISSING`.
        """
        return super().from_checkpoint(
            self.typ() if saved is MISSING else detached(without_snapshot(saved))
        )

    def copy(self) -> Self:
        """Return an independent channel with a shallow copy of the value."""
        channel = super().from_checkpoint(detached(self.value))
        fold = self.fold
        if fold is not None and fold.continues(self.value):
            channel.fold = fold.copy(channel.value)
        return channel

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, self.snapshot_frequency, identity_of(self.reducer))
