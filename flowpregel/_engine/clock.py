"""The one clock: wall-clock time that never repeats and never goes back."""

from __future__ import annotations

import threading
import time

_lock = threading.Lock()
_last = 0


def now() -> int:
    """Return wall-clock nanoseconds, greater than any returned before in this process.

    Versions and checkpoint ids are made of it, so two may never be equal.
    """
    global _last
    with _lock:
        following, read = _last + 1_000, time.time_ns()
        _last = read if read > following else following
        return _last
