"""What a run is doing at this moment, for those who watch it from another process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from flowpregel._core.records import Task
from flowpregel.context import Job
from flowpregel.executors.base import Executor, JobKey

MOST_TASKS: Final = 500
"""Of the tasks that run, so many are told one by one."""


def live_state(
    jobs: Collection[Job], graphs: Collection[Task], executors: Collection[Executor]
) -> dict[str, Any]:
    """Return what runs and what waits, as values that JSON has.

    Args:
        jobs: Those that have not ended, wherever they wait.
        graphs: The tasks that are nested runs.
        executors: Where jobs may run.
    """
    running: dict[JobKey, tuple[int, int]] = {}
    workers = []
    for executor in executors:
        found = executor.running()
        running.update(found)
        tasks = {pid: task_id for (task_id, _), (pid, _) in found.items()}
        workers += [{"pid": pid, "task": tasks.get(pid, "")} for pid in executor.worker_pids()]
    begun = [(job.task, *running[job.key]) for job in jobs if job.key in running]
    begun += [(task, 0, 0) for task in graphs]
    shown = [each for each in begun if not each[0].node.hidden]
    # Where there are too many, those that do the work are told.
    shown.sort(key=lambda each: each[0].node.role != "leaf")
    waiting = Counter(job.task.name for job in jobs if job.key not in running)
    return {
        "running": [_shown(*each) for each in shown[:MOST_TASKS]],
        "count": len(shown),
        "waiting": dict(waiting),
        "workers": workers,
    }


def _shown(task: Task, pid: int, began: int) -> dict[str, Any]:
    """Return a task that runs in process *pid* since *began* (nanoseconds, 0: not known)."""
    planned, report = task.first_started or 0, task.report
    return {
        "id": task.id,
        "name": task.name,
        # Not `task.call`: without a record that may run code of the arguments' classes.
        "text": "" if task.record is None else task.record.text,
        "role": task.node.role,
        "caller": "" if task.parent is None else task.parent.id,
        "path": task.path,
        "attempt": task.attempt,
        "planned": planned,
        "began": began or planned,
        "pid": pid,
        "done": report and report.done,
        "total": report and report.total,
        "message": report and report.message and str(report.message),
    }
