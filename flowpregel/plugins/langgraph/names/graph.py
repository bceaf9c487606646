"""`StateGraph` with the names of arguments that LangGraph has deprecated."""

from __future__ import annotations

import sys
from typing import Any, Self

from flowpregel.graph import StateGraph

__all__ = ["GraphWithOldNames"]


class GraphWithOldNames(StateGraph):
    """A `StateGraph` that also takes the deprecated names of arguments.

    Args:
        state_schema: The state.
        context_schema: The class of a run's context.
        config_schema: The older name of *context_schema*.
        input, output: The older names of *input_schema* and *output_schema*.
        schemas: The *input_schema* and the *output_schema*.
    """

    def __init__(
        self,
        state_schema: Any,
        context_schema: type[Any] | None = None,
        *,
        config_schema: type[Any] | None = None,
        input: Any = None,
        output: Any = None,
        **schemas: Any,
    ) -> None:
        schemas.setdefault("input_schema", input)
        schemas.setdefault("output_schema", output)
        super().__init__(state_schema, context_schema or config_schema, **schemas)

    def add_node(
        self,
        node: Any,
        action: Any = None,
        *,
        retry: Any = None,
        input: Any = None,
        **options: Any,
    ) -> Self:
        """Add a node, and return the graph.

        Args:
            node: The name of the node, or the action.
            action: The action.
            retry: The older name of *retry_policy*.
            input: The older name of *input_schema*.
            options: Options of `StateGraph.add_node`.

        Raises:
            ConfigurationError: As of `StateGraph.add_node`.
        """
        options.setdefault("retry_policy", retry)
        options.setdefault("input_schema", input)
        target = node if action is None else action
        if _is_on_server(target):
            # A node that is a graph on a server runs on an OS thread of this process:
            # the work is done on the server, and the client cannot be pickled for a
            # worker process.
            options.setdefault("executor", "threads")
        return super().add_node(node, action, **options)


def _is_on_server(target: Any) -> bool:
    """Return whether *target* is a graph on a server, which is an instance of
    LangGraph's `RemoteGraph`.
    """
    module: Any = sys.modules.get("langgraph.pregel.remote")
    return module is not None and isinstance(target, module.RemoteGraph)
