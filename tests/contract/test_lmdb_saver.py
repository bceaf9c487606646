"""The saver contract on `LMDBSaver`."""

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.saver_contract import SaverContract
from tests.contract.saver_options import ForgettingRules, LeaseRules


@pytest.fixture(autouse=True)
def store_key(monkeypatch):
    """The tests leave the user's own key file alone."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")


class TestLMDBSaver(SaverContract, ForgettingRules, LeaseRules):
    def make_saver(self, folder):
        return LMDBSaver(folder / "store.lmdb")

    def reopen(self, saver, folder):
        saver.close()
        return LMDBSaver(folder / "store.lmdb")
