"""Workers that send what cannot be read: it costs the task that sent it, and no
other.
"""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.records import Raised, Returned
from flowpregel.errors import TaskSerializationError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs import jobs
from tests.runs.pooling import Run, error_of, node_of, value_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("task", [jobs.stream_a_bomb, jobs.call_with_a_bomb])
def test_what_cannot_be_unpickled_costs_its_task(task: Any) -> None:
    """Siblings end as they should, and the message has the cause."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        siblings = [run.start(node_of(jobs.work), number) for number in range(20)]

        bad, *good = run.outcomes(run.start(node_of(task)), *siblings)

    assert isinstance(error_of(bad), WorkerDiedError)
    assert "the coordinator cannot read its message (RuntimeError: it explodes)" in str(
        error_of(bad)
    )
    assert [number * number for number in range(20)] == [
        value_of(each) for each in good
    ]


def test_frames_of_nonsense_cost_at_most_their_task() -> None:
    """With the mark of the link, which only our own code in the worker knows."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        nonsense = [run.start(node_of(jobs.send_nonsense), seed) for seed in range(12)]

        outcomes = run.outcomes(*nonsense)

        # Tasks whose worker was killed for another's nonsense are tried again.
        assert all(isinstance(each, Returned | Raised) for each in outcomes)
        errors = [each.error for each in outcomes if isinstance(each, Raised)]
        assert {WorkerDiedError, TaskSerializationError} >= {
            type(each) for each in errors
        }
        assert errors, "no nonsense was noticed"
        assert 49 == value_of(run.outcome(node_of(jobs.work), 7))


def test_results_that_cannot_be_read_cost_their_worker() -> None:
    """The coordinator goes on."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        bad, good = run.outcomes(
            run.start(node_of(jobs.end_with_nonsense)), run.start(node_of(jobs.work), 3)
        )

    assert isinstance(error_of(bad), WorkerDiedError)
    assert "the coordinator cannot read its message (error" in str(error_of(bad))
    assert 9 == value_of(good)


def test_what_comes_together_with_what_cannot_be_read_is_not_believed() -> None:
    """Although it says that all went well."""
    with ProcessExecutor(1) as pool:
        outcome = Run(pool).outcome(node_of(jobs.end_another_task))

    assert isinstance(error_of(outcome), WorkerDiedError)
