"""A store whose file is damaged: the right value or a named error, never a wrong value
or a crash.

Bits of the file are flipped, and the file is cut off, in one place after the other;
each time a process opens the store and reads all of it. What a damage to a *record*
does is in `test_store_damage`; here it is any byte, those of LMDB's own pages among
them.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.disk import workloads
from tests.disk.damages import ALL, PAGE, flips, judged
from tests.disk.nursery import Nursery
from tests.disk.workloads import NAMED, RIGHT, WRONG

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small store, which the tests damage and put right."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    nursery.ok(workloads.small, str(path))
    return path


def test_a_flipped_bit_anywhere_gives_the_right_value_or_a_named_error(
    nursery: Nursery, store: Path
) -> None:
    """With every page looked at before it is trusted."""
    counts, bad = judged(
        nursery, store, flips((store / "data.mdb").read_bytes()), check_pages=True
    )

    assert [] == bad
    assert counts[NAMED] > 20
    assert counts[RIGHT] > 20  # in what is free, or was written over


def test_what_is_wrong_without_that_is_told_by_verify(
    nursery: Nursery, store: Path
) -> None:
    """LMDB trusts its pages: without the look some damages mislead it, or end the
    process.
    """
    data = (store / "data.mdb").read_bytes()
    luck = random.Random(11)
    used = [at for at in range(2 * PAGE, len(data), PAGE) if any(data[at : at + PAGE])]
    damages = [
        (at + byte, bytes([data[at + byte] ^ 1 << luck.randrange(8)]))
        for at in used
        for byte in range(10, 24)
    ]

    counts, bad = judged(nursery, store, damages, check_pages=False)

    assert bad, "no damage that the look at every page would be needed for"
    assert 0 == counts[WRONG]


def test_a_file_cut_off_anywhere_is_refused_or_right(
    nursery: Nursery, store: Path
) -> None:
    """Also within a page, and without the look at every page."""
    size = (store / "data.mdb").stat().st_size
    cuts = [(at, b"") for at in range(0, size, 64 if ALL else 2048)]

    counts, bad = judged(nursery, store, cuts, check_pages=False)

    assert [] == bad
    assert counts[NAMED] == len(cuts)


def test_a_number_in_the_newer_meta_page_that_was_changed_is_named(
    nursery: Nursery, store: Path
) -> None:
    """Else LMDB would take the older one, and the store go back by a transaction."""
    data = (store / "data.mdb").read_bytes()
    metas = [int.from_bytes(data[at : at + 8], "little") for at in (144, PAGE + 144)]
    at = 144 + PAGE * metas.index(max(metas))
    # By two, which one flipped bit can do, it would be in turn again: that cannot be
    # told.
    places = [
        (at + bit // 8, bytes([data[at + bit // 8] ^ 1 << bit % 8]))
        for bit in range(64)
    ]
    damages = [each for bit, each in enumerate(places) if bit != 1]

    counts, bad = judged(nursery, store, damages, check_pages=False)

    assert [] == bad
    assert {NAMED: 63} == dict(counts)
