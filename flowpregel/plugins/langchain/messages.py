"""LangChain's messages: reducers for a list of messages in a state, and the stream mode
``messages``.

The stream mode yields the output of models that nodes call, and the messages that nodes
write::

    model --ModelListener--> ModelMessage --the task's stream--> MessageStream
                                                                   ^      |
                                             a task that ended ----+      v
                                                                 (message, metadata)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import Context, copy_context
from functools import partial
from typing import Annotated, Any, Final, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AnyMessage, BaseMessage, ToolMessage
from langchain_core.messages import utils as langchain

# Python's own TypedDict is not used, because before Python 3.12 pydantic does not
# accept it in a tool.
from typing_extensions import TypedDict

from flowpregel.errors import ConfigurationError
from flowpregel.graph import add_messages, message_reducer, reduce_messages
from flowpregel.plugins import EndedTask, ModelMessage
from flowpregel.plugins.langchain.model_listener import (
    ModelListener,
    listener,
    with_id,
)
from flowpregel.plugins.langchain.node_manager import make_manager
from flowpregel.plugins.langchain.tool_stream import ToolListener, tool_listener


@message_reducer
def add_langchain_messages(
    left: Any = None,
    right: Any = None,
    *,
    format: Literal["langchain-openai"] | None = None,
) -> Any:
    """Return *left* with the messages of *right*: new ones added, known ids replaced.

    The package offers this function as ``add_messages``. It merges as
    `flowpregel.graph.add_messages` does, but converts every message to a LangChain
    message: dicts, ``("user", "hi")`` pairs and plain strings too. Chunks of a stream
    become complete messages.

    Args:
        left: The list, or one message.
        right: The list to add, or one message.
        format: ``"langchain-openai"`` gives the contents of messages the form that
            OpenAI uses. Without messages, return the reducer that does so.

    Raises:
        ConfigurationError: One of the two lists is None, or the format is unknown.
        ValueError: A `RemoveMessage` names an id that is not in the list.

    Example:
        >>> from flowpregel.plugins.langchain import add_messages
        >>> [hi] = add_messages([], ("user", "hi"))
        >>> hi.type, hi.content
        ('human', 'hi')
    """
    if format not in (None, "langchain-openai"):
        raise ConfigurationError(
            f"format={format!r}; use 'langchain-openai', or leave it out"
        )
    if left is None and right is None:
        return partial(add_langchain_messages, format=format)
    merged = add_messages(_converted(left), _converted(right))
    if format is None:
        return merged
    openai_messages = langchain.convert_to_openai_messages(merged)
    return langchain.convert_to_messages(openai_messages)


def _converted(messages: Any) -> list[Any] | None:
    """Return *messages* as a list in which dicts, pairs and strings are converted to
    LangChain messages. Other messages are not changed.
    """
    if messages is None:
        return None
    converted: list[Any] = []
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, dict | list | tuple | str):
            converted += langchain.convert_to_messages([message])
        else:
            converted.append(message)
    return converted


reduce_langchain_messages: Final = partial(reduce_messages, convert=_converted)
"""A reducer for `DeltaChannel` that converts every message to a LangChain message.

The package offers it as ``reduce_messages``. It merges as
`flowpregel.graph.reduce_messages` does.

Example:
    >>> from flowpregel.plugins.langchain import reduce_messages
    >>> [hi, hello] = reduce_messages([], [("user", "hi"), [("ai", "hello")]])
    >>> hi.type, hello.type
    ('human', 'ai')
"""
_messages_delta_reducer = reduce_langchain_messages
"""The name that programs written for LangGraph use for `reduce_langchain_messages`."""


class ChatState(TypedDict):
    """A state with a list of LangChain's messages; derive from it to add keys.

    Example:
        >>> class State(ChatState):
        ...     topic: str
        >>> sorted(State.__annotations__)
        ['messages', 'topic']
    """

    messages: Annotated[list[AnyMessage], add_langchain_messages]


MessagesState = ChatState
"""The name that programs written for LangGraph use for `ChatState`."""


class MessageStream:
    """The items of the stream mode ``messages``, from the messages that the tasks of
    one run emit and write.

    Args:
        metadata: The run's metadata.
        modes: The modes that are read: ``messages``, ``tools`` or both.
        as_events: Whether the output of models is yielded as events of content blocks.
            The answers of tools are then left out.
    """

    make_manager: Callable[..., BaseCallbackManager] = staticmethod(make_manager)
    """The function that passes the callback handlers of a run to the code of a node."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        modes: Collection[str] = ("messages",),
        *,
        as_events: bool = False,
    ) -> None:
        self._metadata = metadata
        self._modes = modes
        self._as_events = as_events
        self._seen: set[str | None] = set()

    def variables(self) -> Context:
        """Return the current context variables, with the callbacks that listen to
        models and tools.
        """
        context = copy_context()
        if "messages" in self._modes:
            context.run(listener.set, self._model_listener())
        if "tools" in self._modes:
            context.run(tool_listener.set, ToolListener())
        return context

    def _model_listener(self) -> ModelListener:
        if not self._as_events:
            return ModelListener()
        # The module is imported only for streams of events, because the first versions
        # of langchain-core lack the classes that it needs.
        from flowpregel.plugins.langchain.model_events import (  # noqa: PLC0415
            ModelEventListener,
        )

        return ModelEventListener()

    def items(
        self, event: ModelMessage | EndedTask
    ) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Yield the stream's items for *event*, each with metadata: parts of messages
        as they arrive, and messages that were not streamed in parts, once each.

        Args:
            event: The output of a model, or a node's task that has ended.
        """
        if isinstance(event, ModelMessage):
            if event.is_part:
                self._seen.add(_id_of_part(event.message))
                yield event.message, event.metadata
            elif self._add(event.message):
                yield event.message, event.metadata
        else:
            yield from self._written(event)

    def _written(self, task: EndedTask) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Yield the new messages that a task has written, with metadata."""
        for message in _messages_in(_fields(task.input)):
            self._seen.add(message.id)
        metadata = {**self._metadata, **task.metadata}
        for channel, value in task.writes:
            fields = _fields(value) if channel is None else [value]
            for message in _messages_in(fields):
                if self._shows(message) and self._add(message):
                    yield message, metadata

    def _shows(self, message: BaseMessage) -> bool:
        """Return whether the stream shows messages of the kind of *message*."""
        return not (self._as_events and isinstance(message, ToolMessage))

    def _add(self, message: BaseMessage) -> bool:
        """Record the id of *message*, and return whether the message is new."""
        with_id(message)
        if message.id in self._seen:
            return False
        self._seen.add(message.id)
        return True


def _id_of_part(part: Any) -> str | None:
    """Return the id of the message that *part*, a chunk or an event, belongs to."""
    message_id = getattr(part, "id", None)
    if isinstance(part, Mapping):
        message_id = part.get("message_id")
    return message_id


def _messages_in(fields: Iterable[Any]) -> Iterator[BaseMessage]:
    for field in fields:
        items = field if isinstance(field, list | tuple) else [field]
        for item in items:
            if isinstance(item, BaseMessage):
                yield item


def _fields(value: Any) -> Iterable[Any]:
    """Return the fields of a state. Any other value is regarded as the only field of a
    state.
    """
    if isinstance(value, BaseMessage | list | tuple):
        return [value]
    if isinstance(value, dict):
        return value.values()
    return getattr(value, "__dict__", {}).values()
