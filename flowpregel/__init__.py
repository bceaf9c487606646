"""Durable, parallel workflows from plain functions, with no server and one folder on
disk.

The documentation comes with the package: ``flowpregel docs`` lists its pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flowpregel._core.commands import Command, Interrupt, Send
    from flowpregel.carried import carry
    from flowpregel.channels import Overwrite
    from flowpregel.checkpoint.lmdb import LMDBSaver
    from flowpregel.checkpoint.memory import InMemorySaver
    from flowpregel.context import interrupt, report_progress
    from flowpregel.executors.shared import Shared, shared
    from flowpregel.executors.stored import Stored, stored
    from flowpregel.func import File, asleep, entrypoint, shell, signal, sleep, task
    from flowpregel.func.plain_maps import imap as imap
    from flowpregel.func.plain_maps import map as map
    from flowpregel.graph import END, START, CompiledStateGraph, StateGraph
    from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
    from flowpregel.pregel import NodeBuilder, Pregel
    from flowpregel.pregel.progress import progress
    from flowpregel.runtime import RunControl, Runtime, get_runtime

__all__ = [
    "END",
    "START",
    "CachePolicy",
    "Command",
    "CompiledStateGraph",
    "File",
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
    "Stored",
    "TimeoutPolicy",
    "__version__",
    "asleep",
    "carry",
    "entrypoint",
    "get_runtime",
    "imap",
    "interrupt",
    "progress",
    "report_progress",
    "shared",
    "shell",
    "signal",
    "sleep",
    "stored",
    "task",
]

# `map` is left out of `__all__`, because `from flowpregel import *` would hide Python's
# own `map`.

# A name is imported on first use (PEP 562), so that a program loads only the modules
# that it needs.
_HOMES = {
    "_core.commands": ("Command", "Interrupt", "Send"),
    "carried": ("carry",),
    "channels": ("Overwrite",),
    "checkpoint.lmdb": ("LMDBSaver",),
    "checkpoint.memory": ("InMemorySaver",),
    "context": ("interrupt", "report_progress"),
    "executors.shared": ("Shared", "shared"),
    "executors.stored": ("Stored", "stored"),
    "func": ("File", "asleep", "entrypoint", "shell", "signal", "sleep", "task"),
    "func.plain_maps": ("imap", "map"),
    "graph": ("END", "START", "CompiledStateGraph", "StateGraph"),
    "policies": ("CachePolicy", "RetryPolicy", "TimeoutPolicy"),
    "pregel": ("NodeBuilder", "Pregel"),
    "pregel.progress": ("progress",),
    "runtime": ("RunControl", "Runtime", "get_runtime"),
}


def __getattr__(name: str) -> Any:
    from flowpregel._lazy import import_name  # noqa: PLC0415 - only when a name is used

    return import_name(globals(), _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
