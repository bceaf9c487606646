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
from flowpregel._inspection.tasks import CallRow

GONE: Final = "gone"
"""The state of a call that ran, but has no record, and does not run any more."""
NUMBERS: Final = {
    "step": "q",
    "questions": "q",
    "planned": "q",
    "began": "q",
    "seconds": "d",
    "attempts": "q",
    "pid": "q",
    "cpu": "d",
    "peak": "q",
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
"""The columns whose texts often repeat. Each of these texts is stored once."""


def _new_column(name: str) -> Any:
    """Return an empty array for numbers, or an empty list."""
    if name in NUMBERS:
        return array(NUMBERS[name])
    return []


def _source_names(row: CallRow) -> str:
    """Return the names of the tasks from whose results the arguments come."""
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


class CallTable:
    """Rows of calls. A row keeps its number."""

    def __init__(self) -> None:
        self.columns: Mapping[str, Any] = {
            name: _new_column(name) for name in CallRow._fields
        }
        """The values of each field of `CallRow`, by the numbers of the rows."""
        self.fields: dict[str, dict[int, FieldValue]] = {}
        """The values of the fields that the user's code named, by name and by row."""
        self.urgency: array[int] = array("b")
        """The position of each call's state in `STATES`, or -1 if the call is gone."""
        self.sources: list[str] = []
        """The names of the tasks from whose results each call's arguments come, a name
        on each line.
        """
        self._numbers: dict[str, int] = {}
        """The number of each row, by the id of the call."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        fields: dict[str, dict[int, FieldValue]],
        urgency: array[int],
        sources: list[str],
    ) -> CallTable:
        """Return a table of rows that another table had.

        Args:
            columns: The columns of the other table.
            fields: The own fields of the other table.
            urgency: The urgencies of the other table.
            sources: The sources of the other table.

        Raises:
            ValueError: The columns have different lengths.
        """
        count = len(urgency)
        for column in (*columns.values(), sources):
            if len(column) != count:
                raise ValueError("the columns of a table have different lengths")
        table = cls()
        table.columns = columns
        table.fields = fields
        table.urgency = urgency
        table.sources = sources
        ids = columns["id"]
        numbers = range(count)
        table._numbers = dict(zip(ids, numbers, strict=True))
        return table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers)

    def number_of(self, call_id: str) -> int | None:
        """Return the number of a call's row, or None if there is none."""
        return self._numbers.get(call_id)

    def row(self, number: int) -> CallRow:
        """Return the row with this number."""
        columns = self.columns.values()
        return CallRow._make(column[number] for column in columns)

    def row_of(self, call_id: str) -> CallRow:
        """Return the row of a call, which must be in the table."""
        number = self._numbers[call_id]
        return self.row(number)

    def put(self, row: CallRow) -> int:
        """Store a row in place of the call's former row, and return its number."""
        number = self._numbers.setdefault(row.id, len(self._numbers))
        is_new = number == len(self.columns["id"])
        if is_new:
            self.urgency.append(-1)
            self.sources.append("")
        for name, value in zip(CallRow._fields, row, strict=True):
            if name in _REPEATED:
                value = sys.intern(str(value))
            column = self.columns[name]
            if is_new:
                column.append(value)
            else:
                column[number] = value
        self.sources[number] = _source_names(row)
        fields = recorded_fields(row)
        for name, field_value in fields.items():
            values = self.fields.setdefault(name, {})
            values[number] = field_value
        self.set_state(number, row.state)
        return number

    def state(self, number: int) -> str:
        """Return the state of a call."""
        state: str = self.columns["state"][number]
        return state

    def set_state(self, number: int, state: str) -> None:
        """Replace the state of a call."""
        self.columns["state"][number] = state
        urgency = -1
        if state != GONE:
            urgency = STATES.index(state)
        self.urgency[number] = urgency

    def label(self, number: int) -> str:
        """Return the text of a call, or the name of a task that no call started."""
        text: str = self.columns["text"][number]
        name: str = self.columns["name"][number]
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
            field: The name of the field, or an empty text for the text in which words
                are searched.
        """
        if not field:
            return self._searched_text
        if field == "took":
            return self.took
        if field in FIELDS:
            column: Sequence[FieldValue] = self.columns[FIELDS[field]]
            return column.__getitem__
        return self.fields.get(field, {}).get

    def _searched_text(self, number: int) -> str:
        """Return the call and its error."""
        error = self.columns["error"][number]
        return f"{self.label(number)} {error}"
