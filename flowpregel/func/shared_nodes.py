"""The nodes of tasks that share their results between runs. Results are shared in a
cache namespace that is named after the task's code, so each call gets a node with the
namespace for the code at the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowpregel._core.records import Node
from flowpregel._pickling.digest import SharedSpace
from flowpregel.context import Scope


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
        self._last: tuple[Node, SharedSpace, Node] | None = None
        """The node of the last call as the caller passed it, its cache namespace, and
        the copy of the node with that namespace.
        """

    def at(self, node: Node, scope: Scope, closure: Callable[..., Any] | None) -> Node:
        """Return *node* with the cache namespace for a call that is made in *scope*.

        Args:
            node: The node of the call.
            scope: The scope of the body that makes the call.
            closure: The copy of the task's closure that the call runs, if the task is a
                closure.
        """
        # `_last` is read only once, because another OS thread may replace it.
        last = self._last
        if last is None or last[0] is not node:
            space = SharedSpace("task", (closure or self._function,), self._version)
            last = node, space, node
        job = scope.job
        namespace = last[1].now((job.run.run_id, id(job.owner)))
        if last[2].space != namespace:
            last = node, last[1], replace(node, space=namespace)
        self._last = last
        return last[2]
