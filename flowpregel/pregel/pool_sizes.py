"""The sizes of the pools of a run: reported, and changed for other programs."""

from __future__ import annotations

import sys
from typing import Any

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.storage.locks import LockHolder

_POOLS = "flowpregel.executors.processes.coordinator.executor"
"""The module of the pools of this program, which is imported with the first pool."""


def pools_of_run(saver: BaseCheckpointSaver, thread_id: str) -> list[dict[str, Any]]:
    """Return the sizes of the pools that have tasks of a run, in a form fit for JSON.

    If another program requests another size, change the pools first. Any OS thread may
    call this.

    Args:
        saver: The saver of the run.
        thread_id: The thread of the run.
    """
    executors = sys.modules.get(_POOLS)
    if executors is None:
        return []
    pools = executors.pools_of(thread_id)
    request = None
    if isinstance(saver, DurableSaver):
        request = saver.pool_request(thread_id)
    if request is not None and request.owner == LockHolder.me():
        for pool in pools:
            pool.request_size(request.workers, request.nice)
    return [
        {"workers": pool.settings.size, "nice": pool.settings.nice} for pool in pools
    ]
