"""The requests of tool calls, for functions that wrap the calls of a `ToolNode`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

# Python's own TypedDict is not used, because before Python 3.12 pydantic does not
# accept it in a tool.
from typing_extensions import TypedDict

from flowpregel.plugins.langchain.injected import ToolRuntime
from flowpregel.types import Command

ONE_CALL: Final = "tool_call_with_context"
"""The value of the key ``__type`` in an input of a tool node that consists of one tool
call and the state.
"""


@dataclass
class ToolCallRequest:
    """One call of a tool, as a wrapper of a `ToolNode` gets it.

    Example:
        >>> from flowpregel.plugins.langchain import ToolCallRequest, ToolRuntime
        >>> call = {"name": "add", "args": {"a": 1}, "id": "1", "type": "tool_call"}
        >>> runtime = ToolRuntime(state={}, config={}, tool_call_id="1")
        >>> request = ToolCallRequest(call, None, {}, runtime)
        >>> request.override(state={"topic": "tea"}).runtime.state
        {'topic': 'tea'}
    """

    tool_call: ToolCall
    """The call, with the arguments that the model has chosen."""
    tool: BaseTool | None
    """The tool, or None if the node has no tool of this name."""
    state: Any
    """The state of the graph, which the tool gets, too."""
    runtime: ToolRuntime[Any, Any]
    """The runtime that the tool gets."""

    def override(self, **changes: Any) -> ToolCallRequest:
        """Return a copy with some fields changed.

        Args:
            changes: The new values of fields. A new ``state`` is that of the runtime,
                too, so that the tool gets it.

        Raises:
            TypeError: There is no such field.

        Example:
            >>> from flowpregel.plugins.langchain import ToolCallRequest
            >>> request = ToolCallRequest(
            ...     {"name": "add", "args": {}, "id": "1"}, None, {}, None
            ... )
            >>> request.override(state=[]).state, request.state
            ([], {})
        """
        request = replace(self, **changes)
        # The class of the runtime is checked, because a test outside of a graph may
        # pass any object as the runtime.
        if "state" in changes and isinstance(request.runtime, ToolRuntime):
            request.runtime = replace(request.runtime, state=request.state)
        return request


_WithType = TypedDict("_WithType", {"__type": Literal["tool_call_with_context"]})


class ToolCallWithContext(_WithType):
    """The input of a `ToolNode` for one call and the state that its tool gets.

    Use it in a `Send`, so that each call is a task of its own.

    Example:
        >>> from flowpregel.plugins.langchain import ToolCallWithContext
        >>> packet = ToolCallWithContext(
        ...     __type="tool_call_with_context",
        ...     tool_call={"name": "add", "args": {"a": 1}, "id": "1"},
        ...     state={"topic": "tea"},
        ... )
        >>> packet["__type"]
        'tool_call_with_context'
    """

    tool_call: ToolCall
    """The call, as the model requests it."""
    state: Any
    """The state that the tool gets."""


Answer: TypeAlias = ToolMessage | Command[Any]
ToolCallWrapper: TypeAlias = Callable[
    [ToolCallRequest, Callable[[ToolCallRequest], Answer]], Answer
]
"""A function that wraps each call of a tool: ``wrap(request, execute) -> answer``.

``execute(request)`` calls the tool and returns its answer. The wrapper may change the
request, call ``execute`` several times, or answer without it.
"""
AsyncToolCallWrapper: TypeAlias = Callable[
    [ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Answer]]],
    Awaitable[Answer],
]
"""A `ToolCallWrapper` whose function and ``execute`` are async."""
