"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.func.commands import CommandResult, shell
from flowpregel.func.decorator import task
from flowpregel.func.entry import entrypoint
from flowpregel.func.files import File
from flowpregel.func.flow import Flow, RunHandle
from flowpregel.func.mapping import ResultStream
from flowpregel.func.options import TaskOptions
from flowpregel.func.tasks import TaskFunction
from flowpregel.func.waiting import asleep, signal, sleep
from flowpregel.pregel.dry_replay import DryRun
from flowpregel.pregel.progress import RunEnd

__all__ = [
    "CommandResult",
    "DryRun",
    "File",
    "Flow",
    "ResultStream",
    "RunEnd",
    "RunHandle",
    "TaskFunction",
    "TaskFuture",
    "TaskOptions",
    "asleep",
    "entrypoint",
    "shell",
    "signal",
    "sleep",
    "task",
]
