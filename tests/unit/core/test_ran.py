"""How a task ran: the line that is kept of its error, and what is not known."""

from __future__ import annotations

import pytest

from flowpregel._core.ids import AttemptRecord, Cost, Span
from flowpregel._core.provenance import line_of
from flowpregel._core.records import (
    ATTEMPT,
    RETURN,
    MadeBy,
    PendingWrite,
    split_writes_and_attempts,
)


class Mute(Exception):
    """An error that does not tell."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("why"), "ValueError: why"),
        (ValueError("why\nand more"), "ValueError: why"),
        (ValueError(), "ValueError"),
        (Mute(), "Mute: (its text is not available: RuntimeError)"),
        (ValueError("x" * 500), f"ValueError: {'x' * 188}"),
    ],
)
def test_an_error_is_one_line_of_bounded_length(error: Exception, line: str) -> None:
    assert line == line_of(error)


def test_fields_that_an_attempt_was_stored_without_are_empty() -> None:
    """An earlier version did not measure them."""
    result = PendingWrite("1", RETURN, 2)
    stored = PendingWrite("1", ATTEMPT, ("work", 5, 2.0, 1, "inline", 7))

    writes, ((task_id, path, attempt),) = split_writes_and_attempts(
        [("path", result), ("path", stored)]
    )

    assert (result,) == writes
    assert ("1", "path") == (task_id, path)
    assert ("work", 5, 2.0, 1, "inline", 7) == attempt[:6]
    assert {
        "error": "",
        "call": "",
        "planned": 0,
        "cpu": 0.0,
        "peak": 0,
        "host": "",
        "failed": (),
        "code": "",
        "used": (),
        "preview": b"",
    } == {name: getattr(attempt, name) for name in AttemptRecord._fields[6:]}


def test_a_span_without_a_process_has_no_cost() -> None:
    """A result that another run has shared took none."""
    assert (0, Cost(), "", (b"", b"")) == Span(5, 0.0, "cache")[3:]


def test_each_number_of_a_cost_is_recorded_under_its_name() -> None:
    """An earlier record lacks it, so that it has the same default in both."""
    defaults = AttemptRecord._field_defaults

    assert Cost._field_defaults == {name: defaults[name] for name in Cost._fields}


def test_of_a_node_whose_attempts_are_not_stored_the_code_is_known() -> None:
    """And the results that it used; no time, process or cost is made up."""
    used = (("work", "digest", 2),)
    made_by = MadeBy(at_exit=True, is_whole=False, nodes=(("n", "code", used),))

    (attempt,) = made_by.attempts()

    expected = AttemptRecord("n", 0, 0.0, 1, "", 0, code="code", used=used)
    assert expected == attempt
