"""`LMDBSaver` does what plain dicts do, whatever is done to it, reopened in between."""

import pytest
from hypothesis import settings

from tests.property.machines import LMDBMachine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def store_key(monkeypatch):
    """The tests leave the user's own key file alone."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")


TestLMDBSaverModel = LMDBMachine.TestCase
TestLMDBSaverModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
