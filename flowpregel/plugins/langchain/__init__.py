"""Agents and tools of LangChain, as in `langgraph.prebuilt`, and messages in a state.

To import this package you need langchain-core: ``pip install 'flowpregel[langchain]'``.
The import also allows LangChain's tools to return a `Command`.
"""

from __future__ import annotations

try:
    from langchain_core.messages.tool import ToolOutputMixin
except ImportError as _error:
    raise ImportError(
        "flowpregel.plugins.langchain needs langchain-core, which is not installed; "
        "get it with: pip install 'flowpregel[langchain]'"
    ) from _error

from flowpregel.plugins.langchain.agent import AgentState, create_react_agent
from flowpregel.plugins.langchain.create import create_agent
from flowpregel.plugins.langchain.injected import (
    InjectedState,
    InjectedStore,
    ToolRuntime,
)
from flowpregel.plugins.langchain.messages import MessagesState
from flowpregel.plugins.langchain.messages import add_langchain_messages as add_messages
from flowpregel.plugins.langchain.messages import (
    reduce_langchain_messages as reduce_messages,
)
from flowpregel.plugins.langchain.requests import (
    AsyncToolCallWrapper,
    ToolCallRequest,
    ToolCallWithContext,
    ToolCallWrapper,
)
from flowpregel.plugins.langchain.tools import ToolNode, tools_condition
from flowpregel.types import Command

__all__ = [
    "AgentState",
    "AsyncToolCallWrapper",
    "InjectedState",
    "InjectedStore",
    "MessagesState",
    "ToolCallRequest",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolNode",
    "ToolRuntime",
    "add_messages",
    "create_agent",
    "create_react_agent",
    "reduce_messages",
    "tools_condition",
]

if not issubclass(Command, ToolOutputMixin):
    # LangChain converts a tool's result to the text of a message, unless the class of
    # the result is derived from `ToolOutputMixin`. So `Command` gets this base class.
    Command.__bases__ = (*Command.__bases__, ToolOutputMixin)
