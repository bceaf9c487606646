"""A list of LangChain's messages in a state, and the reducer that merges it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from langchain_core.messages import AnyMessage, convert_to_messages, convert_to_openai_messages
from typing_extensions import TypedDict  # before Python 3.12 pydantic, for a tool, takes no other

from flowpregel.errors import ConfigurationError
from flowpregel.graph.message import add_messages as merged_messages
from flowpregel.graph.message import langchain_messages


def add_messages(
    left: Any = None, right: Any = None, *, format: Literal["langchain-openai"] | None = None
) -> Any:
    """Return *left* with the messages of *right*: new ones added, known ids replaced.

    As `flowpregel.graph.add_messages`, but all become LangChain's messages: dicts,
    ``("user", "hi")`` pairs and plain texts too; the chunks of a stream become whole.

    Args:
        left: The list, or one message.
        right: What is added: a list, or one message.
        format: ``"langchain-openai"`` gives contents the form that OpenAI's have.
            Without messages, return the reducer that does so.

    Raises:
        ConfigurationError: One of the two lists is None, or there is no such format.
        ValueError: A `RemoveMessage` names an id that is not in the list.

    Example:
        >>> [hi] = add_messages([], ("user", "hi"))
        >>> hi.type, hi.content
        ('human', 'hi')
    """
    if format not in (None, "langchain-openai"):
        raise ConfigurationError(f"format={format!r}; use 'langchain-openai', or leave it out")
    if left is None and right is None:
        return partial(add_messages, format=format)
    sides = [side if side is None else langchain_messages(side) for side in (left, right)]
    merged = merged_messages(*sides)
    return merged if format is None else convert_to_messages(convert_to_openai_messages(merged))


class ChatState(TypedDict):
    """A state with a list of LangChain's messages; make subclasses of it to add keys."""

    messages: Annotated[list[AnyMessage], add_messages]


MessagesState = ChatState
"""The name that LangGraph's programs know it by."""
