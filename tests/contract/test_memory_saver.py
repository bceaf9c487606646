"""The saver contract on `InMemorySaver`."""

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.testing.saver_contract import SaverContract
from tests.contract.saver_options import ForgettingRules, LeaseRules


class TestInMemorySaver(SaverContract, ForgettingRules, LeaseRules):
    def make_saver(self, folder):
        return InMemorySaver()
