"""The saver contract on `InMemorySaver`."""

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.testing.saver_contract import SaverContract


class TestInMemorySaver(SaverContract):
    def make_saver(self, folder):
        return InMemorySaver()
