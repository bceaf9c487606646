"""Executors on the clusters of Dask and Ray."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Final

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import Executor

_CLASSES: Final = {"dask": "DaskExecutor", "ray": "RayExecutor"}
_lock: Final = threading.Lock()
_by_address: dict[str, Executor] = {}


def executor_at(address: str) -> Executor:
    """Return the program's executor on that cluster: one for all runs.

    Args:
        address: ``dask://HOST:PORT`` of a scheduler, or ``ray://HOST:PORT`` of a head
            node.

    Raises:
        ExecutorUnavailableError: The cluster cannot be reached, or the extra is not
            installed.
    """
    with _lock:
        executor = _by_address.get(address)
        if executor is None or executor.is_closed:
            executor = _connect_to(address)
            _by_address[address] = executor
        return executor


def _connect_to(address: str) -> Executor:
    kind, _, location = address.partition("://")
    try:
        module = import_module(f"flowpregel.plugins.cluster.{kind}")
        executor: Executor = getattr(module, _CLASSES[kind]).connect(location)
    except Exception as error:
        raise ExecutorUnavailableError(
            f"executor={address!r}: {error}; "
            f"is the extra installed (pip install flowpregel[{kind}])?"
        ) from error
    return executor
