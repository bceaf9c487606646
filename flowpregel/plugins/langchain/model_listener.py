"""The callback that passes the output of chat models to the running task's stream."""

from __future__ import annotations

from contextvars import ContextVar
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.tracers.context import register_configure_hook

from flowpregel import carry
from flowpregel.config import get_config
from flowpregel.plugins import ModelMessage
from flowpregel.runtime import get_runtime, is_inside_run


class ModelListener(BaseCallbackHandler):
    """A callback that passes the output of chat models to the running task's stream."""

    run_inline = True

    def __init__(self) -> None:
        self._open: dict[UUID, Any] = {}
        """The writer of the task's stream and the metadata, for each call of a model
        that has not ended, by the run id that LangChain has given the call.
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
        """Begin to pass on the output of a model, unless it is tagged ``nostream``."""
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
        """Emit a part of the model's output to the running task's stream."""
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
            emit(ModelMessage(with_id(generation.message), metadata))

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


def with_id(message: BaseMessage) -> BaseMessage:
    """Return *message*. If it has no id, give it a new one, so that the message in the
    state has the same id.
    """
    message.id = message.id or str(uuid4())
    return message
