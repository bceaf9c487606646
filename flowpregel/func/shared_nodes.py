"""Where the results of a task are shared: a call is told by its node, as the code is
then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowpregel._core.digest import SharedSpace
from flowpregel._core.records import Node
from flowpregel.context import Scope


class SharedNodes:
    """The nodes of a task that shares its results, each with the namespace of these.

    Args:
        function: The plain function of the task.
        version: What stands for its code, if anything does.
    """

    def __init__(self, function: Callable[..., Any], version: str | None) -> None:
        self._function = function
        self._version = version
        self._last: tuple[Node, SharedSpace, Node] | None = None
        """The node of the last call, its namespace, and the node that has it."""

    def at(self, node: Node, scope: Scope, closure: Callable[..., Any] | None) -> Node:
        """Return *node* with where the results of a call in *scope* are shared.

        Args:
            closure: What the call runs, if it is a snapshot of the function.
        """
        last = self._last  # another OS thread may make a call
        if last is None or last[0] is not node:
            space = SharedSpace("task", (closure or self._function,), self._version)
            last = node, space, node
        job = scope.job
        namespace = last[1].now((job.run.run_id, id(job.owner)))
        if last[2].space != namespace:
            last = node, last[1], replace(node, space=namespace)
        self._last = last
        return last[2]
