"""The sizes of the pools of a run: reported, and changed for other programs."""

from __future__ import annotations

import sys
from typing import Any

from flowpregel.checkpoint.base import BaseCheckpointSaver

_POOLS = "flowpregel.executors.processes.coordinator.executor"
"""The module of the pools of this program, which is imported with the first pool."""


def pools_of_run(saver: BaseCheckpointSaver, thread_id: str) -> list[dict[str, Any]]:
    """Return the sizes of the pools that have tasks of a run, in a form fit for JSON.

    If the store has a request from another program for other sizes, the pools are
    changed first. Any OS thread may call this function.

    Args:
        saver: The saver of the run.
        thread_id: The thread of the run.
    """
    executors = sys.modules.get(_POOLS)
    if executors is None:
        return []
    # These modules are imported inside the function, because workers import this module
    # but need no store.
    from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415
    from flowpregel.storage.locks import LockHolder  # noqa: PLC0415

    pools = executors.pools_of(thread_id)
    request = None
    if isinstance(saver, DurableSaver):
        request = saver.pool_request(thread_id)
    if request is not None and request.owner == LockHolder.me():
        for pool in pools:
            pool.request_size(request.workers, request.nice)
    sizes: list[dict[str, Any]] = []
    for pool in pools:
        settings = pool.settings
        sizes.append({"workers": settings.size, "nice": settings.nice})
    return sizes
