"""The decision whether a checkpoint exceeds a bound of `Retention`: a table."""

from __future__ import annotations

import pytest

from flowpregel.checkpoint.retention import Retention

DAY = 86_400.0


@pytest.mark.parametrize(
    ("retention", "newer", "age", "size", "is_exceeded"),
    [
        (Retention(), 10**6, 1e9, 10**12, False),
        (Retention(keep_last=3), 2, 0.0, 0, False),
        (Retention(keep_last=3), 3, 0.0, 0, True),
        (Retention(max_age=DAY), 0, DAY - 1, 0, False),
        (Retention(max_age=DAY), 0, DAY + 1, 0, True),
        (Retention(max_bytes=100), 0, 0.0, 100, False),
        (Retention(max_bytes=100), 0, 0.0, 101, True),
        (Retention(keep_last=9, max_age=DAY, max_bytes=100), 8, 1.0, 99, False),
        (Retention(keep_last=9, max_age=DAY, max_bytes=100), 1, DAY * 2, 1, True),
    ],
)
def test_a_checkpoint_may_exceed_any_of_the_bounds(
    retention: Retention, newer: int, age: float, size: int, is_exceeded: bool
) -> None:
    """A bound that is None is never exceeded."""
    assert is_exceeded == retention.is_exceeded(newer=newer, age=age, size=size)
