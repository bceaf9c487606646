"""`LMDBSaver` does what plain dicts do, whatever is done to it, reopened in between."""

import pytest
from hypothesis import settings

from tests.property.machines import LMDBMachine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


TestLMDBSaverModel = LMDBMachine.TestCase
TestLMDBSaverModel.settings = settings(
    max_examples=max(20, 3 * settings.default.max_examples // 5), stateful_step_count=40
)


class WideLMDBMachine(LMDBMachine):
    unchanged_channels = 40


TestLMDBSaverModelWithManyChannels = WideLMDBMachine.TestCase
TestLMDBSaverModelWithManyChannels.settings = settings(
    max_examples=max(10, settings.default.max_examples // 5), stateful_step_count=40
)
