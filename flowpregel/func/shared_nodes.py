"""The nodes of tasks that share their results between runs. Results are shared in a
cache namespace that is named after the task's code, so each call gets a node with the
namespace for the code at the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flowpregel._core.records import Node
from flowpregel._pickling.digest import SharedSpace
from flowpregel.context import Scope


@dataclass(frozen=True, slots=True, eq=False)
class _SharedNode:
    """The node of a call, with the cache namespace of the result."""

    original: Node
    """The node as the caller passed it."""
    space: SharedSpace
    """The cache namespace, which is made from the code and changes with it."""
    node: Node
    """The copy of *original* with the cache namespace that was made last from the code.
    """


class SharedNodes:
    """The nodes of a task that shares its results, each with the cache namespace that
    the results are in.

    Args:
        function: The plain function of the task.
        version: The ``version`` of the task, which replaces its code in the namespace,
            or None.
    """

    def __init__(self, function: Callable[..., Any], version: str | None) -> None:
        self._function = function
        self._version = version
        self._last: _SharedNode | None = None
        """The node of the last call, or None before the first call."""

    def at(self, node: Node, scope: Scope, closure: Callable[..., Any] | None) -> Node:
        """Return *node* with the cache namespace for a call that is made in *scope*.

        Args:
            node: The node of the call.
            scope: The scope of the body that makes the call.
            closure: The copy of the task's closure that the call runs, if the task is a
                closure.
        """
        # `_last` is read only once, because another OS thread may replace it.
        shared = self._last
        if shared is None or shared.original is not node:
            function = closure or self._function
            space = SharedSpace("task", (function,), self._version)
            shared = _SharedNode(node, space, node)
        job = scope.job
        run_key = job.run.run_id, id(job.owner)
        namespace = shared.space.now(run_key)
        if shared.node.space != namespace:
            named_node = replace(node, space=namespace)
            shared = replace(shared, node=named_node)
        self._last = shared
        return shared.node
