"""The files of leases: what an owner meets while it takes one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import StoreError
from flowpregel.storage.locks import FileLock


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


def test_a_lock_whose_mode_cannot_be_set_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of another user."""

    def refuse(_file: int, _mode: int) -> None:
        raise PermissionError

    def lowest_free() -> int:
        """Return the number that the next open file would get."""
        file = os.dup(1)
        os.close(file)
        return file

    before = lowest_free()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", refuse)
        for _ in range(3):
            with pytest.raises(PermissionError):
                FileLock(str(tmp_path / "lock"))

    assert before == lowest_free()
