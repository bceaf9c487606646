"""The numbers of a call that were measured beside its duration, as readers show them.

Queries, orders, plots, comparisons and tables of calls use this table. The page has the
same table in ``numbers.js``, because a report has no server.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Unit: TypeAlias = Literal["seconds", "bytes", "count"]
"""The unit of a number. Each unit has its own kind of text."""


class CallNumber(NamedTuple):
    """A number of each call."""

    name: str
    """The name in queries, orders and plots."""
    field: str
    """The field of `CallRow`, in which 0 means that the number is unknown."""
    label: str
    """The name for people."""
    unit: Unit

    @property
    def type_code(self) -> str:
        """The type of an array of these numbers."""
        return "d" if self.unit == "seconds" else "q"


CALL_NUMBERS: Final = (
    CallNumber("cpu", "cpu", "CPU", "seconds"),
    CallNumber("memory", "peak", "peak memory", "bytes"),
)
NUMBER_NAMES: Final = tuple(number.name for number in CALL_NUMBERS)
NUMBER_FIELDS: Final = tuple(number.field for number in CALL_NUMBERS)
