"""Messages in a state: a list that a reducer merges by id. Any objects or dicts will
do.
"""

from __future__ import annotations

import copy
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

from flowpregel.errors import ConfigurationError

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""The id of a `RemoveMessage` that drops every message before it."""


@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """Takes the message with this id out of the list."""

    id: str


def add_messages(left: Any, right: Any) -> list[Any]:
    """Return *left* with the messages of *right*: new ones added, known ids replaced.

    A message is a dict, or an object, with an ``id``; one without gets a new one
    (on a copy, if it can be copied). A dict may be ``{"role": ..., "content":
    ...}``; what is in it does not matter here. A `RemoveMessage`, or any message
    of ``type`` "remove", takes out the one with its id. Beside a message of
    LangChain's, all become such messages.

    Args:
        left: The list, or one message.
        right: What is added: a list, or one message.

    Raises:
        ConfigurationError: One of the two is None.
        ValueError: A `RemoveMessage` names an id that is not in the list.

    Example:
        >>> one = [{"id": "1", "content": "hi"}]
        >>> add_messages(one, {"id": "1", "content": "hello"})
        [{'id': '1', 'content': 'hello'}]
    """
    if left is None or right is None:
        raise ConfigurationError(
            "add_messages takes two lists of messages, and got None"
        )
    left, right = _listed(left), _listed(right)
    langchain = sys.modules.get("langchain_core.messages")
    if langchain and any(
        isinstance(each, langchain.BaseMessage) for each in (*left, *right)
    ):
        left, right = langchain_messages(left), langchain_messages(right)
    merged = [_identified(message) for message in left]
    places = {_field(message, "id"): index for index, message in enumerate(merged)}
    removed: set[Any] = set()
    for message in map(_identified, right):
        key = _field(message, "id")
        if (
            not isinstance(message, RemoveMessage)
            and _field(message, "type") != "remove"
        ):
            removed.discard(key)
            if key in places:
                merged[places[key]] = message
            else:
                places[key] = len(merged)
                merged.append(message)
        elif key == REMOVE_ALL_MESSAGES:
            merged, places, removed = [], {}, set()
        elif key in places:
            removed.add(key)
        else:
            raise ValueError(
                "Attempting to delete a message with an ID that doesn't exist "
                f"({key!r})"
            )
    return [message for message in merged if _field(message, "id") not in removed]


class MessagesState(TypedDict):
    """A state with a list of messages; make subclasses of it to add keys."""

    messages: Annotated[list[Any], add_messages]


def langchain_messages(messages: Any) -> list[Any]:
    """Return *messages*, a list or one, as LangChain's: chunks, dicts, pairs and texts
    too.
    """
    from langchain_core.messages import (  # noqa: PLC0415 - an extra
        convert_to_messages,
        message_chunk_to_message,
    )

    made: list[Any] = []
    for message in _listed(messages):
        if isinstance(message, dict | list | tuple | str):
            made += convert_to_messages([message])
        else:
            made.append(message_chunk_to_message(message))
    return made


def _listed(messages: Any) -> list[Any]:
    return messages if isinstance(messages, list) else [messages]


def _field(message: Any, name: str) -> Any:
    return (
        message.get(name)
        if isinstance(message, Mapping)
        else getattr(message, name, None)
    )


def _identified(message: Any) -> Any:
    """Return *message* with an id.

    Raises:
        ConfigurationError: It has none, and cannot be given one.
    """
    if isinstance(message, tuple) and len(message) == 2:
        message = {"role": message[0], "content": message[1]}
    elif isinstance(message, str):
        message = {"role": "user", "content": message}
    if _field(message, "id") is not None:
        return message
    if isinstance(message, Mapping):
        return {**message, "id": str(uuid.uuid4())}
    try:
        named = copy.copy(message)
        named.id = str(uuid.uuid4())
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{message!r} has no id and cannot be given one; a message is a dict, or "
            "an object "
            "with an id"
        ) from error
    return named
