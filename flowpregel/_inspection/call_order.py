"""The order of a run's calls, kept while calls change.

The numbers of the calls are stored in ascending order of their keys. A descending order
is the same list, read from its end. The key of a call is the value of a field, then the
time at which the call began, so that the newest of equal calls comes first in both
directions, then its number.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from flowpregel._inspection.call_query import URGENCY, FieldValue
from flowpregel._inspection.call_rows import NUMBER_NAMES
from flowpregel._inspection.call_table import CallTable

SortValue: TypeAlias = tuple[int, float, str]
"""The form in which the values of a field are sorted: numbers, strings and missing
values can be compared with each other in this form.
"""
_NUMERIC: Final = (
    "began",
    "took",
    *NUMBER_NAMES,
    "worker",
    "tries",
    "step",
)
_FEW: Final = 50
"""The divisor for the greatest share of changed calls (1/divisor of all calls) that are
inserted one by one. If more have changed, all calls are sorted.
"""


class CallOrder:
    """An order of calls.

    Args:
        table: The rows of the calls.
        order: The order, as `CallQuery.order` names it.
    """

    def __init__(self, table: CallTable, order: str) -> None:
        field = order.removeprefix("-")
        self.is_descending = field != order
        """True if the stored list is read from its end."""
        self._began: Sequence[int] = table.columns["began"]
        self._value: Callable[[int], Any]
        if field in (URGENCY, "state"):
            self._value = table.urgency.__getitem__
        elif field == "call":
            self._value = table.label
        elif field in _NUMERIC:
            self._value = table.value_of(field)
        else:
            value_of = table.value_of(field)
            self._value = self._sortable(value_of)

    def _sortable(
        self,
        value_of: Callable[[int], FieldValue],
    ) -> Callable[[int], SortValue]:
        """Return a function that returns a call's sort key. Fields that are numbers are
        sorted before strings. Calls whose field is empty come last in both directions.

        Args:
            value_of: A function that returns the field by which calls are sorted.
        """
        missing = (-1 if self.is_descending else 2, 0.0, "")

        def sortable(number: int) -> SortValue:
            """Return the sort key of the call with a number."""
            value = value_of(number)
            if value is None or value == "":
                return missing
            if isinstance(value, str):
                return 1, 0.0, value
            if math.isnan(value):
                return missing
            return 0, float(value), ""

        return sortable

    def key(self, number: int) -> tuple[Any, int, int]:
        """Return the sort key of a call."""
        began = self._began[number]
        if not self.is_descending:
            began = -began
        return self._value(number), began, number

    def sort(self, numbers: list[int]) -> None:
        """Sort the numbers of calls, which are passed in ascending order."""
        # Two stable sorts, each by one column, are faster than one sort by tuples.
        numbers.sort(
            key=self._began.__getitem__,
            reverse=not self.is_descending,
        )
        numbers.sort(key=self._value)

    def merge(
        self,
        unchanged: Sequence[int],
        changed: Sequence[int],
    ) -> list[int]:
        """Return the numbers of all calls, in order.

        Args:
            unchanged: The numbers of the calls whose keys have not changed, in order.
            changed: The numbers of the other calls, in any order.
        """
        numbers: list[int] = []
        if len(changed) * _FEW > len(unchanged):
            numbers += unchanged
            numbers += changed
            numbers.sort()
            self.sort(numbers)
            return numbers
        begin = 0
        for number in sorted(changed, key=self.key):
            end = bisect(
                unchanged,
                self.key(number),
                begin,
                key=self.key,
            )
            numbers += unchanged[begin:end]
            numbers.append(number)
            begin = end
        numbers += unchanged[begin:]
        return numbers

    def position(self, numbers: Sequence[int], number: int) -> int | None:
        """Return the position of a call in the order, or None if it is not among
        *numbers*.

        Args:
            numbers: All numbers, as `merge` returns them.
            number: The number of the call.
        """
        index = bisect_left(
            numbers,
            self.key(number),
            key=self.key,
        )
        if index == len(numbers) or numbers[index] != number:
            return None
        if self.is_descending:
            return len(numbers) - 1 - index
        return index

    def part(
        self,
        numbers: Sequence[int],
        offset: int,
        count: int,
    ) -> list[int]:
        """Return the numbers of *count* calls of the order, after the first *offset*.

        Args:
            numbers: All numbers, as `merge` returns them.
            offset: The number of calls to skip.
            count: The greatest number of calls to return.
        """
        if not self.is_descending:
            end = offset + count
            return list(numbers[offset:end])
        end = max(0, len(numbers) - offset)
        begin = max(0, end - count)
        part = list(numbers[begin:end])
        part.reverse()
        return part
