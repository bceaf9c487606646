"""A program with a flow, to be killed: ``python -m tests.cluster.coordinator EXECUTOR
FILE``.
"""

from __future__ import annotations

import sys

from flowpregel.func import entrypoint
from tests.cluster.flows import steady

if __name__ == "__main__":
    executor, file = sys.argv[1:]

    @entrypoint(executor=executor)
    def flow(count: int) -> int:
        """Keep all machines busy for a long time."""
        return sum(
            future.result() for future in [steady(file, n, 600.0) for n in range(count)]
        )

    flow.invoke(6)
