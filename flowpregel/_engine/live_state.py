"""The report of the tasks that an outermost run and its nested runs execute now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from flowpregel._core.metric_series import MetricSeries
from flowpregel._core.records import Task
from flowpregel._core.stream_events import TaskActivity
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
    started: dict[JobKey, tuple[int, int]] = {}
    workers: list[dict[str, Any]] = []
    for executor in executors:
        of_executor = executor.running()
        started.update(of_executor)
        task_ids = {pid: task_id for (task_id, _), (pid, _) in of_executor.items()}
        workers += [
            {"pid": pid, "task": task_ids.get(pid, "")}
            for pid in executor.worker_pids()
        ]
    waiting = Counter(job.task.name for job in jobs if job.key not in started)
    begun = [
        RunningTask(job.task, *started[job.key]) for job in jobs if job.key in started
    ]
    begun += [RunningTask(task) for task in graphs]
    running = [item for item in begun if not item.task.node.hidden]
    # Tasks that compute something come before tasks that only wait for others, because
    # the end of the list may be cut off.
    running.sort(key=lambda item: item.task.node.role != "leaf")
    return {
        "running": [item.entry() for item in running[:MOST_TASKS]],
        "count": len(running),
        "waiting": dict(waiting),
        "workers": workers,
    }


class RunningTask(NamedTuple):
    """A task that runs now, with its process and its start."""

    task: Task
    pid: int = 0
    """The id of the process that runs the task, or 0 for a nested run."""
    began: int = 0
    """The time at which the attempt began, in wall-clock nanoseconds, or 0 if it is
    unknown.
    """

    def entry(self) -> dict[str, Any]:
        """Return the entry of the task in the report, in a form fit for JSON."""
        task = self.task
        record = task.record
        caller = task.parent
        planned = task.attempt.first_started or 0
        return {
            "id": task.id,
            "name": task.name,
            # `task.call` is not used, because it may run code of the arguments' classes
            # if the task has no record.
            "text": "" if record is None else record.text,
            "role": task.node.role,
            "caller": "" if caller is None else caller.id,
            "path": task.path,
            "attempt": task.attempt.number,
            "planned": planned,
            "began": self.began or planned,
            "pid": self.pid,
            **_activity_entry(task.attempt.activity),
        }


def _activity_entry(activity: TaskActivity | None) -> dict[str, Any]:
    """Return the part of a task's entry that shows its progress and its metrics. The
    progress is None if the task has reported none.
    """
    entry: dict[str, Any] = {"done": None, "total": None, "message": None, "series": {}}
    if activity is None:
        return entry
    entry["series"] = _published_points(activity.series)
    report = activity.report
    if report is not None:
        entry["done"] = report.done
        entry["total"] = report.total
        # The message may be an object of any type, so it is converted to text.
        entry["message"] = report.message and str(report.message)
    return entry


def _published_points(series: dict[str, MetricSeries]) -> dict[str, Any]:
    """Return some points of each series: the time, the value and the step.

    NaN, such as the step of a point without one, becomes null in JSON.
    """
    published: dict[str, Any] = {}
    # The items are copied, because the run's OS thread may add a series at the same
    # time.
    for name, metric in list(series.items()):
        points = metric.points()
        stride = 1 + len(points) // _MOST_POINTS
        # The points are counted from the end, so that the last point is always
        # included.
        published[name] = points[::-1][::stride][::-1]
    return published
