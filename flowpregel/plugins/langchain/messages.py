"""LangChain's messages: a list of them in a state, and the stream mode ``messages``.

The stream mode yields the output of models that nodes call, and the messages that nodes
write::

    model --ModelListener--> Said --the task's stream--> MessageStream
                                                           ^      |
                                     a task that ended ----+      v
                                                         (message, metadata)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context, ContextVar, copy_context
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final, Literal
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.messages import utils as langchain
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.tracers.context import register_configure_hook

# Python's own TypedDict is not used, because before Python 3.12 pydantic does not
# accept it in a tool.
from typing_extensions import TypedDict

from flowpregel import carry
from flowpregel.config import get_config
from flowpregel.errors import ConfigurationError
from flowpregel.graph import add_messages, message_reducer, reduce_messages
from flowpregel.plugins import EndedTask, ModelMessage
from flowpregel.runtime import get_runtime, is_inside_run


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
    message: dicts, ``("user", "hi")`` pairs and plain texts too. Chunks of a stream
    become complete messages.

    Args:
        left: The list, or one message.
        right: The list to add, or one message.
        format: ``"langchain-openai"`` gives contents the form that OpenAI's have.
            Without messages, return the reducer that does so.

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
    """Return *messages* as a list in which dicts, pairs and texts are converted to
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


class ModelListener(BaseCallbackHandler):
    """A callback that passes the output of chat models to the running task's stream."""

    run_inline = True

    def __init__(self) -> None:
        self._open: dict[UUID, Any] = {}
        """The stream's writer and the metadata of each call of a model, by the run id
        that LangChain gives the call.
        """

    def __reduce__(self) -> Any:
        return ModelListener, ()

    def tap_output_iter(
        self,
        run_id: UUID,
        output: Any,
    ) -> Any:
        """Return *output* unchanged. LangChain streams a model's output only to
        callbacks that have this method.
        """
        return output

    tap_output_aiter = tap_output_iter

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        **details: Any,
    ) -> None:
        """Listen to a model, unless it is tagged ``nostream``."""
        model_tags = details.get("tags") or []
        if "nostream" in model_tags or not is_inside_run():
            return
        config = get_config()
        metadata = dict(details.get("metadata") or {})
        metadata.update(config["metadata"])
        tags = []
        for tag in dict.fromkeys((*config.get("tags", ()), *model_tags)):
            if not tag.startswith("seq:step"):
                tags.append(tag)  # noqa: PERF401 - plainer than the comprehension
        if tags:
            metadata["tags"] = tags
        self._open[run_id] = (get_runtime().stream_writer, metadata)

    def on_llm_new_token(
        self,
        *_: Any,
        run_id: UUID,
        chunk: Any = None,
        **__: Any,
    ) -> None:
        """Emit a part of the model's output."""
        if isinstance(chunk, ChatGenerationChunk) and run_id in self._open:
            emit, metadata = self._open[run_id]
            emit(
                ModelMessage(
                    chunk.message,
                    metadata,
                    is_part=True,
                )
            )

    def on_llm_end(
        self,
        response: LLMResult,
        *,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Emit the model's whole output. The stream yields it only if its parts were
        not streamed.
        """
        emit, metadata = self._open.pop(run_id, (None, {}))
        if emit is None:
            return
        generations = chain.from_iterable(response.generations)
        generation = next(generations, None)
        if isinstance(generation, ChatGeneration):
            emit(ModelMessage(_with_id(generation.message), metadata))

    def on_llm_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Stop listening to a model whose call has failed."""
        self._open.pop(run_id, None)


listener: ContextVar[Any] = carry(ContextVar("listener", default=None))
"""A context variable with the callback that LangChain adds to each call of a model in
this context.
"""
register_configure_hook(listener, inheritable=True)


class MessageStream:
    """The items of the stream mode ``messages``, from the messages that the tasks of
    one run emit and write.

    Args:
        metadata: The run's metadata.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._seen: set[str | None] = set()

    def variables(self) -> Context:
        """Return the current context variables, with a listener to models."""
        context = copy_context()
        context.run(listener.set, ModelListener())
        return context

    def items(
        self, event: ModelMessage | EndedTask
    ) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Yield parts of messages, and each whole message once, with metadata.

        Args:
            event: The output of a model, or a node's task that has ended.
        """
        if isinstance(event, ModelMessage):
            if event.is_part:
                self._seen.add(event.message.id)
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
                if self._add(message):
                    yield message, metadata

    def _add(self, message: BaseMessage) -> bool:
        """Record the id of *message*, and return whether the message is new."""
        _with_id(message)
        if message.id in self._seen:
            return False
        self._seen.add(message.id)
        return True


def _with_id(message: BaseMessage) -> BaseMessage:
    """Return *message*. If it has no id, give it a new one, so that the message in the
    state has the same id.
    """
    message.id = message.id or str(uuid4())
    return message


def _messages_in(fields: Iterable[Any]) -> Iterator[BaseMessage]:
    for field in fields:
        items = field if isinstance(field, list | tuple) else [field]
        for item in items:
            if isinstance(item, BaseMessage):
                yield item


def _fields(value: Any) -> Iterable[Any]:
    """Return the fields of a state. A value that is not a state counts as a single
    field.
    """
    if isinstance(value, BaseMessage | list | tuple):
        return [value]
    if isinstance(value, dict):
        return value.values()
    return getattr(value, "__dict__", {}).values()
