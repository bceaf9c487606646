"""A program with a flow, to be killed or stopped: ``python -m tests.cluster.coordinator
EXECUTOR FILE SECONDS``.
"""

from __future__ import annotations

import sys

from flowpregel.func import entrypoint
from tests.cluster.flows import steady

if __name__ == "__main__":
    executor, file, seconds = sys.argv[1:]

    @entrypoint(executor=executor)
    def flow(count: int) -> int:
        """Keep all machines busy for some time."""
        calls = [steady(file, number, float(seconds)) for number in range(count)]
        return sum(call.result() for call in calls)

    flow.invoke(6)
