"""`DeltaChannel`, of which a superstep keeps its writes and not the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, HoldingChannel
from flowpregel.channels.folding import (
    concrete,
    detached,
    identity_of,
    only_replacement,
)
from flowpregel.errors import ConfigurationError

Value = TypeVar("Value")
Update = TypeVar("Update")


class DeltaChannel(HoldingChannel[Value, Update]):
    """Keeps the fold of all writes, stored as what each superstep added.

    A checkpoint holds the superstep's writes alone; the value is rebuilt from
    the nearest snapshot and the writes since, in one call of the reducer. So
    the reducer has to be deterministic, and to give the same whether writes
    come in one batch or in several. An `Overwrite` replaces the value (None:
    with ``typ()``), and every other write of the same superstep is dropped.

    Args:
        reducer: Takes the value and a list of writes, returns the new value. It
            should leave the value it is given alone: others may still hold it.
        typ: The type of the value; it starts as ``typ()``. None is a list;
            inside ``Annotated[T, DeltaChannel(...)]`` it is ``T``.
        snapshot_frequency: After how many updates the whole value is stored
            too; None is never.

    Raises:
        ConfigurationError: *reducer* cannot be called, or *snapshot_frequency*
            is not a positive int.

    Example:
        >>> channel = DeltaChannel(lambda state, writes: state + writes, list)
        >>> channel.update([1, 2]), channel.get()
        (True, [1, 2])
    """

    reacts_to_silence = False

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
        self.snapshot_frequency = snapshot_frequency

    @property
    def folds_with(self) -> Callable[..., Any] | None:
        return self.reducer

    def update(self, values: Sequence[Update]) -> bool:
        """Fold the writes in one call of the reducer, or take the `Overwrite` among
        them.

        Raises:
            InvalidUpdateError: There are several `Overwrite`.
            Exception: What the reducer raised, with a note that names the
                channel.
        """
        if not values:
            return False
        self.replay((values,))
        return True

    def replay(self, batches: Sequence[Sequence[Update]]) -> None:
        """Fold the writes of many supersteps, oldest first, in one call of the reducer.

        The result is that of one `update` after the other. A batch that holds
        an `Overwrite` starts over: earlier writes do not count.

        Raises:
            InvalidUpdateError: One superstep has several `Overwrite`.
            Exception: What the reducer raised, with a note that names the
                channel.
        """
        batches = (*batches,)
        value, start = self.typ() if self.value is MISSING else self.value, 0
        for index, batch in enumerate(batches):
            if (by := only_replacement(batch, self.key)) is not MISSING:
                value, start = self.typ() if by is None else detached(by), index + 1
        writes = [*chain.from_iterable(batches[start:])]
        try:
            self.value = self.reducer(value, writes) if writes else value
        except Exception as error:
            error.add_note(
                f"raised by the reducer of channel {self.key!r}, given {len(writes)} "
                "writes in one batch"
            )
            raise

    def checkpoint(self) -> Any:
        """Return `MISSING`: deltas and snapshots are stored beside the checkpoint's
        values.
        """
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds a shallow copy of *saved* (`MISSING`:
        ``typ()``).
        """
        return super().from_checkpoint(
            self.typ() if saved is MISSING else detached(saved)
        )

    def copy(self) -> Self:
        """Return a channel of its own with a shallow copy of the value."""
        return super().from_checkpoint(detached(self.value))

    def identity(self) -> tuple[Any, ...]:
        """Return what makes two declarations the same, the type of the value first."""
        return (self.typ, self.snapshot_frequency, identity_of(self.reducer))
