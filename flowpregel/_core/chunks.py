"""The outcomes of the items of a chunk: a call that calls a function for many items.

A chunk whose items have all returned is recorded with the list of their results, like
any other call. If an item fails, the other items still run. Then the chunk fails with
the exception of the first failed item, and the outcomes of all items are recorded
beside that exception. The next attempt of the chunk, in this run or in a resumed run,
calls the function only for items that have no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ItemOutcomes:
    """The outcomes of a chunk's items, by the position of the item in the chunk."""

    count: int
    """The number of items in the chunk."""
    results: Mapping[int, Any]
    errors: Mapping[int, BaseException]
    final: frozenset[int] = field(default_factory=frozenset)
    """The failed items that no retry policy retries in this run."""
    state: Any = None
    """The value that the function saved last for its next attempt."""

    @property
    def first_error(self) -> BaseException:
        """The exception of the first failed item."""
        return self.errors[min(self.errors)]

    def due(self) -> list[int]:
        """Return the positions of the items for which the next attempt calls the
        function.
        """
        return [
            position
            for position in range(self.count)
            if position not in self.results and position not in self.final
        ]

    def with_state(self, saved: Any) -> ItemOutcomes:
        """Return the outcomes with the state that the function saved last. *saved* is
        this state, or the outcomes of an earlier attempt that contain it.
        """
        state = saved.state if isinstance(saved, ItemOutcomes) else saved
        return replace(self, state=state)

    def without_result(self, error: BaseException) -> ItemOutcomes:
        """Return the outcomes of an attempt that ended with *error*, such as a timeout,
        and has no outcomes of its own.
        """
        failed = dict.fromkeys(self.due(), error)
        final = {position: self.errors[position] for position in self.final}
        return replace(self, errors={**failed, **final})


class ItemsFailed(Exception):
    """The exception of a chunk in which items have failed. It is caught before the
    attempt ends.

    Args:
        items: The outcomes of all items.
    """

    def __init__(self, items: ItemOutcomes) -> None:
        super().__init__(items)
        self.items = items
