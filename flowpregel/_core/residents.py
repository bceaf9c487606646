"""Objects that stay in their process: savers, stores, caches. A worker has stand-ins for them.

::

    coordinator                      worker
    a graph with its saver  -------> a graph with a stand-in
    a graph with its saver  <------- a call of that graph, which the coordinator runs
"""

from __future__ import annotations

import uuid
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

from flowpregel.errors import ConfigurationError


class Resident:
    """What is not copied to a worker: it would be another one there."""


_names: WeakKeyDictionary[Resident, str] = WeakKeyDictionary()
_made_here: WeakValueDictionary[str, Resident] = WeakValueDictionary()


class StandIn:
    """Stands for an object of another process, and becomes that again when it is sent there.

    Args:
        name: Names the object.
        kind: The name of its class.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, wanted: str) -> NoReturn:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        raise ConfigurationError(
            f".{wanted} of {self!r} was asked for in a worker process: ask outside of the run, "
            "or give the node executor='threads'"
        )

    def __repr__(self) -> str:
        return f"<stand-in for a {self._kind} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self._name, self._kind)


def reference_to(resident: Resident) -> tuple[Any, ...]:
    """Return *resident* as a pickle has it: by its name in this process."""
    name = _names.setdefault(resident, uuid.uuid4().hex)
    _made_here[name] = resident
    return find, (name, type(resident).__qualname__)


def find(name: str, kind: str) -> Resident | StandIn:
    """Return the object of this process that has *name*, or a stand-in for that of another."""
    found = _made_here.get(name)
    return StandIn(name, kind) if found is None else found
