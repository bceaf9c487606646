"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel.func.entry import entrypoint
from flowpregel.func.tasks import TaskFunction, TaskFuture, TaskOptions, task

__all__ = ["TaskFunction", "TaskFuture", "TaskOptions", "entrypoint", "task"]
