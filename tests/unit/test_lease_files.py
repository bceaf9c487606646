"""The files of leases: what an owner meets while it takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import StoreError


def test_an_error_while_a_lost_lease_is_taken_again_is_the_one_that_is_raised(
    tmp_path: Path,
) -> None:
    """Giving back what it lost does not hide it."""
    with LMDBSaver(tmp_path / "store") as saver:
        leases = saver._leases  # noqa: SLF001 - what calls `fences` in between is inside
        address = Address("t")

        def lose_file(_address: Address, _least: int) -> int:
            """Be overtaken by what cannot be a lease."""
            path = Path(leases.file(address))
            path.unlink()
            path.mkdir()
            return 0

        with (
            pytest.raises(StoreError, match="Is a directory"),
            leases.hold(address, "raise", lose_file),
        ):
            raise AssertionError("it has no lease")
