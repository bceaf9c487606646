"""A short form of ``python -m tests.soak.millions``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.millions import Work, killed


@pytest.mark.slow
def test_each_item_is_counted_once_however_often_the_program_is_killed(
    tmp_path: Path,
) -> None:
    """Though its results come without order; and most chunks run once."""
    work = Work(str(tmp_path / "store"), 6_000, 30, str(tmp_path / "ran"))

    right, twice = killed(work, 3, random.Random(1))

    assert right
    assert twice < 200
