"""How flowpregel works with others."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Final

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import Executor

_lock: Final = threading.Lock()
_by_address: dict[str, Executor] = {}


def executor_at(address: str) -> Executor:
    """Return the program's executor on that cluster: one for all its runs.

    Args:
        address: ``dask://HOST:PORT`` of a scheduler, or ``ray://HOST:PORT`` of a head
            node.

    Raises:
        ExecutorUnavailableError: The cluster cannot be reached, or the extra is not
            installed.
    """
    kind, _, place = address.partition("://")
    with _lock:
        found = _by_address.get(address)
        if found is None or found.is_closed:
            try:
                found = import_module(f"flowpregel.integrations.{kind}").connect(place)
            except Exception as error:
                what = f"is the extra installed (pip install flowpregel[{kind}])?"
                raise ExecutorUnavailableError(
                    f"executor={address!r}: {error}; {what}"
                ) from error
            _by_address[address] = found
        return found
