"""The table of the numbers of a call, by which readers show what is recorded."""

from __future__ import annotations

import pytest

from flowpregel._core.ids import AttemptRecord, Cost
from flowpregel._core.records import Address
from flowpregel._inspection.call_rows import CALL_NUMBERS, CallNumber, CallRow
from flowpregel._inspection.preview import PREVIEW
from flowpregel.checkpoint.work import Work
from flowpregel.cli.rows import task_cells, task_record
from flowpregel.cli.wording import number_text


def test_each_number_that_is_recorded_is_shown() -> None:
    """Its field has the name of the record's."""
    fields = [number.field for number in CALL_NUMBERS]

    assert list(Cost._fields) == fields
    assert Cost._field_defaults == {
        field: CallRow._field_defaults[field] for field in fields
    }


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("seconds", 0.04, "0.04 s"),
        ("bytes", 12_345_678, "12.3 MB"),
        ("count", 12_345, "12,345"),
    ],
)
def test_a_number_is_shown_in_its_unit(unit: str, value: float, text: str) -> None:
    number = CallNumber("name", "field", "label", unit, "Head")  # type: ignore[arg-type]

    assert text == number_text(number, value)


@pytest.mark.parametrize(
    "attempt", [None, AttemptRecord("task", 0, 0.5, 1, "threads", 7)]
)
def test_an_unknown_number_is_null_and_an_empty_cell(
    attempt: AttemptRecord | None,
) -> None:
    """Zero would be read as a measured value."""
    work = Work(
        id="1", name="task", address=Address("a"), step=0, state="done", ran=attempt
    )

    record = task_record(work, {}, PREVIEW)
    cells = task_cells(record, PREVIEW, CALL_NUMBERS)

    assert {None} == {record[number.field] for number in CALL_NUMBERS}
    assert [None] * len(CALL_NUMBERS) == [*cells[5:-1]]
