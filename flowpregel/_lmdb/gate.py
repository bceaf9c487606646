"""A gate through which many pass together, or one alone.

LMDB's map must not be resized while any transaction of the process is open:
readers would die with errors, and a writer deadlocks. Whoever opens a
transaction passes this gate; whoever resizes or closes the map holds it alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Let many OS threads in together, or one alone; those who want it alone go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._lock:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep newcomers out, wait until nobody is inside, and be alone.

        Must not be called by an OS thread that is inside.
        """
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            try:
                while self._inside:
                    self._changed.wait()
            except BaseException:
                self._closed = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
