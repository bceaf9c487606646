"""Executors, which run tasks: inline, on OS threads, in worker processes, on an event
loop, or on any `concurrent.futures.Executor`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowpregel._pickling.recreated_fields import recreate_fields
from flowpregel.executors.shared import resource
from flowpregel.executors.stored import delete_stored, store_result

if TYPE_CHECKING:
    from flowpregel.executors.adapter import FuturesExecutor
    from flowpregel.executors.processes import ProcessExecutor, default_pool

__all__ = [
    "FuturesExecutor",
    "ProcessExecutor",
    "default_pool",
    "delete_stored",
    "recreate_fields",
    "resource",
    "store_result",
]


def __getattr__(name: str) -> Any:
    # Executors are imported on first use, because most programs need only one of them.
    if name in __all__:
        module = "adapter" if name == "FuturesExecutor" else "processes"
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
