"""The schedules of a store: the workflows whose runs `flowpregel work` begins.

They are in one record in ``meta``, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

SCHEDULES: Final = b"schedules"
"""The key in ``meta`` of the record of schedules."""


class ScheduledFlow(NamedTuple):
    """A workflow whose schedule `flowpregel work` follows.

    Example:
        >>> from flowpregel.checkpoint.durable import ScheduledFlow
        >>> flows = {"jobs:study": ScheduledFlow(1_777_600_800.0, "/srv/jobs")}
        >>> flows["jobs:study"].folder
        '/srv/jobs'
    """

    since: float
    """The last due time that was handled, in seconds since the epoch; at first, the
    time at which the schedule was added.
    """
    folder: str = ""
    """The folder from which the workflow's module is imported."""


def scheduled_flows(data: bytes | None) -> dict[str, ScheduledFlow]:
    """Return the scheduled workflows in the record of a store, by ``MODULE:FLOW``."""
    fields = {} if data is None else json.loads(data)
    return {
        str(flow): ScheduledFlow(float(since), str(folder))
        for flow, (since, folder) in fields.items()
    }


def encoded_schedules(flows: Mapping[str, ScheduledFlow]) -> bytes:
    """Return the scheduled workflows as a record for a store."""
    return json.dumps(flows, sort_keys=True).encode()
