"""`LMDBSaver` does what plain dicts do, whatever is done to it, reopened in between."""

import pytest
from hypothesis import settings

from flowpregel._lmdb import pending
from tests.property.machines import LMDBMachine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def store_key(monkeypatch):
    """The tests leave the user's own key file alone."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")


TestLMDBSaverModel = LMDBMachine.TestCase
TestLMDBSaverModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestLMDBSaverModelWithAShortJournal(LMDBMachine.TestCase):
    """LMDB's file is written for every third transaction."""

    settings = settings(max_examples=20, stateful_step_count=40, deadline=None)

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch):
        monkeypatch.setattr(pending, "_MOST", 2)
