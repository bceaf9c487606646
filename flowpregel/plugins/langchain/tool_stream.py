"""The stream mode ``tools``: the start, the output and the end of each tool's call.

::

    tool --ToolListener--> ToolEvent --the task's stream--> the reader
              ^
              |  parts of the output
    ToolRuntime.emit_output_delta
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from flowpregel import carry
from flowpregel.plugins import ToolEvent
from flowpregel.runtime import get_runtime, is_inside_run


class ToolListener(BaseCallbackHandler):
    """A callback that passes the events of tools to the running task's stream."""

    run_inline = True

    def __init__(self) -> None:
        self._open: dict[UUID, tuple[Callable[[Any], None], str]] = {}
        """The writer of the task's stream and the id of the call, for each running call
        of a tool, by the run id that LangChain has given the call.
        """

    def __reduce__(self) -> Any:
        return ToolListener, ()

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        *_: Any,
        run_id: UUID,
        **details: Any,
    ) -> None:
        """Emit the start of a call, unless the tool is tagged ``nostream``."""
        if "nostream" in (details.get("tags") or ()) or not is_inside_run():
            return
        call_id = details.get("tool_call_id") or str(run_id)
        name = (serialized or {}).get("name") or details.get("name") or ""
        self._open[run_id] = (get_runtime().stream_writer, call_id)
        tool_input = details.get("inputs")
        if tool_input is None:
            self._emit(run_id, "tool-started", tool_name=name)
        else:
            self._emit(run_id, "tool-started", tool_name=name, input=tool_input)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Emit the output of a call."""
        self._emit(run_id, "tool-finished", output=output)
        self._open.pop(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Emit the error of a call, unless the call was interrupted."""
        if isinstance(error, Exception):
            self._emit(run_id, "tool-error", message=str(error))
        self._open.pop(run_id, None)

    def on_output_delta(self, call_id: str | None, delta: Any) -> None:
        """Emit a part of the output of a running call."""
        for run_id, (_, open_call) in list(self._open.items()):
            if open_call == call_id:
                self._emit(run_id, "tool-output-delta", delta=delta)

    def _emit(self, run_id: UUID, event: str, **details: Any) -> None:
        """Emit an event of a call, unless the call's start was not emitted."""
        if run_id in self._open:
            emit, call_id = self._open[run_id]
            emit(ToolEvent({"event": event, "tool_call_id": call_id, **details}))


tool_listener: ContextVar[ToolListener | None] = carry(
    ContextVar("tool_listener", default=None)
)
"""A context variable with the callback that LangChain adds to each call of a tool in
this context.
"""
register_configure_hook(tool_listener, inheritable=True)


def send_output_delta(call_id: str | None, delta: Any) -> None:
    """Emit a part of the output of a running call of a tool, if a reader wants it.

    Args:
        call_id: The id of the call.
        delta: The part of the output.
    """
    listener = tool_listener.get()
    if listener is not None:
        listener.on_output_delta(call_id, delta)
