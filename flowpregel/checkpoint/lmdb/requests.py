"""Requests to stop: from any process, to the run that holds a lease.

::

    who asks                         lease file                     owner
    --------                         ----------                     -----
    ask_to_stop(fence)  ---------->  [holder][fence][fence asked]
                                                  <---- read, five times a second

The request is the fence of the lease it is meant for, so it reaches no later
run. It stays where it is until the owner looks, however long that is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from flowpregel._lmdb.filelock import FileLock
from flowpregel.checkpoint.base import Lease

PERIOD: Final = 0.2
"""Seconds between two looks."""
REASON: Final = "it was cancelled from outside"
_LINGER: Final = 5.0
"""Seconds for which the OS thread waits for the next lease."""


class Watch:
    """Looks whether an owner in this process is asked to stop; one OS thread for all leases."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: in a fork, nobody here holds anything."""
        self._changed = threading.Condition()
        self._held: dict[int, tuple[FileLock, Lease]] = {}
        self._thread: threading.Thread | None = None

    def add(self, file: FileLock, lease: Lease) -> None:
        """Watch a lease that is held from now on."""
        assert lease.fence is not None
        with self._changed:
            self._held[lease.fence] = file, lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="flowpregel-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def drop(self, fence: int) -> None:
        """Watch a lease no more; its file may be closed when this returns."""
        with self._changed:
            self._held.pop(fence, None)

    def look(self) -> None:
        """Tell the owners that are asked to stop."""
        with self._changed:
            asked = [
                lease
                for fence, (file, lease) in self._held.items()
                if lease.stop is not None and file.asked_to_stop() == fence
            ]
            for lease in asked:
                assert lease.fence is not None
                del self._held[lease.fence]
        for lease in asked:
            if lease.stop is not None:
                lease.stop(REASON)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._held and not self._changed.wait(_LINGER) and not self._held:
                    self._thread = None
                    return
            self.look()
            time.sleep(PERIOD)


WATCH: Final = Watch()
os.register_at_fork(after_in_child=WATCH.renew)
