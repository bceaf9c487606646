"""What all tasks of a run know about it goes to each worker once, ahead of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel._core.records import Outcome
from flowpregel.context import RunInfo, current_scope
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, error_of, job_of, value_of


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, so that every task meets what the one before has left."""
    with ProcessExecutor(1) as pool:
        yield pool


def knowing(context: Any) -> RunInfo:
    """Return what tasks know of a run that was given *context*."""
    return RunInfo(context=context, run_id="r")


def outcome(run: Run, info: RunInfo, function: Any) -> Outcome:
    """Run a task of the run that *info* is about."""
    job = job_of(function)
    job.run = info
    run.pool.start([job], run.mailbox)
    return run.outcomes(job)[0]


def context(_: Any) -> Any:
    return current_scope("a test").job.run.context


def length(_: Any) -> int:
    return len(context(None))


def spoil(_: Any) -> list[int]:
    seen: list[int] = context(None)
    seen.append(1)
    return seen


def test_no_task_sees_what_another_has_changed_in_the_context(run: Run) -> None:
    """Each has its own copy, though the worker was sent one for all."""
    info = knowing([])

    assert [1] == value_of(outcome(run, info, spoil))
    assert [1] == value_of(outcome(run, info, spoil))


def test_a_worker_tells_apart_more_runs_than_it_remembers(run: Run) -> None:
    """What it has forgotten is sent again."""
    infos = [knowing(number) for number in range(150)]
    wanted = [*range(150), 0, 149]

    assert wanted == [
        value_of(outcome(run, infos[number], context)) for number in wanted
    ]


def test_a_large_context_travels_with_each_task(run: Run) -> None:
    """Through shared memory, of which a worker is to hold nothing for long."""
    info = knowing(bytes(1 << 20))

    assert 1 << 20 == value_of(outcome(run, info, length))


def test_a_context_that_cannot_be_pickled_is_named(run: Run) -> None:
    """As an input is."""
    error = error_of(outcome(run, knowing({"lock": threading.Lock()}), context))

    assert isinstance(error, TaskSerializationError)
    assert "context['lock']" in str(error)


class Stubborn:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise OSError("not here")


def test_a_context_that_cannot_be_unpickled_fails_the_tasks_of_its_run(
    run: Run,
) -> None:
    """And no others."""
    info = knowing(Stubborn())

    for _ in range(2):
        assert "not here" in str(error_of(outcome(run, info, context)))
    assert 7 == value_of(outcome(run, knowing(7), context))
