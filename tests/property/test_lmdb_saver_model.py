"""`LMDBSaver` does what plain dicts do, whatever is done to it, reopened in between."""

import pytest
from hypothesis import settings

from tests.property.machines import LMDBMachine
from tests.strategies import example_count

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


TestLMDBSaverModel = LMDBMachine.TestCase
TestLMDBSaverModel.settings = settings(
    max_examples=example_count(2), stateful_step_count=40
)


class WideLMDBMachine(LMDBMachine):
    unchanged_channels = 40


TestLMDBSaverModelWithManyChannels = WideLMDBMachine.TestCase
TestLMDBSaverModelWithManyChannels.settings = settings(
    max_examples=example_count(5, 5), stateful_step_count=40
)
