"""Errors and warnings of LangGraph that flowpregel does not raise."""

from __future__ import annotations

from enum import Enum
from typing import Any

from flowpregel.errors import FlowPregelError, GraphInterrupt
from flowpregel.types import Interrupt

__all__ = [
    "ErrorCode",
    "LangGraphDeprecatedSinceV05",
    "LangGraphDeprecatedSinceV10",
    "LangGraphDeprecatedSinceV11",
    "LangGraphDeprecationWarning",
    "NodeInterrupt",
    "TaskNotFound",
    "create_error_message",
]


class ErrorCode(Enum):
    """The codes by which LangGraph's documentation lists errors."""

    GRAPH_RECURSION_LIMIT = "GRAPH_RECURSION_LIMIT"
    INVALID_CHAT_HISTORY = "INVALID_CHAT_HISTORY"
    INVALID_CONCURRENT_GRAPH_UPDATE = "INVALID_CONCURRENT_GRAPH_UPDATE"
    INVALID_GRAPH_NODE_RETURN_VALUE = "INVALID_GRAPH_NODE_RETURN_VALUE"
    MULTIPLE_SUBGRAPHS = "MULTIPLE_SUBGRAPHS"


def create_error_message(*, message: str, error_code: ErrorCode) -> str:
    """Return *message* with the code of the error."""
    return f"{message}\n({error_code.value})"


class NodeInterrupt(GraphInterrupt):
    """A question that a node asks by raising this error.

    When the run is resumed, the node runs again. Unlike `interrupt`, the error gives
    the node no answer.
    """

    def __init__(self, value: Any, id: str | None = None) -> None:
        options = {} if id is None else {"id": id}
        super().__init__([Interrupt(value, **options)])


class TaskNotFound(FlowPregelError):
    """A task that an executor cannot find; flowpregel never raises this error."""


class LangGraphDeprecationWarning(DeprecationWarning):
    """The warning about a name that LangGraph has deprecated. flowpregel never gives
    it.

    Programs name this class and its subclasses in filters of warnings.
    """


class LangGraphDeprecatedSinceV05(LangGraphDeprecationWarning):
    """A name that is deprecated since version 0.5."""


class LangGraphDeprecatedSinceV10(LangGraphDeprecationWarning):
    """A name that is deprecated since version 1.0."""


class LangGraphDeprecatedSinceV11(LangGraphDeprecationWarning):
    """A name that is deprecated since version 1.1."""
