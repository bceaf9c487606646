"""The saver contract on `PostgresSaver`."""

import pytest

from flowpregel.testing.saver_contract import SaverContract
from tests.contract.saver_options import ForgettingRules, LeaseRules

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


class TestPostgresSaver(SaverContract, ForgettingRules, LeaseRules):
    @pytest.fixture(autouse=True)
    def _url(self, postgres_url):
        self.url = postgres_url

    def make_saver(self, folder):
        from flowpregel.plugins.postgres import PostgresSaver

        return PostgresSaver(self.url)

    def reopen(self, saver, folder):
        saver.close()
        return self.make_saver(folder)
