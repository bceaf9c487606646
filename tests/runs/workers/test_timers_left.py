"""Tasks with a timeout leave nothing behind in the pool when they end before it."""

from __future__ import annotations

import pytest

from flowpregel import entrypoint, task
from flowpregel.executors import ProcessExecutor


@task(timeout=3600)
def quick(number: int) -> int:
    return number


@task(timeout=3600)
def failing(number: int) -> int:
    raise ValueError(number)


@pytest.mark.slow
def test_a_thousand_tasks_with_a_timeout_of_an_hour_leave_no_timers() -> None:
    """Neither those that return nor those that fail.

    ``tox -e soak-timers`` runs 100,000.
    """

    @entrypoint()
    def flow(count: int) -> int:
        failed = [failing(number) for number in range(50)]
        total = sum(future.result() for future in quick.map(range(count)))
        return total + sum(future.exception() is not None for future in failed)

    with ProcessExecutor(2) as executor:
        bound = flow.copy({"executor": executor})
        bound.invoke(10)
        loop = executor._pool.loop  # noqa: SLF001 - nobody else has to know
        before = loop.timer_count

        assert sum(range(1_000)) + 50 == bound.invoke(1_000)
        # A timer or two of the pool's own come and go.
        assert loop.timer_count < before + 5
