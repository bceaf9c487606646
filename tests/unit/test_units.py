"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.units import bytes_of, seconds_in


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5h", 5_400),
        ("3h50m", 13_800),
        ("1w2d", 777_600),
        ("04:00:00", 14_400),
        ("1-02:03:04", 93_784),
        ("0:00:00", 0),
    ],
)
def test_a_duration_has_units_or_colons(text: str, seconds: float) -> None:
    """The second form is SLURM's."""
    assert seconds == seconds_in(text)


@pytest.mark.parametrize(
    "text", ["", "soon", "50m3h", "-5", "1-", "1-2h", "04:00", "4:0:0", "1w-00:00:00"]
)
def test_other_text_is_no_duration(text: str) -> None:
    """SLURM's minutes, and minutes and seconds, could be taken for something else."""
    assert seconds_in(text) is None


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (5, 5),
        ("500", 500),
        ("2GB", 2_000_000_000),
        ("1.5 KiB", 1_536),
        ("8m", 8_000_000),
    ],
)
def test_a_size_has_decimal_or_binary_units(value: int | str, size: int) -> None:
    """In small letters too."""
    assert size == bytes_of(value)


@pytest.mark.parametrize("value", ["much", "-1", "2 PB", ""])
def test_other_text_is_no_size(value: str) -> None:
    """The error names it."""
    with pytest.raises(ConfigurationError, match=f"'{value}' is not a size"):
        bytes_of(value)
