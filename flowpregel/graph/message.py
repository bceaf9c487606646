"""Messages in a state, as a list that a reducer merges by message id.

A message is any object or dict. LangChain's messages are recognised without importing
LangChain.

A message gets its id when a task writes it, and before the write is stored or shown::

    a node returns a message without an id
      |
      v
    `messages_with_ids` gives it an id, made from the id of the task and the position
      |
      +--> the stored write, the streams ``updates`` and ``tasks``, the cache of a node
      |
      v
    the reducer, `add_messages` or `reduce_messages`, merges it into the state

So all of them have the same id, and a later read of the thread does too.
"""

from __future__ import annotations

import copy
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypedDict, TypeVar

from flowpregel._core.ids import task_id
from flowpregel.channels.base import MISSING
from flowpregel.channels.folding import (
    Overwrite,
    ReducerHooks,
    replacement,
    with_hooks,
)
from flowpregel.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Any])

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""The id of a `RemoveMessage` that drops every message before it."""


@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """A request to remove a message from the list of messages in the state."""

    id: str
    """The id of the message to remove, or `REMOVE_ALL_MESSAGES`."""


# ---------------------------------------------------------------- ids


def messages_with_ids(write: Any, identity: str) -> Any:
    """Return *write* in a form in which each message has an id.

    A message without an id is copied, and the copy gets an id. A pair or a string,
    which has no field for an id, becomes a dict. A value that cannot get an id is
    returned unchanged, and the reducer refuses it.

    Args:
        write: A list of messages, one message, or an `Overwrite` of either.
        identity: A string that is unique to the write. It determines the ids, so that a
            task that runs again after a crash gives its messages the same ids.

    Example:
        >>> [message] = messages_with_ids([{"content": "hi"}], "task 1")
        >>> [message] == messages_with_ids([{"content": "hi"}], "task 1")
        True
    """
    new_value = replacement(write)
    if new_value is not MISSING:
        prepared = _with_ids(new_value, identity)
        return write if prepared is new_value else Overwrite(prepared)
    return _with_ids(write, identity)


def _with_ids(messages: Any, identity: str) -> Any:
    """Return *messages* with ids, or the same object if each of them has one."""
    if messages is None:
        return None
    if not isinstance(messages, list):
        return _message_with_id(messages, identity, 0)
    prepared = [
        _message_with_id(message, identity, position)
        for position, message in enumerate(messages)
    ]
    pairs = zip(prepared, messages, strict=True)
    is_changed = any(message is not original for message, original in pairs)
    return prepared if is_changed else messages


def _message_with_id(message: Any, identity: str, position: int) -> Any:
    try:
        return _identified(message, partial(task_id, identity, position))
    except ConfigurationError:
        # The message is returned without an id. The reducer then raises the error, with
        # a note that names the channel.
        return message


def _new_id() -> str:
    return str(uuid.uuid4())


def _identified(message: Any, new_id: Callable[[], str] = _new_id) -> Any:
    """Return *message* with an id.

    Args:
        message: A message in any form: an object, a dict, a pair or a string.
        new_id: A function that returns an id for a message that has none.

    Raises:
        ConfigurationError: *message* has no id, and cannot get one.
    """
    message = _unabbreviated(message)
    if _field(message, "id") is not None:
        return message
    if isinstance(message, Mapping):
        return {**message, "id": new_id()}
    try:
        copied = copy.copy(message)
        copied.id = new_id()
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{message!r} has no id and cannot be given one; a message is a dict, or "
            "an object with an id"
        ) from error
    return copied


def _unabbreviated(message: Any) -> Any:
    """Return the dict for a (role, content) pair or a string, and any other *message*
    unchanged.
    """
    if isinstance(message, str):
        return {"role": "user", "content": message}
    is_pair = isinstance(message, tuple | list) and len(message) == 2
    if is_pair and isinstance(message[0], str):
        return {"role": message[0], "content": message[1]}
    return message


# ---------------------------------------------------------------- reducers


def message_reducer(reducer: Function) -> Function:
    """Have the channel of a reducer give ids to messages when they are written.

    Use this decorator for a reducer of your own that merges messages. Streams, the
    state and later reads of a thread then have the same ids.

    Args:
        reducer: A function that takes the list and a write, or, for `DeltaChannel`, the
            list and several writes.

    Example:
        >>> from typing import Annotated, TypedDict
        >>> from flowpregel.graph import add_messages
        >>> @message_reducer
        ... def keep_last_ten(left: list, right: list) -> list:
        ...     return add_messages(left, right)[-10:]
        >>> class State(TypedDict):
        ...     messages: Annotated[list, keep_last_ten]
    """
    return with_hooks(ReducerHooks(prepare=messages_with_ids))(reducer)


@message_reducer
def add_messages(left: Any, right: Any) -> list[Any]:
    """Return *left* with the messages of *right*: new messages are added, and messages
    with known ids are replaced.

    A message is a dict or an object with an ``id``. A message without an id is copied,
    and the copy gets a new id. Other keys, such as those of ``{"role": ..., "content":
    ...}``, are not interpreted. A `RemoveMessage`, or a message of ``type`` "remove",
    removes the message with the same id. If one message is a LangChain message, all
    messages are converted to LangChain messages.

    In a state, messages get their ids when a node writes them, so streams, the state
    and later reads of it have the same ids.

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
    merged = MessageList(left)
    merged.apply(right)
    return merged.messages


class MessageList:
    """A list of messages to which writes are added one after the other, with an index
    of the messages by id.

    Args:
        messages: The messages to begin with: a list, or one message.
        convert: A function that converts the messages of each write, or None.

    Raises:
        ConfigurationError: *messages* is None.
    """

    def __init__(
        self, messages: Any, convert: Callable[[Any], Any] | None = None
    ) -> None:
        self._convert = convert
        self._is_langchain = False
        """True if the messages are LangChain messages. Either all of them are, or none.
        """
        self.messages: list[Any] = []
        """The present messages. The list is replaced when messages are removed."""
        self.positions: dict[Any, int] = {}
        """The position of each message in the list, by id."""
        self._replace_all(self._converted(messages))

    def continues(self, value: Any) -> bool:
        """Return whether *value* is the present list.

        The result is also False if a node has added a message to the present list in
        place, because the index lacks the message.
        """
        return value is self.messages and len(value) == len(self.positions)

    def copy(self, value: list[Any]) -> MessageList:
        """Return an independent copy of this object. Its present list is *value*, which
        is a copy of the present list.
        """
        copied = copy.copy(self)
        copied.messages = value
        copied.positions = self.positions.copy()
        return copied

    def add(self, writes: Sequence[Any]) -> list[Any]:
        """Return a new list with *writes* added. The present list is not modified."""
        self.messages = self.messages.copy()
        for write in writes:
            self.apply(write)
        return self.messages

    def apply(self, write: Any) -> None:
        """Add, replace or remove the messages of *write*: a list, or one message.

        Raises:
            ConfigurationError: *write* is None, or a message cannot get an id.
            ValueError: The id of a message to remove is not in the list.
        """
        updates = self._converted(write)
        removed: set[Any] = set()
        for update in updates:
            self._apply_one(_identified(update), removed)
        if removed:
            remaining = [
                message
                for message in self.messages
                if _field(message, "id") not in removed
            ]
            self._replace_all(remaining)
        if not self.messages:
            self._is_langchain = False

    def _converted(self, messages: Any) -> list[Any]:
        """Return *messages* as a list, in the form in which they are merged.

        If the first LangChain message is among them, the present messages are converted
        to LangChain messages too.
        """
        if messages is None:
            raise ConfigurationError(
                "add_messages takes two lists of messages, and got None"
            )
        if self._convert is not None:
            messages = self._convert(messages)
        updates = _listed(messages)
        if not self._is_langchain and _has_langchain(updates):
            self._is_langchain = True
            self._replace_all(langchain_messages(self.messages))
        return langchain_messages(updates) if self._is_langchain else updates

    def _replace_all(self, messages: list[Any]) -> None:
        identified: list[Any] = []
        positions: dict[Any, int] = {}
        for original in messages:
            message = original
            key = _field(message, "id")
            if key is None:
                message = _identified(message)
                key = _field(message, "id")
            positions[key] = len(identified)
            identified.append(message)
        self.messages = identified
        self.positions = positions

    def _apply_one(self, update: Any, removed: set[Any]) -> None:
        """Add or replace a message, or, if *update* removes a message, add that
        message's id to *removed*.
        """
        key = _field(update, "id")
        if not _is_removal(update):
            removed.discard(key)
            self._put(key, update)
        elif key == REMOVE_ALL_MESSAGES:
            self.messages.clear()
            self.positions.clear()
            removed.clear()
        elif key in self.positions:
            removed.add(key)
        else:
            raise ValueError(
                "Attempting to delete a message with an ID that doesn't exist "
                f"({key!r})"
            )

    def _put(self, key: Any, message: Any) -> None:
        position = self.positions.get(key)
        if position is None:
            self.positions[key] = len(self.messages)
            self.messages.append(message)
        else:
            self.messages[position] = message


@with_hooks(ReducerHooks(prepare=messages_with_ids, fold=MessageList))
def reduce_messages(
    messages: list[Any],
    writes: Sequence[Any],
    *,
    convert: Callable[[Any], Any] | None = None,
) -> list[Any]:
    """Return *messages* with several writes merged as `add_messages` merges each.

    This is a reducer for `DeltaChannel`, which stores what a superstep writes instead
    of the whole list, as long threads need. A write is a list or one message. It may
    add, replace and remove messages as for `add_messages`.

    Args:
        messages: The present list of messages.
        writes: The writes, oldest first.
        convert: A function that converts each list or message before it is merged.

    Raises:
        ConfigurationError: A write is None, or a message cannot get an id.
        ValueError: A `RemoveMessage` names an id that is not in the list.

    Example:
        >>> from typing import Annotated, TypedDict
        >>> from flowpregel.channels import DeltaChannel
        >>> from flowpregel.graph.message import RemoveMessage
        >>> class State(TypedDict):
        ...     messages: Annotated[list, DeltaChannel(reduce_messages)]
        >>> hi = {"id": "1", "content": "hi"}
        >>> reduce_messages([hi], [[RemoveMessage("1")], {"id": "2", "content": "bye"}])
        [{'id': '2', 'content': 'bye'}]
    """
    return MessageList(messages, convert).add(writes)


_messages_delta_reducer = reduce_messages
"""The name that programs written for LangGraph use for `reduce_messages`."""


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
    """A state with a list of messages, to which `add_messages` adds the messages that
    nodes write. A subclass may add keys.
    """

    messages: Annotated[list[Any], add_messages]
    """The messages, in the order in which they were added."""


def langchain_messages(messages: Any) -> list[Any]:
    """Return *messages* as LangChain messages.

    Args:
        messages: A list, or one message: an object, a chunk, a dict, a pair or a
            string.
    """
    from langchain_core.messages import (  # noqa: PLC0415 - an extra
        BaseMessage,
        BaseMessageChunk,
        convert_to_messages,
        message_chunk_to_message,
    )

    listed = _listed(messages)
    # Most lists need no conversion. To find that out is fast, because even a long list
    # has messages of only a few classes.
    classes = set(map(type, listed))
    if all(
        issubclass(cls, BaseMessage) and not issubclass(cls, BaseMessageChunk)
        for cls in classes
    ):
        return listed
    converted: list[Any] = []
    for message in listed:
        if isinstance(message, dict | list | tuple | str):
            converted += convert_to_messages([message])
        else:
            converted.append(message_chunk_to_message(message))
    return converted


def _listed(messages: Any) -> list[Any]:
    return messages if isinstance(messages, list) else [messages]


def _field(message: Any, name: str) -> Any:
    # The check for a dict comes first, because the check for a Mapping is slow.
    if isinstance(message, dict) or isinstance(message, Mapping):  # noqa: SIM101
        return message.get(name)
    return getattr(message, name, None)
