"""The parameters of tools that get values of the run, which a model does not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, get_args, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg
from langchain_core.tools.base import (
    _DirectlyInjectedToolArg,
    get_all_basemodel_annotations,
)
from typing_extensions import TypeVar

from flowpregel.plugins.langchain.tool_stream import send_output_delta
from flowpregel.runtime import Runtime

ContextT = TypeVar("ContextT", default=Any)
StateT = TypeVar("StateT", default=Any)

MISSING: Final = object()
"""The marker for a value that the run does not have."""


class InjectedState(InjectedToolArg):
    """A marker for a tool's parameter that gets the state.

    Annotate the parameter with ``Annotated[dict, InjectedState]``.

    Args:
        field: The key of the state to pass; None: the whole state.

    Example:
        >>> from typing import Annotated
        >>> from langchain_core.messages import AIMessage
        >>> from flowpregel.plugins.langchain import InjectedState, ToolNode
        >>> def count(messages: Annotated[list, InjectedState("messages")]) -> int:
        ...     "Count the messages."
        ...     return len(messages)
        >>> call = {"name": "count", "args": {}, "id": "1"}
        >>> state = {"messages": [AIMessage("", tool_calls=[call])]}
        >>> ToolNode([count]).invoke(state)["messages"][0].content
        '1'
    """

    def __init__(self, field: str | None = None) -> None:
        self.field = field


class InjectedStore(InjectedToolArg):
    """A marker for a tool's parameter that gets the graph's long-term store.

    Example:
        >>> from typing import Annotated, Any
        >>> from flowpregel.plugins.langchain import InjectedStore, ToolNode
        >>> def recall(key: str, store: Annotated[Any, InjectedStore()]) -> str:
        ...     "Recall a note."
        ...     return store.get(("notes",), key).value["text"]
        >>> recall_tool = ToolNode([recall]).tools_by_name["recall"]
        >>> list(recall_tool.tool_call_schema.model_fields)  # the model fills these
        ['key']
    """


@dataclass(frozen=True, kw_only=True)
class ToolRuntime(
    Runtime[ContextT], _DirectlyInjectedToolArg, Generic[ContextT, StateT]
):
    """The runtime that a tool gets for a parameter with this annotation."""

    state: StateT
    """The state of the graph, as its nodes get it."""
    config: RunnableConfig
    """The config of the run."""
    tool_call_id: str | None
    """The id of the call, which the model has chosen."""
    tools: list[BaseTool] = field(default_factory=list)
    """All tools of the `ToolNode`."""

    def emit_output_delta(self, delta: Any) -> None:
        """Send a part of the tool's output to streams of mode ``tools``.

        Without such a stream, this does nothing.

        Args:
            delta: The part, any value.

        Example:
            >>> from flowpregel.plugins.langchain import ToolRuntime
            >>> def count(runtime: ToolRuntime) -> str:
            ...     "Count to two."
            ...     runtime.emit_output_delta(1)
            ...     runtime.emit_output_delta(2)
            ...     return "done"
        """
        send_output_delta(self.tool_call_id, delta)


def markers_of(tool: BaseTool) -> dict[str, Any]:
    """Return the markers of the parameters that *tool* gets from the run, by name."""
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    annotations: dict[str, Any] = {}
    if function is not None:
        annotations = get_type_hints(function, include_extras=True)
    annotations |= get_all_basemodel_annotations(tool.get_input_schema())
    markers = {}
    for name, annotation in annotations.items():
        marker = _marker_in(annotation)
        if marker is not None:
            markers[name] = marker
    return markers


def _marker_in(annotation: Any) -> Any:
    """Return the marker in an annotation, or in its arguments, if there is one."""
    for part in (annotation, get_origin(annotation)):
        if _is_a(part, InjectedToolArg) or _is_a(part, _DirectlyInjectedToolArg):
            return part
    for argument in get_args(annotation):
        marker = _marker_in(argument)
        if marker:
            return marker
    return None


def _is_a(
    marker: Any,
    kind: type,
) -> bool:
    """Return whether *marker* is of the class *kind*, or is that class."""
    if isinstance(marker, type):
        return issubclass(marker, kind) or isinstance(marker, kind)
    return isinstance(marker, kind)


def injected_value(
    marker: Any,
    runtime: ToolRuntime[Any, Any],
    messages_key: str,
) -> Any:
    """Return the run's value for a parameter with *marker*, or `MISSING`.

    Args:
        marker: The marker in the parameter's annotation.
        runtime: The runtime of the call.
        messages_key: The key of the messages in a state that is a list of messages.
    """
    if _is_a(marker, ToolRuntime):
        return runtime
    if _is_a(marker, InjectedStore):
        return MISSING if runtime.store is None else runtime.store
    if not _is_a(marker, InjectedState):
        return MISSING
    state = runtime.state
    if isinstance(state, list):
        state = {messages_key: state}
    field_name = getattr(marker, "field", None)
    if field_name:
        return part_of(
            state,
            field_name,
            MISSING,
        )
    return state


def part_of(
    state: Any,
    key: str,
    default: Any = None,
) -> Any:
    """Return the value of *key* in *state*, which is a dict, or an object with
    attributes.
    """
    if isinstance(state, Mapping):
        return state.get(key, default)
    return getattr(state, key, default)
