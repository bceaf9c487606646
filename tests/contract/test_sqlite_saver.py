"""The saver contract on `SQLiteSaver`."""

import gc
import os
from contextlib import suppress

import pytest

from flowpregel.checkpoint.base import Address
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.testing.saver_contract import SaverContract
from tests.contract.saver_options import ForgettingRules, LeaseRules

pytestmark = pytest.mark.usefixtures("store_key")


class TestSQLiteSaver(SaverContract, ForgettingRules, LeaseRules):
    def make_saver(self, folder):
        return SQLiteSaver(folder / "store.db")

    def reopen(self, saver, folder):
        saver.close()
        return SQLiteSaver(folder / "store.db")


def open_files(folder):
    """Return the names of the files in *folder* that this process has open."""
    files = [(entry.name, entry.stat()) for entry in folder.rglob("*")]
    names = set()
    for number in os.listdir("/dev/fd"):
        # The descriptor of the listing itself is closed by now.
        with suppress(OSError):
            opened = os.fstat(int(number))
            names |= {name for name, file in files if os.path.samestat(file, opened)}
    return names


@pytest.mark.parametrize("readonly", [False, True])
def test_a_saver_that_is_not_closed_is_closed_when_it_is_collected(tmp_path, readonly):
    """Otherwise each leaks a descriptor, and Python 3.13 warns of each connection."""
    SQLiteSaver(tmp_path / "store.db").close()
    saver = SQLiteSaver(tmp_path / "store.db", readonly=readonly)
    assert saver.load(Address("t")) is None
    assert "store.db" in open_files(tmp_path)

    del saver
    gc.collect()

    assert set() == open_files(tmp_path)
