"""The saver contract on `LMDBSaver`."""

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.saver_contract import SaverContract
from tests.contract.saver_options import ForgettingRules, LeaseRules

pytestmark = pytest.mark.usefixtures("store_key")


class TestLMDBSaver(SaverContract, ForgettingRules, LeaseRules):
    def make_saver(self, folder):
        return LMDBSaver(folder / "store.lmdb")

    def reopen(self, saver, folder):
        saver.close()
        return LMDBSaver(folder / "store.lmdb")
