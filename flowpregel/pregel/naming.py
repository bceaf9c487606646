"""The names of stores (a path or a URL) and of workflows."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowpregel._entry_points import SAVERS, load_plugins
from flowpregel._stores import store_plugin_at
from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import FLOW, FOLDER, BaseCheckpointSaver
from flowpregel.checkpoint.langgraph_methods import is_overridden
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.storage.options import StoreOptions


def as_checkpointer(value: Any) -> BaseCheckpointSaver | bool | None:
    """Return the saver that a user's ``checkpointer=`` stands for.

    A path or URL opens the store there. A checkpointer of another library is adapted
    by its plug-in.

    Raises:
        ConfigurationError: The value cannot be a checkpointer.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, type):
        raise ConfigurationError(
            f"checkpointer={value.__name__} is a class: write {value.__name__}(...)"
        )
    if isinstance(value, BaseCheckpointSaver) and not is_overridden(value):
        return value
    if isinstance(value, str | os.PathLike):
        location = location_text(value)
        return store_plugin_at(location).open_saver(location)
    for adapt in load_plugins(SAVERS):
        saver: BaseCheckpointSaver | None = adapt(value)
        if saver is not None:
            return saver
    raise ConfigurationError(
        f"Invalid checkpointer {value!r}: "
        "give a saver, a path, a URL, True, False or None"
    )


def location_text(value: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; a path object never becomes a URL."""
    return value if isinstance(value, str) else os.path.abspath(value)


def as_cache(value: Any) -> BaseCache | None:
    """Return the cache that a user's ``cache=`` stands for; a path or URL opens one.

    Raises:
        ConfigurationError: The value cannot be a cache.
    """
    if value is None or isinstance(value, BaseCache):
        return value
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"Invalid cache {value!r}: give a cache, or a path")
    cache = cache_at(location_text(value))
    if cache is None:
        raise ConfigurationError(f"cache={value!r}: this kind of store has no cache")
    return cache


def cache_at(location: str, options: StoreOptions | None = None) -> BaseCache | None:
    """Open the cache at a path or URL; None: that kind of store has no cache."""
    return store_plugin_at(location).open_cache(location, options=options)


def as_store(value: Any) -> Any:
    """Return the long-term store that a user's ``store=`` stands for; a path or URL
    opens one.

    Raises:
        ConfigurationError: The kind of store at the URL has no long-term store.
    """
    if not isinstance(value, str | os.PathLike):
        return value
    location = location_text(value)
    store = store_plugin_at(location).open_store(location)
    if store is None:
        raise ConfigurationError(
            f"store={value!r}: this kind of store has no long-term store"
        )
    return store


# ---------------------------------------------------------------- workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The identity of a run by `Flow.run`, which runs each input once.

    Example:
        >>> RunIdentity(flow="study:flow", adopts=("old",)).owns("study:old")
        True
    """

    flow: str
    """The module and the name of the workflow."""
    folder: str = ""
    """The folder that its module is imported from; empty: not known."""
    adopts: tuple[str, ...] = ()
    """The earlier names of the workflow."""
    adopt: bool = False
    """True: the run is resumed with the present input, even if that has changed."""

    again: bool = False
    """True: a new run starts in any case; what is kept stays in the history."""
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
    """Return the labels of a graph: of the workflow, or of the variable that holds it.

    The search for the variable covers the modules of the functions that called this
    one: the module that runs a graph has made it, or has imported it. Other graphs have
    no labels.
    """
    once: RunIdentity | None = graph.once
    if once is not None:
        return flow_labels(once.flow, once.folder)
    for module, variables in _callers_modules():
        for name, value in [*variables.items()]:
            if value is not graph:
                continue
            known, file = imported_as(module)
            if not file:
                # What a notebook or a prompt defines, no other program can import.
                return {}
            return flow_labels(f"{known}:{name}", folder_of(known, file))
    return {}


def _callers_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and the variables of the users' modules that led here."""
    frame, seen = inspect.currentframe(), set[str]()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in seen and not module.startswith("flowpregel."):
            seen.add(module)
            yield module, frame.f_globals
        frame = frame.f_back


def node_of(flow: str) -> str:
    """Return the name of the node that is the body of a workflow: the last part of the
    workflow's name.
    """
    return flow.rpartition(":")[2].rpartition(".")[2]
