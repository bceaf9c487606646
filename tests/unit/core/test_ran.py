"""How a task ran: the line that is kept of its error."""

from __future__ import annotations

import pytest

from flowpregel._core.provenance import line_of


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
        (Mute(), "Mute: (its text cannot be had: RuntimeError)"),
        (ValueError("x" * 500), f"ValueError: {'x' * 188}"),
    ],
)
def test_an_error_is_one_line_of_bounded_length(error: Exception, line: str) -> None:
    assert line == line_of(error)
