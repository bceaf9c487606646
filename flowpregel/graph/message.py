"""Messages in a state, as a list that a reducer merges by message id.

A message is any object or dict. LangChain's messages are recognised without importing
LangChain.
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
    """A request to remove a message from the list."""

    id: str
    """The id of the message, or `REMOVE_ALL_MESSAGES`."""


def add_messages(left: Any, right: Any) -> list[Any]:
    """Return *left* with the messages of *right*: new messages are added, and messages
    with known ids are replaced.

    A message is a dict or an object with an ``id``. A message without an id is copied,
    and the copy gets a new id. Other keys, such as those of ``{"role": ..., "content":
    ...}``, have no meaning here. A `RemoveMessage`, or a message of ``type`` "remove",
    removes the message with the same id. If one message is a LangChain message, all
    messages are converted to LangChain messages.

    Args:
        left: The list, or one message.
        right: The messages to add: a list, or one message.

    Raises:
        ConfigurationError: *left* or *right* is None.
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
    messages, updates = _listed(left), _listed(right)
    if _has_langchain(messages) or _has_langchain(updates):
        messages, updates = langchain_messages(messages), langchain_messages(updates)
    merged = _MessageList(messages)
    for update in updates:
        merged.apply(_identified(update))
    return merged.remaining()


class _MessageList:
    """A list of messages to which updates are applied one after the other."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = [_identified(message) for message in messages]
        self._positions: dict[Any, int] = {}
        for position, message in enumerate(self._messages):
            self._positions[_field(message, "id")] = position
        self._removed: set[Any] = set()

    def apply(self, update: Any) -> None:
        """Add, replace or remove a message.

        Raises:
            ValueError: The id of a message to remove is not in the list.
        """
        key = _field(update, "id")
        if not _is_removal(update):
            self._put(key, update)
        elif key == REMOVE_ALL_MESSAGES:
            self._messages.clear()
            self._positions.clear()
            self._removed.clear()
        elif key in self._positions:
            self._removed.add(key)
        else:
            raise ValueError(
                "Attempting to delete a message with an ID that doesn't exist "
                f"({key!r})"
            )

    def _put(self, key: Any, message: Any) -> None:
        self._removed.discard(key)
        if key in self._positions:
            self._messages[self._positions[key]] = message
        else:
            self._positions[key] = len(self._messages)
            self._messages.append(message)

    def remaining(self) -> list[Any]:
        """Return the messages that were not removed."""
        return [
            message
            for message in self._messages
            if _field(message, "id") not in self._removed
        ]


def _is_removal(message: Any) -> bool:
    return isinstance(message, RemoveMessage) or _field(message, "type") == "remove"


def _has_langchain(messages: list[Any]) -> bool:
    """Return whether *messages* contains a LangChain message, without importing
    LangChain.
    """
    langchain = sys.modules.get("langchain_core.messages")
    if langchain is None:
        return False
    return any(isinstance(message, langchain.BaseMessage) for message in messages)


class MessagesState(TypedDict):
    """A state with a list of messages. A subclass may add keys."""

    messages: Annotated[list[Any], add_messages]


def langchain_messages(messages: Any) -> list[Any]:
    """Return *messages* as LangChain messages.

    Args:
        messages: A list, or one message: an object, a chunk, a dict, a pair or a text.
    """
    from langchain_core.messages import (  # noqa: PLC0415 - an extra
        convert_to_messages,
        message_chunk_to_message,
    )

    converted: list[Any] = []
    for message in _listed(messages):
        if isinstance(message, dict | list | tuple | str):
            converted += convert_to_messages([message])
        else:
            converted.append(message_chunk_to_message(message))
    return converted


def _listed(messages: Any) -> list[Any]:
    return messages if isinstance(messages, list) else [messages]


def _field(message: Any, name: str) -> Any:
    if isinstance(message, Mapping):
        return message.get(name)
    return getattr(message, name, None)


def _identified(message: Any) -> Any:
    """Return *message* with an id.

    Raises:
        ConfigurationError: *message* has no id, and cannot get one.
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
        copied = copy.copy(message)
        copied.id = str(uuid.uuid4())
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{message!r} has no id and cannot be given one; a message is a dict, or "
            "an object with an id"
        ) from error
    return copied
