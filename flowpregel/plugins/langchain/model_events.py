"""The output of models as events of content blocks, for streams of version ``v3``."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.tracers._streaming import _V2StreamingCallbackHandler

from flowpregel.plugins import ModelMessage
from flowpregel.plugins.langchain.model_listener import ModelListener


class ModelEventListener(ModelListener, _V2StreamingCallbackHandler):
    """A callback that passes the events of models to the running task's stream.

    LangChain's models emit such events, in place of chunks, for a callback that has the
    second base class.
    """

    def __reduce__(self) -> Any:
        return ModelEventListener, ()

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        """Emit nothing, because LangChain also calls `on_stream_event` for this
        token.
        """

    def on_stream_event(
        self,
        event: Any,
        *,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Emit an event of a model to the running task's stream."""
        if run_id in self._open:
            emit, metadata = self._open[run_id]
            labels = {**metadata, "run_id": str(run_id)}
            emit(ModelMessage(event, labels, is_part=True))
