"""The rows of calls, stored by columns, which takes a third of the memory of tuples."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flowpregel._inspection.call_previews import read_preview
from flowpregel._inspection.call_query import (
    FIELDS,
    STATES,
    FieldValue,
    recorded_fields,
)
from flowpregel._inspection.call_rows import CALL_NUMBERS, CallRow
from flowpregel._inspection.columns import PackedCells, PackedTexts

GONE: Final = "gone"
"""The state of a call that was running, has no record, and no longer runs."""
NUMBERS: Final = {
    "step": "q",
    "questions": "q",
    "planned": "q",
    "began": "q",
    "seconds": "d",
    "attempts": "q",
    "pid": "q",
    **{number.field: number.type_code for number in CALL_NUMBERS},
}
"""The numeric columns, each with the code of the array's type."""
_REPEATED: Final = (
    "name",
    "state",
    "checkpoint_id",
    "namespace",
    "caller",
    "error",
    "executor",
    "host",
)
"""The columns in which many strings are equal. Each of these strings is stored once."""


def _new_column(name: str) -> Any:
    """Return an empty column: an array for numbers, or a list."""
    if name in NUMBERS:
        return array(NUMBERS[name])
    return []


def _source_names(row: CallRow) -> str:
    """Return the names of the tasks whose results are in the arguments of a call."""
    if '"f":{' not in row.preview:
        return ""
    sources = read_preview(row.preview).sources
    names: list[str] = []
    for tasks in sources.values():
        for name in tasks:
            if name not in names:
                names.append(name)
    text = "\n".join(names)
    return sys.intern(text)


def _no_value(_: int) -> FieldValue:
    return None


class _Columns(dict[str, Any]):
    """The columns of a table by name. A column of packed strings is unpacked when it is
    first used.

    Args:
        cells: The columns, each an array, a list or packed strings.
    """

    def __init__(self, cells: Mapping[str, Any]) -> None:
        super().__init__()
        self.cells: dict[str, Any] = dict(cells)
        """All columns in order, packed or not. Single values can be read from each."""
        for name, column in cells.items():
            if not isinstance(column, PackedTexts):
                self[name] = column

    def __missing__(self, name: str) -> Any:
        """Unpack a column, and return it."""
        packed: PackedTexts = self.cells[name]
        column = packed.unpacked()
        self.cells[name] = column
        self[name] = column
        return column


class CallTable:
    """Rows of calls. A row keeps its number when it is replaced by a later one.

    The columns of a table that was stored are packed (each in one byte string), and
    each is unpacked when it is used as a whole.
    """

    def __init__(self) -> None:
        columns = {name: _new_column(name) for name in CallRow._fields}
        self._columns = _Columns(columns)
        self._sources: list[str] | PackedTexts = []
        self._numbers: dict[str, int] | None = {}
        """The number of each row, by the id of the call, or None before it is needed.
        """
        self.fields: dict[str, Mapping[int, FieldValue]] = {}
        """The values of the fields that the user's code named, by name and by row."""
        self.urgency: array[int] = array("b")
        """The position of each call's state in `STATES`, or -1 if the call is gone."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """The values of each field of `CallRow`, by the numbers of the rows."""
        return self._columns

    @property
    def cells(self) -> Mapping[str, Any]:
        """The columns of the table. A column that was never used as a whole is still
        packed (one byte string).
        """
        return self._columns.cells

    @property
    def packed_sources(self) -> Sequence[str] | PackedTexts:
        """The names that `sources` contains, which may still be packed (in one byte
        string).
        """
        return self._sources

    @property
    def sources(self) -> list[str]:
        """The names of the tasks whose results are in the arguments of each call, a
        name on each line.
        """
        if isinstance(self._sources, PackedTexts):
            self._sources = self._sources.unpacked()
        return self._sources

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each row, by the id of the call."""
        if self._numbers is None:
            ids = self.columns["id"]
            numbers = range(len(ids))
            pairs = zip(
                ids,
                numbers,
                strict=True,
            )
            self._numbers = dict(pairs)
        return self._numbers

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        fields: Mapping[str, PackedCells],
        urgency: array[int],
        sources: PackedTexts,
    ) -> CallTable:
        """Return a table from the parts of another table.

        Args:
            columns: The columns of the other table, as arrays and packed strings.
            fields: The columns of the fields that the user's code named, from the other
                table.
            urgency: The `urgency` column of the other table.
            sources: The `sources` column of the other table.

        Raises:
            ValueError: The columns have different lengths.
        """
        count = len(urgency)
        for column in (*columns.values(), sources):
            if len(column) != count:
                raise ValueError("the columns of a table have different lengths")
        table = cls()
        table._columns = _Columns(columns)
        table._sources = sources
        table._numbers = None
        table.fields = dict(fields)
        table.urgency = urgency
        return table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.urgency)

    def number_of(self, call_id: str) -> int | None:
        """Return the number of a call's row, or None if there is none."""
        return self.numbers.get(call_id)

    def row(self, number: int) -> CallRow:
        """Return the row with this number."""
        columns = self._columns.cells.values()
        return CallRow._make(column[number] for column in columns)

    def row_of(self, call_id: str) -> CallRow:
        """Return the row of a call, which must be in the table."""
        number = self.numbers[call_id]
        return self.row(number)

    def put(self, row: CallRow) -> int:
        """Store a row in place of the call's former row, and return its number."""
        count = len(self.urgency)
        number = self.numbers.setdefault(row.id, count)
        is_new = number == count
        if is_new:
            self.urgency.append(-1)
            self.sources.append("")
        for name, value in zip(CallRow._fields, row, strict=True):
            if name in _REPEATED:
                value = sys.intern(str(value))
            column = self._columns[name]
            if is_new:
                column.append(value)
            else:
                column[number] = value
        self.sources[number] = _source_names(row)
        fields = recorded_fields(row)
        for name, field_value in fields.items():
            self._field(name)[number] = field_value
        self.set_state(number, row.state)
        return number

    def _field(self, name: str) -> dict[int, FieldValue]:
        """Return the values of a field that the user's code named, by row."""
        values = self.fields.get(name, {})
        if isinstance(values, PackedCells):
            values = values.unpacked()
        assert isinstance(values, dict)
        self.fields[name] = values
        return values

    def state(self, number: int) -> str:
        """Return the state of a call."""
        state: str = self.cells["state"][number]
        return state

    def set_state(self, number: int, state: str) -> None:
        """Replace the state of a call."""
        self.columns["state"][number] = state
        urgency = -1
        if state != GONE:
            urgency = STATES.index(state)
        self.urgency[number] = urgency

    def label(self, number: int) -> str:
        """Return the text of a call, or the name of a node."""
        text: str = self.cells["text"][number]
        name: str = self.cells["name"][number]
        return text or name

    def took(self, number: int) -> float:
        """Return the duration of a call, which is infinite while the call runs."""
        if self.state(number) == "running":
            return math.inf
        seconds: float = self.columns["seconds"][number]
        return seconds

    def value_of(self, field: str) -> Callable[[int], FieldValue]:
        """Return a function that returns a field of a call.

        Args:
            field: The name of the field, or an empty string for the text in which words
                are searched.
        """
        if not field:
            return self._searched_text
        if field == "took":
            return self.took
        if field in FIELDS:
            column: Sequence[FieldValue] = self.columns[FIELDS[field]]
            return column.__getitem__
        if field in self.fields:
            return self._field(field).get
        return _no_value

    def _searched_text(self, number: int) -> str:
        """Return the text of a call and its error, in which words are searched for."""
        error = self.columns["error"][number]
        return f"{self.label(number)} {error}"
