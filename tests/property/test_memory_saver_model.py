"""`InMemorySaver` does what plain dicts do, whatever is done to it in whatever
order.
"""

import pytest
from hypothesis import settings

from flowpregel.checkpoint.memory import InMemorySaver
from tests.property.saver_model import SaverMachine
from tests.strategies import example_count

pytestmark = pytest.mark.slow


class MemoryMachine(SaverMachine):
    def make_saver(self):
        return InMemorySaver()


TestMemorySaverModel = MemoryMachine.TestCase
TestMemorySaverModel.settings = settings(
    max_examples=example_count(2), stateful_step_count=40
)


class WideMemoryMachine(MemoryMachine):
    unchanged_channels = 40


TestMemorySaverModelWithManyChannels = WideMemoryMachine.TestCase
TestMemorySaverModelWithManyChannels.settings = settings(
    max_examples=example_count(5, 5), stateful_step_count=40
)
