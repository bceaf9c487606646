"""Things that are made once in each worker and used by many tasks: a model, a connection."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")

_made: dict[tuple[str, str], Any] = {}
_lock = threading.RLock()


class Resource(Generic[Thing]):
    """A function that makes a thing the first time it is called in a process, and then keeps it.

    Args:
        make: Makes the thing; called without arguments.
        teardown: Called with the thing when the process ends in good order.
    """

    def __init__(self, make: Callable[[], Thing], teardown: Callable[[Thing], Any] | None) -> None:
        functools.update_wrapper(self, make)
        self._make = make
        self._teardown = teardown
        # By name, since what arrives in a worker is a copy that cannot remember.
        self._key = (make.__module__, make.__qualname__)

    def __call__(self) -> Thing:
        """Return this process's thing; make it if there is none yet."""
        with _lock:
            if self._key not in _made:
                _made[self._key] = self._make()
                if self._teardown is not None:
                    atexit.register(self._teardown, _made[self._key])
            thing: Thing = _made[self._key]
            return thing


def resource(
    make: Callable[[], Thing] | None = None, *, teardown: Callable[[Thing], Any] | None = None
) -> Any:
    """Make a function a worker-scoped lazy singleton.

    Args:
        make: Makes the thing; called once in each process that asks for it.
        teardown: Called with the thing when the process ends in good order.

    Returns:
        A function that returns the process's thing.

    Example:
        >>> @resource
        ... def model():
        ...     return {"weights": [1.0, 2.0]}
        >>> model() is model()
        True
    """
    if make is None:
        return lambda function: Resource(function, teardown)
    return Resource(make, teardown)
