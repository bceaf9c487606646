"""Where tasks run: inline, OS threads, worker processes, an event loop, any executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel.executors.shared import resource

if TYPE_CHECKING:
    from flowpregel.executors.adapter import FuturesExecutor
    from flowpregel.executors.processes import ProcessExecutor, default_pool

__all__ = ["FuturesExecutor", "ProcessExecutor", "default_pool", "resource"]


def __getattr__(name: str) -> Any:
    # What runs tasks elsewhere is loaded when it is asked for: most programs need one of them.
    if name in ("ProcessExecutor", "default_pool"):
        from flowpregel.executors import processes  # noqa: PLC0415

        return getattr(processes, name)
    if name == "FuturesExecutor":
        from flowpregel.executors import adapter  # noqa: PLC0415

        return adapter.FuturesExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
