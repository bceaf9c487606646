"""Estimate pi on whatever there is: this machine, a Dask cluster, a Ray cluster.

    python examples/on_a_cluster.py
    python examples/on_a_cluster.py dask://scheduler:8786
    python examples/on_a_cluster.py ray://head:10001

The program does not change. What has been counted is on disk here: killed and started
again, even on another cluster, it goes on.
"""

from __future__ import annotations

import sys
import tempfile

from flowpregel import report_progress
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.runtime import Runtime
from flowpregel.types import RetryPolicy

POINTS = 20_000


@task(timeout=60, retry_policy=RetryPolicy(max_attempts=2))
def hits(part: int, runtime: Runtime) -> int:
    """Return how many random points of one part lie in the quarter of a circle."""
    random = runtime.rng()
    found = 0
    for number in range(10):
        points = ((random.random(), random.random()) for _ in range(POINTS // 10))
        found += sum(x * x + y * y < 1 for x, y in points)
        report_progress(number + 1, 10)
    return found


def estimate(parts: int) -> float:
    """Return pi, more or less."""
    return (
        4 * sum(future.result() for future in hits.map(range(parts))) / (POINTS * parts)
    )


def main(executor: str = "processes", store: str | None = None) -> float:
    """Run it on *executor*, with a store that may be there already."""
    with tempfile.TemporaryDirectory() as folder, LMDBSaver(store or folder) as saver:
        flow = entrypoint(executor=executor, checkpointer=saver)(estimate)
        found: float = flow.run(20, id="pi")
    print(f"pi is about {found:.3f}, says {executor}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
