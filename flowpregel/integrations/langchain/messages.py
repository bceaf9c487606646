"""LangChain's messages: a list of them in a state, and the stream mode ``messages``.

That has what models say in nodes, and the messages that nodes write::

    model -ModelListener-> Said -its task's stream-> MessageStream -> message, metadata
                                 a task that ended ------^
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.messages import utils as langchain
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.tracers.context import register_configure_hook

# before Python 3.12 pydantic, for a tool, takes no other
from typing_extensions import TypedDict

from flowpregel._core.effects import Said
from flowpregel._core.records import RETURN, Task
from flowpregel.carried import carry
from flowpregel.context import config_of, current, labels_of
from flowpregel.errors import ConfigurationError
from flowpregel.graph.message import add_messages as merged_messages
from flowpregel.graph.message import langchain_messages


def add_messages(
    left: Any = None,
    right: Any = None,
    *,
    format: Literal["langchain-openai"] | None = None,
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
        raise ConfigurationError(
            f"format={format!r}; use 'langchain-openai', or leave it out"
        )
    if left is None and right is None:
        return partial(add_messages, format=format)
    sides = [
        side if side is None else langchain_messages(side) for side in (left, right)
    ]
    merged = merged_messages(*sides)
    if format is None:
        return merged
    return langchain.convert_to_messages(langchain.convert_to_openai_messages(merged))


class ChatState(TypedDict):
    """A state with a list of LangChain's messages; make subclasses of it to add
    keys.
    """

    messages: Annotated[list[AnyMessage], add_messages]


MessagesState = ChatState
"""The name that LangGraph's programs know it by."""


class ModelListener(BaseCallbackHandler):
    """Gives the stream of the running task what chat models say in it."""

    run_inline = True

    def __init__(self) -> None:
        self._open: dict[UUID, Any] = {}
        """Of each model that speaks: the stream's writer, and the metadata of what it
        says.
        """

    def __reduce__(self) -> Any:
        return ModelListener, ()

    def tap_output_iter(self, run_id: UUID, output: Any) -> Any:
        """Return *output*. By these methods LangChain knows that models are to stream
        to it.
        """
        return output

    tap_output_aiter = tap_output_iter

    def on_chat_model_start(self, *_: Any, run_id: UUID, **given: Any) -> None:
        """Listen to a model, unless it is tagged ``nostream``."""
        scope, tags = current.get(), given.get("tags") or []
        if scope is None or "nostream" in tags:
            return
        config = config_of(scope)
        metadata = {**(given.get("metadata") or {}), **config["metadata"]}
        tags = dict.fromkeys((*config.get("tags", ()), *tags))
        if shown := [tag for tag in tags if not tag.startswith("seq:step")]:
            metadata["tags"] = shown
        self._open[run_id] = scope.ends.emit, metadata

    def on_llm_new_token(
        self, *_: Any, run_id: UUID, chunk: Any = None, **__: Any
    ) -> None:
        """Hand on a part of what it says."""
        if isinstance(chunk, ChatGenerationChunk) and run_id in self._open:
            emit, metadata = self._open[run_id]
            emit(Said(chunk.message, metadata, is_part=True))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Hand on all that it said: it counts if it was not streamed."""
        emit, metadata = self._open.pop(run_id, (None, {}))
        said = next(
            (answer for answers in response.generations for answer in answers), None
        )
        if emit is not None and isinstance(said, ChatGeneration):
            emit(Said(_with_id(said.message), metadata))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Listen no longer."""
        self._open.pop(run_id, None)


listener: ContextVar[Any] = carry(ContextVar("listener", default=None))
"""What LangChain gives each model that is called where it is set."""
register_configure_hook(listener, inheritable=True)


class MessageStream:
    """Makes the items of mode ``messages`` of what the tasks of one run emit and write.

    Args:
        metadata: The run's.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._seen: set[str | None] = set()

    def variables(self) -> Context:
        """Return the current context variables, where models are listened to from now
        on.
        """
        found = copy_context()
        found.run(listener.set, ModelListener())
        return found

    def items(
        self, event: Said | tuple[Task, int]
    ) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Yield what a task emitted, or has written: parts of messages, and each whole
        one once.

        Args:
            event: What a model said, or a task that has ended and the index of its
                superstep.
        """
        found: Iterable[BaseMessage]
        if isinstance(event, Said):
            found, metadata = [event.message], event.metadata
        else:
            task, step = event
            self._seen.update(
                message.id for message in _messages_in(_fields(task.input))
            )
            written = [
                _fields(value) if name == RETURN else [value]
                for name, value in task.writes
            ]
            found = (message for fields in written for message in _messages_in(fields))
            metadata = {**self._metadata, **labels_of(task, step)}
        is_part = isinstance(event, Said) and event.is_part
        for message in found:
            if is_part or _with_id(message).id not in self._seen:
                self._seen.add(message.id)
                yield message, metadata


def _with_id(message: BaseMessage) -> BaseMessage:
    """Return *message*, which has an id from now on: the state is to have it with the
    same.
    """
    message.id = message.id or str(uuid4())
    return message


def _messages_in(fields: Iterable[Any]) -> Iterator[BaseMessage]:
    for field in fields:
        items = field if isinstance(field, list | tuple) else [field]
        yield from (item for item in items if isinstance(item, BaseMessage))


def _fields(value: Any) -> Iterable[Any]:
    """Return the fields of a state; what is none is its own only one."""
    if isinstance(value, BaseMessage | list | tuple):
        return [value]
    return (
        value if isinstance(value, dict) else getattr(value, "__dict__", {})
    ).values()
