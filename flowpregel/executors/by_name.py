"""Executors by the name or URL that a user writes, or by a function that makes one."""

from __future__ import annotations

import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, cast

from flowpregel._annotations import signature_of
from flowpregel._entry_points import (
    EXECUTORS,
    extra_hint,
    load_plugin,
    plugin_hint,
    plugin_names,
)
from flowpregel._pickling.process_bound import ProcessBound
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.base import Executor

NAMES: Final = ("processes", "threads", "inline")
"""The names of the executors that need no plug-in."""
# The lock is held while a user's function makes an executor, and this function may
# request another executor. So the lock is reentrant.
_lock: Final = threading.RLock()
_connected: Final[dict[Hashable, Executor]] = {}
"""The executors that are in use, each under a key: the name or URL of a plug-in's
executor, or the user's function that made the executor.
"""


class ExecutorFactory(ProcessBound):
    """A function that makes an executor, which all runs of the program share.

    The function is called when a run first needs the executor, and again if the
    executor was closed. The executor is closed when the program ends. So a module that
    defines a flow can be imported without a connection to a cluster.

    Args:
        function: The function, which takes no arguments.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        # The key under which the executor is shared is the function, not this
        # `ExecutorFactory`: a worker that imports the module has another
        # `ExecutorFactory` of the same function, and may send it back.
        self.key: Final = cast(Hashable, function)
        self._function = function

    def __repr__(self) -> str:
        return f"<executor made by {_label_of(self._function)}>"

    def executor(self) -> Executor:
        """Return the executor that the function made for this program.

        Raises:
            ConfigurationError: The function does not return an executor.
            ExecutorUnavailableError: The function fails.
        """
        return _shared_executor(self.key, self._make)

    def _make(self) -> Executor:
        name = f"executor={_label_of(self._function)}"
        try:
            result = self._function()
        except Exception as error:
            raise ExecutorUnavailableError(
                f"{name}: the function failed with {type(error).__name__}: {error}"
            ) from error
        if isinstance(result, Executor):
            atexit.register(result.close)
            return result
        if not isinstance(result, concurrent.futures.Executor):
            raise ConfigurationError(
                f"{name}: the function returned {result!r}; return a flowpregel "
                "executor or a concurrent.futures.Executor"
            )
        # The adapter is imported only here, because few programs need it.
        from flowpregel.executors.adapter import FuturesExecutor  # noqa: PLC0415

        atexit.register(result.shutdown)
        return FuturesExecutor(result)


def check_executor(value: Any) -> Any:
    """Return *value* if it can be an executor. A function is returned as an
    `ExecutorFactory`.

    Raises:
        ConfigurationError: *value* is neither a known name or URL, nor an executor, nor
            a function without parameters.
    """
    is_executor = isinstance(value, Executor | concurrent.futures.Executor)
    if value is None or is_executor or isinstance(value, ExecutorFactory):
        return value
    is_hashable = isinstance(value, Hashable)
    if is_hashable and callable(value):
        _check_takes_no_arguments(value)
        return ExecutorFactory(value)
    if isinstance(value, str):
        if value in NAMES or _plugin_name(value) in plugin_names(EXECUTORS):
            return value
        advice = plugin_hint(EXECUTORS, _plugin_name(value))
    else:
        advice = ""
    urls = [f"'{name}://...'" for name in plugin_names(EXECUTORS)]
    choices = ", ".join([*map(repr, NAMES), *urls])
    raise ConfigurationError(
        f"executor={value!r}: use {choices}, a flowpregel executor, any "
        "concurrent.futures.Executor, or a function without parameters that returns "
        f"an executor{advice}"
    )


def _check_takes_no_arguments(function: Callable[..., Any]) -> None:
    """Raise a `ConfigurationError` if *function* needs arguments."""
    try:
        parameters = signature_of(function)
    except ValueError:
        return  # A function in C that does not state its parameters is not checked.
    try:
        parameters.bind()
    except TypeError as error:
        raise ConfigurationError(
            f"executor={_label_of(function)}: the function has the parameters "
            f"{parameters}, but is called without arguments: pass a functools.partial"
        ) from error


def _label_of(function: Any) -> str:
    """Return the name of a function, or its `repr` if it has no name."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def executor_named(name: str) -> Executor:
    """Return the executor of a plug-in, which all runs of the program share.

    Args:
        name: A URL such as ``dask://HOST:PORT`` or ``dask+tls://HOST:PORT``, or the
            name of a plug-in.

    Raises:
        ExecutorUnavailableError: The plug-in cannot be loaded, or cannot connect.
    """
    return _shared_executor(name, lambda: _connect(name))


def _shared_executor(key: Hashable, make: Callable[[], Executor]) -> Executor:
    """Return the program's executor with this key. If there is none, or if it was
    closed, make one.
    """
    with _lock:
        executor = _connected.get(key)
        if executor is None or executor.is_closed:
            executor = make()
            _connected[key] = executor
        return executor


def _connect(name: str) -> Executor:
    """Return a new executor of the plug-in that the beginning of *name* specifies."""
    plugin_name = _plugin_name(name)
    scheme, _, location = name.partition("://")
    protocol = scheme.partition("+")[2]
    if protocol:
        location = f"{protocol}://{location}"
    try:
        connect = load_plugin(EXECUTORS, plugin_name)
    except ConfigurationError as error:
        raise ExecutorUnavailableError(f"executor={name!r}: {error}") from error
    try:
        executor: Executor = connect(location)
    except Exception as error:
        is_missing = isinstance(error, ImportError)
        advice = extra_hint(EXECUTORS, plugin_name) if is_missing else ""
        raise ExecutorUnavailableError(f"executor={name!r}: {error}{advice}") from error
    return executor


def _plugin_name(name: str) -> str:
    """Return the first part of the scheme of a URL, or the whole name.

    The scheme ``dask+tls`` names the plug-in ``dask``, which gets a location that
    begins with ``tls://``.
    """
    scheme = name.partition("://")[0]
    return scheme.partition("+")[0]
