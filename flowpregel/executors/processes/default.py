"""The pool that runs share when they ask for no other."""

from __future__ import annotations

import os
import threading

from flowpregel.executors.processes.executor import ProcessExecutor

_lock = threading.Lock()
_pool: ProcessExecutor | None = None


def default_pool() -> ProcessExecutor:
    """Return the program's shared pool: made when first asked for, closed when the program ends.

    Example:
        >>> default_pool() is default_pool()
        True
    """
    global _pool
    with _lock:
        if _pool is None or _pool.is_closed:
            _pool = ProcessExecutor()
        return _pool


def _after_fork() -> None:
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
