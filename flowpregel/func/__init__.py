"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.func.commands import CommandResult, shell
from flowpregel.func.entry import entrypoint
from flowpregel.func.files import File
from flowpregel.func.flow import Flow, RunHandle
from flowpregel.func.options import TaskOptions
from flowpregel.func.tasks import TaskFunction, task
from flowpregel.pregel.dry_replay import DryRun

__all__ = [
    "CommandResult",
    "DryRun",
    "File",
    "Flow",
    "RunHandle",
    "TaskFunction",
    "TaskFuture",
    "TaskOptions",
    "entrypoint",
    "shell",
    "task",
]
