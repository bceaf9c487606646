"""`MessagesState` and the reducers of messages: LangChain's if langchain-core is
installed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

from flowpregel.graph import message_reducer

try:
    from flowpregel.plugins.langchain import (
        MessagesState,
        add_messages,
        reduce_messages,
    )
except ImportError:
    # Without langchain-core, these names are those of flowpregel's own messages.
    # LangGraph cannot even be installed without langchain-core. But under the import
    # hook, a graph that uses only these messages runs without langchain-core.
    from flowpregel.graph import (  # type: ignore[assignment]
        MessagesState,
        add_messages,
        reduce_messages,
    )

__all__ = ["MessagesState", "add_identified_messages", "reduce_messages"]


@message_reducer
def add_identified_messages(left: Any = None, right: Any = None, **options: Any) -> Any:
    """Return *left* with the messages of *right*, as flowpregel's `add_messages` does.

    As in LangGraph, the message objects in *right* themselves get ids. So if a
    program's reducer calls this function several times with a message, for the state
    that a conditional edge reads and at the end of the superstep, the message has the
    same id each time.

    Args:
        left: The list, or one message.
        right: The messages to add, or one message.
        options: Options of `add_messages`.

    Raises:
        ConfigurationError: As of `add_messages`.
    """
    for message in right if isinstance(right, list) else [right]:
        if getattr(message, "id", "") is None:
            # A message that cannot be changed is copied by `add_messages`.
            with suppress(AttributeError, TypeError, ValueError):
                message.id = str(uuid4())
    return add_messages(left, right, **options)
