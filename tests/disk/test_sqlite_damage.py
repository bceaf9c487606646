"""A SQLite store whose file is damaged: the right value or a named error, never a wrong
value.

The damages are those of `test_damaged_file`: bits that are flipped in one place after
the other, SQLite's own pages among them, and a file that is cut off.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disk import workloads
from tests.disk.damages import ALL, PAGE, flips, judged
from tests.disk.nursery import Nursery
from tests.disk.workloads import NAMED, RIGHT, TOLD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store, which the tests damage and put right."""
    path = tmp_path_factory.mktemp("damaged") / "store.db"
    nursery.ok(workloads.small, str(path))
    return path


def test_a_flipped_bit_anywhere_gives_the_right_value_or_a_named_error(
    nursery: Nursery, store: Path
) -> None:
    """Every page is checked before it is trusted."""
    counts, bad = judged(nursery, store, flips(store.read_bytes()), check_pages=True)

    assert [] == bad
    assert counts[NAMED] > 20
    assert counts[RIGHT] > 20


def test_a_flipped_bit_is_told_by_verify_if_pages_are_not_checked(
    nursery: Nursery, store: Path
) -> None:
    """Without the check, a damaged page may hide records. No value is wrong."""
    counts, _ = judged(nursery, store, flips(store.read_bytes()), check_pages=False)

    assert {RIGHT, NAMED, TOLD} >= set(counts)
    assert counts[NAMED] > 20


def test_a_file_cut_off_anywhere_is_refused_or_right(
    nursery: Nursery, store: Path
) -> None:
    """Also within a page, and without the check of every page. The rest of the last
    page may be empty.
    """
    size = store.stat().st_size
    cuts = [(at, b"") for at in range(0, size, 64 if ALL else 2048)]
    within_last = sum(1 for at, _ in cuts if at > size - PAGE)

    counts, bad = judged(nursery, store, cuts, check_pages=False)

    assert [] == bad
    assert counts[NAMED] >= len(cuts) - within_last
