"""Workflows that several of the tests run."""

from __future__ import annotations

from typing import Any

from flowpregel.func import entrypoint, task


@task
def double(n: int) -> int:
    """Return twice *n*."""
    return 2 * n


def sync_flow(called: Any, executor: str, **options: Any) -> Any:
    """Return a workflow that sums what a task returns for each of some numbers."""

    @entrypoint(executor=executor, **options)
    def flow(numbers: list[int]) -> int:
        return sum(future.result() for future in called.map(numbers))

    return flow


def run(drive: Any, flow: Any, *args: Any, **kwargs: Any) -> Any:
    """Run *flow* by its signature, sync or async."""
    if not drive.is_async:
        return flow.run(*args, **kwargs)
    return drive.wait_for(lambda: flow.arun(*args, **kwargs))
