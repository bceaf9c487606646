"""Workflows from plain functions: `entrypoint` and `task`."""

from flowpregel._inspection.dry_replay import DryRun
from flowpregel._pickling.digest import digest_of
from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.func.decorator import task
from flowpregel.func.entry import entrypoint
from flowpregel.func.flow import Flow
from flowpregel.func.mapping import ResultStream
from flowpregel.func.options import TaskOptions
from flowpregel.func.provided import CommandResult, File, asleep, shell, signal, sleep
from flowpregel.func.run_handle import RunHandle
from flowpregel.func.tasks import TaskFunction
from flowpregel.pregel.hooks import RunEnd

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
    "digest_of",
    "entrypoint",
    "shell",
    "signal",
    "sleep",
    "task",
]
