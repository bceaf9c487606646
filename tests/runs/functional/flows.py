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
