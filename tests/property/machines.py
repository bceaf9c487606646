"""The state machine of savers, on a store of its own."""

import os
import shutil
import tempfile

from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.property.saver_model import SaverMachine


class LMDBMachine(SaverMachine):
    """An `LMDBSaver` beside plain dicts."""

    def make_saver(self):
        """Return a store on a disk in memory: nothing here cuts the power, and it is
        faster.
        """
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(dir=place)
        return LMDBSaver(os.path.join(self.folder, "store.lmdb"), map_size=1)

    def reopen(self, saver):
        """Return the store, opened anew."""
        path = saver.path
        saver.close()
        return LMDBSaver(path)

    def teardown(self):
        """Drop the store."""
        super().teardown()
        shutil.rmtree(self.folder)
