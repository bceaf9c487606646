"""The saver contract on `SQLiteSaver`."""

import pytest

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
