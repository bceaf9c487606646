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
    """Return the saver for the value that a user passed as ``checkpointer=``.

    The store at a path or URL is opened. A checkpointer of another library is adapted
    by the plug-in for that library.

    Args:
        value: A checkpointer, a path or a URL; or True, False or None, which are
            returned unchanged.

    Raises:
        ConfigurationError: The value cannot be a checkpointer.

    Example:
        >>> from flowpregel import InMemorySaver
        >>> saver = InMemorySaver()
        >>> as_checkpointer(saver) is saver, as_checkpointer(None)
        (True, None)
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
        saver = adapt(value)
        if isinstance(saver, BaseCheckpointSaver):
            return saver
    raise ConfigurationError(
        f"Invalid checkpointer {value!r}: "
        "give a saver, a path, a URL, True, False or None"
    )


def location_text(value: str | os.PathLike[str]) -> str:
    """Return a path or URL as a string. A path object is never taken for a URL."""
    return value if isinstance(value, str) else os.path.abspath(value)


def as_cache(value: Any) -> BaseCache | None:
    """Return the cache for the value that a user passed as ``cache=``.

    The cache at a path or URL is opened. A cache of another library is adapted by the
    plug-in for that library.

    Raises:
        ConfigurationError: The value cannot be a cache.
    """
    if value is None or isinstance(value, BaseCache):
        return value
    if not isinstance(value, str | os.PathLike):
        for adapt in load_plugins(SAVERS):
            adapted = adapt(value)
            if isinstance(adapted, BaseCache):
                return adapted
        raise ConfigurationError(f"Invalid cache {value!r}: give a cache, or a path")
    cache = cache_at(location_text(value))
    if cache is None:
        raise ConfigurationError(f"cache={value!r}: this kind of store has no cache")
    return cache


def cache_at(location: str, options: StoreOptions | None = None) -> BaseCache | None:
    """Open the cache at a path or URL. Return None if that kind of store has none."""
    return store_plugin_at(location).open_cache(location, options=options)


def as_store(value: Any) -> Any:
    """Return the long-term store for the value that a user passed as ``store=``. For a
    path or URL, the store at that location is opened.

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
    """The identity of a workflow's runs, with the user's options for one run.

    Example:
        >>> RunIdentity(flow="study:flow", adopts=("old",)).owns("study:old")
        True
    """

    flow: str
    """The module and the name of the workflow."""
    folder: str = ""
    """The folder from which the workflow's module is imported, or an empty string if it
    is unknown.
    """
    adopts: tuple[str, ...] = ()
    """The earlier names of the workflow."""
    adopt: bool = False
    """True if the run resumes with the present input, even if the input has changed."""

    again: bool = False
    """True if a new run always starts. A stored run stays in the history."""
    replays: bool = False
    """True if the workflow's body always runs again, with the results of the recorded
    calls. False if the stored result of a finished run is returned.
    """
    completed: Callable[[Any], Any] | None = field(
        default=None, repr=False, compare=False
    )
    """A function that takes a recorded input, and returns it in terms of the workflow's
    present parameters, with their defaults.
    """

    def owns(self, recorded: str) -> bool:
        """Return whether a run that was recorded for the workflow *recorded* belongs to
        this workflow.
        """
        # Only the ends of the names are compared: the module's name is `study` in
        # `python pkg/study.py`, and `pkg.study` in every other program.
        same = f".{self.flow}".endswith(f".{recorded}") or recorded.endswith(
            f".{self.flow}"
        )
        return same or recorded in self.adopts or node_of(recorded) in self.adopts


def flow_labels(flow: str, folder: str) -> dict[str, str]:
    """Return the metadata that identify the flow of a run and the folder from which the
    flow is imported.
    """
    return {FLOW: flow, **({FOLDER: folder} if folder else {})}


def folder_of(module: str, file: str | None) -> str:
    """Return the folder that *module* is imported from, or an empty string if the
    module has no *file*.

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
    """Return the name under which other programs import a module, and the module's
    file, if it has one.

    For a script, which runs as ``__main__``, the name is the one under which other
    programs would import the script.
    """
    is_script = module.startswith("__main__")
    imported = sys.modules.get("__main__" if is_script else module)
    file = getattr(imported, "__file__", None)
    if is_script:
        spec = getattr(imported, "__spec__", None)
        module = spec.name if spec else Path(file or "__main__").stem
    return module, file


def labels_of_graph(graph: Any) -> dict[str, str]:
    """Return metadata that identify a graph: its workflow, or the global variable that
    refers to the graph.

    The variable is searched in the modules of all functions on the call stack, because
    a module that runs a graph has created or imported the graph. If there is no such
    variable, the result is empty.
    """
    once: RunIdentity | None = graph.definition.once
    if once is not None:
        return flow_labels(once.flow, once.folder)
    for module, variables in _callers_modules():
        for name, value in [*variables.items()]:
            if value is not graph:
                continue
            known, file = imported_as(module)
            if not file:
                # A graph that is defined in a notebook or at a prompt gets no labels,
                # because no other program can import it.
                return {}
            return flow_labels(f"{known}:{name}", folder_of(known, file))
    return {}


def _callers_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the variables of each user module on the call stack."""
    frame, seen = inspect.currentframe(), set[str]()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in seen and not module.startswith("flowpregel."):
            seen.add(module)
            yield module, frame.f_globals
        frame = frame.f_back


def node_of(flow: str) -> str:
    """Return the name of a workflow's body node, which is the last part of the
    workflow's name.
    """
    return flow.rpartition(":")[2].rpartition(".")[2]
