"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.func.entry import entrypoint
from flowpregel.func.flow import Flow, RunHandle
from flowpregel.func.tasks import TaskFunction, TaskOptions, task
from flowpregel.pregel.dry_replay import DryRun

__all__ = [
    "DryRun",
    "Flow",
    "RunHandle",
    "TaskFunction",
    "TaskFuture",
    "TaskOptions",
    "entrypoint",
    "task",
]
