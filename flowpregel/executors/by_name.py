"""Executors by the name or URL that a user writes."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Final

from flowpregel._entry_points import (
    EXECUTORS,
    extra_hint,
    load_plugin,
    plugin_hint,
    plugin_names,
)
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.base import Executor

NAMES: Final = ("processes", "threads", "inline")
"""The executors that need no plug-in."""
_lock: Final = threading.Lock()
_connected: Final[dict[str, Executor]] = {}
"""The executors of plug-ins, by name or URL."""


def check_executor(value: Any) -> Any:
    """Return *value* if it can be an executor.

    Raises:
        ConfigurationError: *value* is neither a known name or URL nor an executor.
    """
    if value is None or isinstance(value, Executor | concurrent.futures.Executor):
        return value
    if isinstance(value, str):
        if value in NAMES or _plugin_name(value) in plugin_names(EXECUTORS):
            return value
        advice = plugin_hint(EXECUTORS, _plugin_name(value))
    else:
        advice = ""
    urls = [f"'{name}://...'" for name in plugin_names(EXECUTORS)]
    choices = ", ".join([*map(repr, NAMES), *urls])
    raise ConfigurationError(
        f"executor={value!r}: use {choices}, a flowpregel executor, "
        f"or any concurrent.futures.Executor{advice}"
    )


def executor_named(name: str) -> Executor:
    """Return the executor of a plug-in, which all runs of the program share.

    Args:
        name: A URL such as ``dask://HOST:PORT``, or the name of a plug-in.

    Raises:
        ExecutorUnavailableError: The plug-in cannot be loaded, or cannot connect.
    """
    with _lock:
        executor = _connected.get(name)
        if executor is None or executor.is_closed:
            executor = _connect(name)
            _connected[name] = executor
        return executor


def _connect(name: str) -> Executor:
    """Return a new executor of the plug-in that the beginning of *name* specifies."""
    plugin_name = _plugin_name(name)
    location = name.partition("://")[2]
    try:
        connect = load_plugin(EXECUTORS, plugin_name)
    except ConfigurationError as error:
        raise ExecutorUnavailableError(f"executor={name!r}: {error}") from error
    try:
        executor: Executor = connect(location)
    except Exception as error:
        advice = extra_hint(EXECUTORS, plugin_name)
        raise ExecutorUnavailableError(f"executor={name!r}: {error}{advice}") from error
    return executor


def _plugin_name(name: str) -> str:
    """Return the scheme of a URL, or the whole name."""
    return name.partition("://")[0]
