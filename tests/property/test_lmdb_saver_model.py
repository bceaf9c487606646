"""`LMDBSaver` does what plain dicts do, whatever is done to it, reopened in between."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.saver_model import SaverMachine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def store_key(monkeypatch):
    """The tests leave the user's own key file alone."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")


class LMDBMachine(SaverMachine):
    def make_saver(self):
        # Nothing here cuts the power: a disk that syncs at once makes it ten times as fast.
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(dir=place)
        return LMDBSaver(os.path.join(self.folder, "store.lmdb"), map_size=1)

    def reopen(self, saver):
        path = saver.path
        saver.close()
        return LMDBSaver(path)

    def teardown(self):
        super().teardown()
        shutil.rmtree(self.folder)


TestLMDBSaverModel = LMDBMachine.TestCase
TestLMDBSaverModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
