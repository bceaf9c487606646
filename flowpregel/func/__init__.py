"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.func.entry import entrypoint
from flowpregel.func.tasks import TaskFunction, TaskOptions, task

__all__ = ["TaskFunction", "TaskFuture", "TaskOptions", "entrypoint", "task"]
