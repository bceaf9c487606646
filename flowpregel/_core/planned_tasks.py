"""The planned tasks of a superstep: which of them finished in an earlier run."""

from __future__ import annotations

from flowpregel._core import records
from flowpregel._core.barrier import handler_task
from flowpregel._core.effects import StepContext
from flowpregel._core.records import Task
from flowpregel._core.run import Run
from flowpregel._core.stream_events import finished_writes


def unfinished_tasks(
    run: Run,
    tasks: list[Task],
    step: StepContext,
) -> list[Task]:
    """Return the planned *tasks* that must run. In place of a task whose failure is
    stored, return the task that handles the failure, if there is one.

    Args:
        run: The run, with the writes of earlier runs.
        tasks: The planned tasks. Tasks that handle failures are added to this list.
        step: The facts about the superstep, for tasks that handle failures.
    """
    due: list[Task] = []
    for task in tasks.copy():
        unfinished = _unfinished(run, tasks, task, step)
        if unfinished is not None:
            due.append(unfinished)
    return due


def _unfinished(
    run: Run,
    tasks: list[Task],
    task: Task,
    step: StepContext,
) -> Task | None:
    """Return *task* if it must run, or the task that handles its stored failure, or
    None if nothing must run.
    """
    stored = run.replay.pending.get(task.id, ())
    results = finished_writes(stored)
    if results:
        task.attempt.writes = tuple(results)
        return None
    writes = dict(stored)
    is_handled = records.ERROR in writes and records.ERROR_SOURCE in writes
    if task.node.handler is None or not is_handled:
        # If no node handles the stored failure, it is dropped, and the task runs again.
        if writes.get(records.ERROR) is not None:
            run.store_writes(task.id, task.path, ((records.ERROR, None),))
        return task
    error = writes[records.ERROR]
    if not isinstance(error, BaseException):
        error = RuntimeError(f"node {task.name!r} failed in an earlier run: {error}")
    handler = handler_task(run.program, task, error, step)
    tasks.append(handler)
    return _unfinished(run, tasks, handler, step)
