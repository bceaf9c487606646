"""The report of the tasks that an outermost run and its nested runs execute now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from flowpregel._core.metric_series import MetricSeries
from flowpregel._core.records import Task
from flowpregel.context import Job
from flowpregel.executors.base import Executor, JobKey

MOST_TASKS: Final = 500
"""The greatest number of running tasks that the live state lists."""
_MOST_POINTS: Final = 60
"""The greatest number of points (values over time) that are listed for a metric of a
running task.
"""


def live_state(
    jobs: Collection[Job], graphs: Collection[Task], executors: Collection[Executor]
) -> dict[str, Any]:
    """Return the running and waiting tasks, in a form fit for JSON.

    Args:
        jobs: The jobs that have not ended. They wait or run.
        graphs: The tasks that are nested runs.
        executors: The executors that may run jobs.
    """
    running: dict[JobKey, tuple[int, int]] = {}
    workers = []
    for executor in executors:
        started = executor.running()
        running.update(started)
        tasks = {pid: task_id for (task_id, _), (pid, _) in started.items()}
        workers += [
            {"pid": pid, "task": tasks.get(pid, "")} for pid in executor.worker_pids()
        ]
    begun = [(job.task, *running[job.key]) for job in jobs if job.key in running]
    begun += [(task, 0, 0) for task in graphs]
    visible = [entry for entry in begun if not entry[0].node.hidden]
    # Tasks that compute something come before tasks that only wait for others, because
    # the end of the list may be cut off.
    visible.sort(key=lambda entry: entry[0].node.role != "leaf")
    return {
        "running": [_running_task(*entry) for entry in visible[:MOST_TASKS]],
        "count": len(visible),
        "waiting": dict(
            Counter(job.task.name for job in jobs if job.key not in running)
        ),
        "workers": workers,
    }


def _running_task(task: Task, pid: int, began: int) -> dict[str, Any]:
    """Return the entry of a task that runs in process *pid*. The task began at *began*,
    in wall-clock nanoseconds; 0 means that the time is unknown.
    """
    planned = task.attempt.first_started or 0
    activity = task.attempt.activity
    report = activity and activity.report
    return {
        "id": task.id,
        "name": task.name,
        # `task.call` is not used, because it may run code of the arguments' classes if
        # the task has no record.
        "text": "" if task.record is None else task.record.text,
        "role": task.node.role,
        "caller": "" if task.parent is None else task.parent.id,
        "path": task.path,
        "attempt": task.attempt.number,
        "planned": planned,
        "began": began or planned,
        "pid": pid,
        "done": report and report.done,
        "total": report and report.total,
        "message": report and report.message and str(report.message),
        "series": {} if activity is None else _published_points(activity.series),
    }


def _published_points(series: dict[str, MetricSeries]) -> dict[str, Any]:
    """Return some points of each series: the time, the value and the step.

    NaN, such as the step of a point without one, becomes null in JSON.
    """
    published: dict[str, Any] = {}
    # The items are copied, because the run's OS thread may add a series at the same
    # time.
    for name, metric in [*series.items()]:
        points = metric.points()
        stride = 1 + len(points) // _MOST_POINTS
        # The points are counted from the end, so that the last point is always
        # included.
        published[name] = points[::-1][::stride][::-1]
    return published
