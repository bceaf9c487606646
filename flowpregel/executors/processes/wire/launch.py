"""The function that a new worker process calls.

The coordinator must not import the worker's end, because it would load code that it
never runs, and the two ends would depend on each other. So the new process calls this
function, which then imports the worker's end.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from flowpregel.executors.processes.wire.protocol import WorkerSetup

_WORKER: Final = "flowpregel.executors.processes.worker.task_loop"


def run_worker(setup: WorkerSetup) -> None:
    """Run a worker in this process until the coordinator stops the worker, or ends."""
    import_module(_WORKER).worker_main(setup)
