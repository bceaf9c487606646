"""`MessagesState` and `add_messages`: LangChain's if langchain-core is installed."""

from __future__ import annotations

try:
    from flowpregel.plugins.langchain import MessagesState, add_messages
except ImportError:
    # LangGraph needs langchain-core, but a graph without messages does not.
    from flowpregel.graph import (  # type: ignore[assignment]
        MessagesState,
        add_messages,
    )

__all__ = ["MessagesState", "add_messages"]
