"""What names stand for: the path or URL of a store, and the name of a workflow."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowpregel._urls import is_url
from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import FLOW, FOLDER, BaseCheckpointSaver
from flowpregel.checkpoint.langgraph_methods import is_overridden
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.cache.memory import RecordCache
    from flowpregel.storage.options import StoreOptions


def as_checkpointer(value: Any) -> BaseCheckpointSaver | bool | None:
    """Return what a user passed as ``checkpointer=`` as a saver; a path opens an
    `LMDBSaver`, a URL a `PostgresSaver`.

    Raises:
        ConfigurationError: It is none of what can be one.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, type):
        raise ConfigurationError(
            f"checkpointer={value.__name__} is a class: write {value.__name__}(...)"
        )
    if isinstance(value, BaseCheckpointSaver) and not is_overridden(value):
        return value
    if is_url(value):
        from flowpregel.plugins.postgres import PostgresSaver  # noqa: PLC0415 - an extra

        return PostgresSaver(value)
    if isinstance(value, str | os.PathLike):
        from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - imports lmdb

        return LMDBSaver(value)
    from flowpregel.plugins.langgraph.foreign import as_saver  # noqa: PLC0415 - seldom needed

    return as_saver(value)


def as_cache(value: Any) -> BaseCache | None:
    """Return what a user passed as ``cache=``; a path opens an `LMDBCache`, a URL the
    other.

    Raises:
        ConfigurationError: It is no cache.
    """
    if isinstance(value, str | os.PathLike):
        return cache_at(value)
    if value is None or isinstance(value, BaseCache):
        return value
    raise ConfigurationError(f"Invalid cache {value!r}: give a cache, or a path")


def cache_at(
    place: str | os.PathLike[str], options: StoreOptions | None = None
) -> RecordCache:
    """Open the cache in a folder, or in a database."""
    if isinstance(place, str) and is_url(place):
        from flowpregel.plugins.postgres import PostgresCache  # noqa: PLC0415 - an extra

        return PostgresCache(place, options=options)
    from flowpregel.cache.lmdb import LMDBCache  # noqa: PLC0415 - imports lmdb

    return LMDBCache(place, options=options)


# ---------------------------------------------------------------- workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What `Flow.run` asks for: that a run of this input has been run once.

    Example:
        >>> Once(flow="study:flow", adopts=("old",)).owns("study:old")
        True
    """

    flow: str
    """The module and the name of the workflow."""
    folder: str = ""
    """Where its module is imported from; empty: not known."""
    adopts: tuple[str, ...] = ()
    """Names that it had before."""
    adopt: bool = False
    """Whether the run goes on with the input it is now given, if that is another
    one.
    """

    again: bool = False
    """Whether a new run starts in any case; what is kept stays in the history."""
    completed: Callable[[Any], Any] | None = field(
        default=None, repr=False, compare=False
    )
    """Spells an input that was recorded by the parameters of now, with their
    defaults.
    """

    def owns(self, recorded: str) -> bool:
        """Return whether a run that was recorded as one of *recorded* is one of this
        workflow.
        """
        # `python pkg/study.py` knows the module as `study`, everyone else as
        # `pkg.study`.
        same = f".{self.flow}".endswith(f".{recorded}") or recorded.endswith(
            f".{self.flow}"
        )
        return same or recorded in self.adopts or node_of(recorded) in self.adopts


def flow_labels(flow: str, folder: str) -> dict[str, str]:
    """Return what metadata keep of whose run it is: how the flow is imported."""
    return {FLOW: flow, **({FOLDER: folder} if folder else {})}


def folder_of(module: str, file: str | None) -> str:
    """Return the folder that *module* is imported from, if it has a *file*; else
    nothing.

    Example:
        >>> folder_of("pkg.study", "/jobs/pkg/study.py")
        '/jobs'
    """
    if file is None:
        return ""
    parents = Path(file).resolve().parents
    depth = module.count(".") + (Path(file).stem == "__init__")
    return str(parents[min(depth, len(parents) - 1)])


def imported_as(module: str) -> tuple[str, str | None]:
    """Return the name under which other programs import a module, and its file, if it
    has one.

    Both are those of a script too, which knows itself as ``__main__``.
    """
    is_script = module.startswith("__main__")
    imported = sys.modules.get("__main__" if is_script else module)
    file = getattr(imported, "__file__", None)
    if is_script:
        spec = getattr(imported, "__spec__", None)
        module = spec.name if spec else Path(file or "__main__").stem
    return module, file


def labels_of_graph(graph: Any) -> dict[str, str]:
    """Return the labels of a graph: the ones of its workflow, or of the variable that
    holds it.

    The variable is looked for in the modules of the functions that have led here: the
    one that runs a graph has made it, or has imported it. Other graphs have no labels.
    """
    once: RunIdentity | None = graph.once
    if once is not None:
        return flow_labels(once.flow, once.folder)
    frame, seen = inspect.currentframe(), set[str]()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in seen and not module.startswith("flowpregel."):
            seen.add(module)
            for name, value in [*frame.f_globals.items()]:
                if value is graph:
                    known, file = imported_as(module)
                    # What a notebook or a prompt defines, no other program can import.
                    return (
                        flow_labels(f"{known}:{name}", folder_of(known, file))
                        if file
                        else {}
                    )
        frame = frame.f_back
    return {}


def node_of(flow: str) -> str:
    """Return the name of the node that is the body of a workflow: the last part of its
    name.
    """
    return flow.rpartition(":")[2].rpartition(".")[2]
