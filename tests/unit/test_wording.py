"""Times, durations and ids as a terminal shows them."""

from __future__ import annotations

import pytest

from flowpregel.cli.wording import cut_in_middle, duration_text, relative_time

SECOND = 10**9


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0, "now"),
        (1, "1 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (7_200, "2 h ago"),
        (86_400, "1 d ago"),
        (8_640_000, "100 d ago"),
    ],
)
def test_a_moment_is_some_time_ago(seconds: int, text: str) -> None:
    """In one unit, rounded down; clocks that differ do no harm."""
    assert text == relative_time(0, seconds * SECOND)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.00 s"),
        (0.004, "0.00 s"),
        (9.99, "9.99 s"),
        (10, "10.0 s"),
        (60, "1 min"),
        (61.9, "1 min 1 s"),
        (3_605, "1 h"),
        (3_660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert text == duration_text(seconds)


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc…fg"),
        ("abcdefg", 5, "ab…fg"),
        ("a\nb", 9, "a\\nb"),
    ],
)
def test_an_id_keeps_its_two_ends(text: str, width: int, cut: str) -> None:
    """In one line of at most that width."""
    assert cut == cut_in_middle(text, width)
