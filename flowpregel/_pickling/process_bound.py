"""Objects that stay in their process, such as savers, stores and caches::

    coordinator                      worker
    a graph with its saver  -------> a graph with a stand-in
    a graph with its saver  <------- a call of that graph, which the coordinator runs

A stand-in is the object itself again when it comes back to its process.
"""

from __future__ import annotations

import uuid
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

from flowpregel.errors import ConfigurationError


class ProcessBound:
    """An object that is not copied to a worker, where it would be another object."""


_names: WeakKeyDictionary[ProcessBound, str] = WeakKeyDictionary()
_made_here: WeakValueDictionary[str, ProcessBound] = WeakValueDictionary()


class Placeholder:
    """Stands for an object of another process, and becomes it again when sent there.

    Args:
        name: The name of the object.
        kind: The name of the object's class.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(
            f".{name} of {self!r} was asked for in a worker process: ask outside of "
            "the run, or give the node executor='threads'"
        )

    def __repr__(self) -> str:
        return f"<stand-in for a {self._kind} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self._name, self._kind)


def reference_to(resident: ProcessBound) -> tuple[Any, ...]:
    """Return the reduction of *resident* for a pickle: by its name in this process."""
    name = _names.setdefault(resident, uuid.uuid4().hex)
    _made_here[name] = resident
    return find, (name, type(resident).__qualname__)


def find(name: str, kind: str) -> ProcessBound | Placeholder:
    """Return the object with *name* in this process, or a stand-in for it."""
    resident = _made_here.get(name)
    return Placeholder(name, kind) if resident is None else resident
