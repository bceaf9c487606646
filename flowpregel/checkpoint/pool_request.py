"""Requests to resize the pools of a run under way, which other programs make.

The requests of a store are in one record in ``meta``, as JSON. A process reads them
while another process watches its run, as the process that makes a request does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from flowpregel.storage.locks import LockHolder

POOLS: Final = b"pools"
"""The key in ``meta`` of the record of the requests."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A request to change the pools that run the tasks of a run.

    Example:
        >>> PoolRequest(workers=4).nice is None
        True
    """

    workers: int | None = None
    """The number of tasks that run at the same time, or None to leave it unchanged."""
    nice: int | None = None
    """The nice value of the workers, or None to leave it unchanged."""
    owner: LockHolder | None = None
    """The process of the run, which must meet the request."""


def pool_requests(data: bytes | None) -> dict[str, PoolRequest]:
    """Return the requests in the record of a store, by thread.

    Args:
        data: The record, or None.
    """
    requests: dict[str, PoolRequest] = {}
    for thread, fields in json.loads(data or b"{}").items():
        owner = LockHolder(**fields.pop("owner"))
        requests[thread] = PoolRequest(owner=owner, **fields)
    return requests


def with_request(
    data: bytes | None, thread_id: str, request: PoolRequest | None
) -> bytes:
    """Return the record of a store with the request of a thread.

    Args:
        data: The record before, or None.
        thread_id: The id of the thread.
        request: The request, or None to remove the thread's request.
    """
    requests = pool_requests(data)
    requests.pop(thread_id, None)
    if request is not None:
        requests[thread_id] = request
    records = {thread: asdict(request) for thread, request in requests.items()}
    return json.dumps(records).encode()
