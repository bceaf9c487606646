"""The packing (pickling) of nodes with their code, and the caches of packed code in the
coordinator.

::

    coordinator                                        worker
    -----------                                        ------
    Node --PackedCodes--> NodeCode (digest, bytes)     ReceivedCode (bytes) --> Node
                              |                            ^
                          SentCodes --- bytes, or nothing -+
                                        and what to drop

A task must run the code that exists at the time of the call, with the values to which
the code then refers. So a node is packed for each call, unless its `References` show
that the node still refers to the very same objects. In this case its last packing is
used again. Code with the same bytes has the same digest, and is sent to a worker once.

Each code cache is bounded by bytes, since a closure may contain a large array. The
least recently used code is dropped first. The coordinator decides which code a worker
drops, so that both always agree on the code that the worker has. Dropped code is sent
again when it is needed.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import getclosurevars
from types import FunctionType, MethodType
from typing import Any, Final
from weakref import WeakValueDictionary

from flowpregel._core.commands import CallTarget, name_of
from flowpregel._core.records import Node
from flowpregel._loggers import worker_log
from flowpregel._pickling.crossing import dumps
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.processes.wire.node_code import (
    NodeCode,
    ReceivedCode,
    RecentlyUsed,
    pack_node,
    references_of,
)
from flowpregel.executors.processes.wire.protocol import DIGEST_SIZE
from flowpregel.executors.processes.wire.references import References, found_by_name

_LARGE: Final = 1 << 20
"""The size, in bytes, above which a warning about the code is logged."""


# ------------------------------------------------ packing


@dataclass(slots=True, eq=False)
class Packing:
    """The latest packed form of one node."""

    node: Node
    """The node. Because this record refers to it, no other object can get its id, which
    is the cache key.
    """
    code: NodeCode
    references: References | None
    """The objects that the code refers to, or None if the node must be packed again for
    each call.
    """


class PackedCodes:
    """The last packed forms (packings) of nodes, for all pools of this process.

    Any OS thread may use this object.
    """

    def __init__(self) -> None:
        self._packings: RecentlyUsed[Hashable, Packing] = RecentlyUsed()
        self._by_digest: WeakValueDictionary[bytes, NodeCode] = WeakValueDictionary()
        """The packed code that is still in use by a `Packing` or a task in a pool, by
        digest.
        """
        self._named: set[str] = set()
        """The names of the nodes for which a warning about large code was logged."""

    @property
    def size(self) -> int:
        """The size of all cached code, in bytes."""
        return self._packings.size

    def code_of(self, node: Node, key: Hashable = None) -> NodeCode:
        """Return the packed code of *node* in its present state.

        Args:
            node: The node to pack.
            key: The key of the cache entry, or None for the id of *node*.

        Raises:
            TaskSerializationError: A part of *node* cannot be pickled.
        """
        key = id(node) if key is None else key
        packing = self._packings.get(key)
        references = None if packing is None else packing.references
        if packing is not None and references is not None and references.hold():
            return packing.code
        return self._pack(key, node, packing)

    def of_function(self, function: Callable[..., Any]) -> tuple[Node, NodeCode | None]:
        """Return a node that calls *function*, and its code, or None if the code cannot
        be packed.
        """
        key: Hashable = id(function)
        # The key of a method consists of two ids, those of the function and the object.
        # Each access to a method creates a new method object, with a new id.
        if isinstance(function, MethodType):
            key = id(function.__func__), id(function.__self__)
        packing = self._packings.get(key)
        if packing is None:
            callee = CallTarget(function, None, (), name_of(function))
            node = Node(name=callee.name, steps=(callee,))
        else:
            node = packing.node
        try:
            return node, self.code_of(node, key)
        except TaskSerializationError:
            return node, None

    def _pack(self, key: Hashable, node: Node, packing: Packing | None) -> NodeCode:
        # The references are collected before the node is packed, so that a change
        # during the packing is noticed at the next call. They are not collected again
        # if this failed before, because parts of the code can change unnoticed.
        references = None
        if packing is None or packing.references is not None:
            references = references_of(node)
        # The name is packed too, for the error message of a worker that cannot unpickle
        # the node.
        data = pickle.dumps((node.name, pack_node(node)))
        digest = blake2b(data, digest_size=DIGEST_SIZE).digest()
        code = self._by_digest.get(digest)
        if code is None:
            code = NodeCode(digest, data)
            if packing is not None:
                code.seconds = packing.code.seconds
                code.has_begun = packing.code.has_begun
            self._by_digest[digest] = code
        self._packings.put(key, Packing(node, code, references), len(data))
        if len(data) > _LARGE and node.name not in self._named:
            self._named.add(node.name)
            _warn_of_size(node, len(data))
        return code


codes: Final = PackedCodes()
"""The cache of packed nodes of this process."""
# A forked process gets a new cache with a new lock. If another OS thread held the old
# lock during the fork, it would never be released in the forked process.
os.register_at_fork(after_in_child=codes.__init__)  # type: ignore[misc]


def _warn_of_size(node: Node, size: int) -> None:
    """Warn that the packed code of *node* is large, and name the captured value that
    takes most of the bytes.
    """
    captures: dict[str, Any] = {}
    for step in node.steps:
        captures.update(_captures(step.func or step.coroutine))
    sizes = {name: _size_of(value) for name, value in captures.items()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    largest_part = ""
    argument = "values"
    if sizes.get(largest, 0) > size // 2:
        kind = type(captures[largest]).__name__
        largest_part = f", most of it {largest!r} ({kind})"
        argument = largest
    worker_log.warning(
        "the code of %r is %.1f MB%s: it is sent to the workers with the function, "
        "each time it has changed. Pass large values as arguments, with shared(%s), "
        "so that they are copied once",
        node.name,
        size / 1e6,
        largest_part,
        argument,
    )


def _captures(target: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a callable captures, which are pickled with
    it.
    """
    if isinstance(target, partial):
        yield from (
            (f"argument {number}", value) for number, value in enumerate(target.args)
        )
        yield from target.keywords.items()
        yield from _captures(target.func)
    elif isinstance(target, MethodType):
        yield from getattr(target.__self__, "__dict__", {}).items()
        yield from _captures(target.__func__)
    elif isinstance(target, FunctionType):
        if not found_by_name(target):
            closed_over = getclosurevars(target)
            yield from {**closed_over.globals, **closed_over.nonlocals}.items()
    else:
        yield from getattr(target, "__dict__", {}).items()


def _size_of(value: Any) -> int:
    try:
        return len(dumps(value))
    except Exception:  # noqa: BLE001 - a user's object may raise any error
        return 0


# ------------------------------------------------ unpacking


class CalledNodes:
    """A cache of the unpickled nodes that tasks in workers have called most recently.

    Calls with the same packed node get the same node object.
    """

    def __init__(self) -> None:
        self._received: RecentlyUsed[bytes, ReceivedCode] = RecentlyUsed()

    def node_of(self, data: bytes) -> Node:
        """Return the node in *data*, unpickled, or the same object as for an earlier
        call with equal bytes.

        Raises:
            BaseException: Any error that unpickling a part raises.
        """
        code = self._received.get(data)
        if code is None:
            code = ReceivedCode(data)
            self._received.put(data, code, len(data))
        return code.node()
