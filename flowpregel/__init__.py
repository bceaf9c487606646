"""Durable, parallel workflows from plain functions: no server, one folder on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel._version import __version__

if TYPE_CHECKING:
    from flowpregel._core.commands import Command, Interrupt, Send
    from flowpregel.carried import carry
    from flowpregel.channels import Overwrite
    from flowpregel.checkpoint.lmdb import LMDBSaver
    from flowpregel.checkpoint.memory import InMemorySaver
    from flowpregel.context import RunControl, interrupt, report_progress
    from flowpregel.executors.shared import Shared, shared
    from flowpregel.func import entrypoint, task
    from flowpregel.graph.compile import CompiledStateGraph
    from flowpregel.graph.names import END, START
    from flowpregel.graph.state import StateGraph
    from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
    from flowpregel.pregel.node import NodeBuilder
    from flowpregel.pregel.pregel import Pregel
    from flowpregel.pregel.progress import progress
    from flowpregel.taskruntime import Runtime, get_runtime

__all__ = [
    "END",
    "START",
    "CachePolicy",
    "Command",
    "CompiledStateGraph",
    "InMemorySaver",
    "Interrupt",
    "LMDBSaver",
    "NodeBuilder",
    "Overwrite",
    "Pregel",
    "RetryPolicy",
    "RunControl",
    "Runtime",
    "Send",
    "Shared",
    "StateGraph",
    "TimeoutPolicy",
    "__version__",
    "carry",
    "entrypoint",
    "get_runtime",
    "interrupt",
    "progress",
    "report_progress",
    "shared",
    "task",
]

# Imported when first asked for (PEP 562): whoever needs one of them need not pay for all.
_HOMES = {
    "END": "graph.names",
    "START": "graph.names",
    "CachePolicy": "policies",
    "Command": "_core.commands",
    "CompiledStateGraph": "graph.compile",
    "InMemorySaver": "checkpoint.memory",
    "Interrupt": "_core.commands",
    "LMDBSaver": "checkpoint.lmdb",
    "NodeBuilder": "pregel.node",
    "Overwrite": "channels",
    "Pregel": "pregel.pregel",
    "RetryPolicy": "policies",
    "RunControl": "context",
    "Runtime": "taskruntime",
    "Send": "_core.commands",
    "Shared": "executors.shared",
    "StateGraph": "graph.state",
    "TimeoutPolicy": "policies",
    "carry": "carried",
    "entrypoint": "func",
    "get_runtime": "taskruntime",
    "interrupt": "context",
    "progress": "pregel.progress",
    "report_progress": "context",
    "shared": "executors.shared",
    "task": "func",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only when a name is asked for

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
