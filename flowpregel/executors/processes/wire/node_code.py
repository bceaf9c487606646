"""Nodes in packed (pickled) form, with their code, and the cache class for them, which
is limited by bytes.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Generic, TypeVar

from flowpregel._core.records import Node
from flowpregel._pickling.crossing import dumps, first_unpicklable
from flowpregel._pickling.sent_modules import is_sent_by_value
from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes.wire.references import References

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
KEPT_BYTES: Final = 32 << 20
"""The maximum size, in bytes, of the packed code in a cache. The coordinator and each
worker have such a cache.
"""
_KEPT_ENTRIES: Final = 1024
_LARGE: Final = 1 << 20
"""The size, in bytes, of packed code above which a worker does not keep the unpickled
node for the next call.
"""


class RecentlyUsed(Generic[KeyT, ValueT]):
    """A cache that drops the least recently used entries when it is full.

    The newest entry is always kept, even if it is larger than the limit. Any OS thread
    may use the cache.

    Args:
        most_bytes: The maximum size of all entries together, in bytes.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size: int = 0
        """The size of all entries, in bytes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value under *key*, which becomes the newest entry, or None if
        there is no entry.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: KeyT, value: ValueT, size: int) -> list[KeyT]:
        """Store *value*, of *size* bytes, under *key*.

        Returns:
            The keys of the entries that were dropped to make room.
        """
        dropped: list[KeyT] = []
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self.size -= replaced[1]
            self._entries[key] = value, size
            self.size += size
            while len(self._entries) > 1 and self._is_over():
                oldest, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed
                dropped.append(oldest)
        return dropped

    def _is_over(self) -> bool:
        return self.size > self._most_bytes or len(self._entries) > _KEPT_ENTRIES


def pack_node(node: Node, *, called: bool = False) -> bytes:
    """Return *node*, pickled.

    Args:
        node: The node to pickle.
        called: True to pickle the whole node, as the run needs it for a call. False to
            pickle only the part that a worker needs to execute it.

    Raises:
        ConfigurationError: The module of *node*'s code is still being imported.
        TaskSerializationError: A part of *node* cannot be pickled.
    """
    _refuse_unfinished_module(node)
    packed = node if called else _part_to_execute(node)
    try:
        return dumps(packed)
    except Exception as error:
        functions = [step.func or step.coroutine for step in packed.steps]
        parts: list[tuple[str, str, Any]]
        parts = [("code", "function", function) for function in functions]
        parts += [("code", "writers", packed.writers), ("code", "node", packed)]
        raise first_unpicklable(node.name, parts, error) from error


def _part_to_execute(node: Node) -> Node:
    """Return *node* without the parts that only its run needs."""
    return replace(
        node,
        triggers=(),
        retry=(),
        cache=None,
        timeout=None,
        handler=None,
        executor=None,
        mapper=node.mapper if node.reads_state else None,
        metadata={},
        trace_policy=None,
        tags=(),
        subgraph=None,
    )


def _refuse_unfinished_module(node: Node) -> None:
    """Raise an error for a node whose module is still being imported, because it runs a
    workflow at its top level.

    A worker would import the module and so run the workflow again. In this process,
    `pickle` would wait for the end of the import, which itself waits for the workflow.
    """
    names = {node.home.partition(":")[0]}
    for step in node.steps:
        names.add(getattr(step.func or step.coroutine, "__module__", None) or "")
    for name in names:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        # There is no public attribute that shows whether a module is still being
        # imported.
        if getattr(spec, "_initializing", False) and not is_sent_by_value(name):
            raise ConfigurationError(
                f"the module {name!r} runs a workflow while it is imported, so that no "
                f"worker can import it to run {node.name!r}; put the call below "
                "`if __name__ == '__main__':`"
            )


def references_of(node: Node) -> References | None:
    """Return the `References` of the user's code in *node*: the objects that it refers
    to. Return None if a part of the code can change although these references do not.
    """
    return References.of(
        (node.steps, node.writers, node.graph, node.mapper, node.retry, node.cache)
    )


class ReceivedCode:
    """The packed form of a node, received from another process.

    Args:
        data: The pickle of the node.
    """

    __slots__ = ("_data", "_node", "_references")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._node: Node | None = None
        self._references: References | None = None

    def node(self) -> Node:
        """Return the node, unpickled again if its last call has changed it or what it
        refers to.

        Raises:
            BaseException: Any error that unpickling a part raises.
        """
        if self._references is not None and self._references.hold():
            assert self._node is not None
            return self._node
        node: Node = pickle.loads(self._data)
        self._node = self._references = None
        if len(self._data) <= _LARGE:
            self._references = references_of(node)
            self._node = None if self._references is None else node
        return node


@dataclass(slots=True, eq=False, weakref_slot=True)
class NodeCode:
    """A node in the packed form that is sent to workers. Nodes whose packed bytes are
    equal share one object.
    """

    digest: bytes
    data: bytes
    seconds: float = inf
    """The average duration of tasks with this code in seconds. It is infinite if it is
    unknown, or if the tasks wait for calls.
    """
    has_begun: bool = False
    """True once a task with this code has left the queue of the pool, so that its
    duration will become known.
    """

    def measured(self, seconds: float) -> None:
        """Update the average duration with that of one task. It is a moving average, in
        which outliers have little weight.
        """
        if self.seconds == inf:
            self.seconds = seconds
            return
        # no mutant: A duration equal to the average leaves it the same with any weight.
        weight = 0.5 if seconds < self.seconds else 0.2
        self.seconds += weight * (min(seconds, 4 * self.seconds) - self.seconds)
