"""Objects that stay in their process, such as savers, stores and caches::

    coordinator                      worker
    a graph with its saver  -------> a graph with a placeholder
    a graph with its saver  <------- a call of that graph, which the coordinator runs

When a placeholder is sent back to the object's process, it becomes the object itself.
"""

from __future__ import annotations

import uuid
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

from flowpregel.errors import ConfigurationError


class ProcessBound:
    """The base class of objects that must not be copied to a worker. The worker gets a
    `Placeholder`.
    """


_names: WeakKeyDictionary[ProcessBound, str] = WeakKeyDictionary()
_made_here: WeakValueDictionary[str, ProcessBound] = WeakValueDictionary()


class Placeholder:
    """A placeholder for an object of another process. When it is sent to that process,
    it becomes the object itself.

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
            f".{name} of {self!r} is not available in a worker process: use it "
            "outside of the run, or give the node executor='threads'"
        )

    def __repr__(self) -> str:
        return f"<stand-in for a {self._kind} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self._name, self._kind)


def reference_to(resident: ProcessBound) -> tuple[Any, ...]:
    """Return the reduction with which pickle writes *resident*: a call of `find` with a
    name that only this process knows.
    """
    name = _names.setdefault(resident, uuid.uuid4().hex)
    _made_here[name] = resident
    return find, (name, type(resident).__qualname__)


def find(name: str, kind: str) -> ProcessBound | Placeholder:
    """Return the object that this process knows by *name*, or a placeholder if the
    object belongs to another process.
    """
    resident = _made_here.get(name)
    return Placeholder(name, kind) if resident is None else resident
