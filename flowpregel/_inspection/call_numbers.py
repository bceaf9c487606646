"""The measurements of a call other than its duration, such as CPU time, as readers show
them.

Queries, orders, plots, comparisons and tables of calls use the table in this module.
The page has the same table in ``numbers.js``, because a report (`flowpregel report`, a
page in one file) works without a server.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Unit: TypeAlias = Literal["seconds", "bytes", "count"]
"""The unit of a measurement, which determines how it is written as text."""


class CallNumber(NamedTuple):
    """A measurement that each call has."""

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
