"""`InMemorySaver` does what plain dicts do, whatever is done to it in whatever
order.
"""

import pytest
from hypothesis import settings

from flowpregel.checkpoint.memory import InMemorySaver
from tests.property.saver_model import SaverMachine

pytestmark = pytest.mark.slow


class MemoryMachine(SaverMachine):
    def make_saver(self):
        return InMemorySaver()


TestMemorySaverModel = MemoryMachine.TestCase
TestMemorySaverModel.settings = settings(
    max_examples=max(20, 3 * settings.default.max_examples // 5), stateful_step_count=40
)


class WideMemoryMachine(MemoryMachine):
    unchanged_channels = 40


TestMemorySaverModelWithManyChannels = WideMemoryMachine.TestCase
TestMemorySaverModelWithManyChannels.settings = settings(
    max_examples=max(10, settings.default.max_examples // 5), stateful_step_count=40
)
