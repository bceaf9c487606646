"""The items of a run's stream, in the form that the reader requested."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from flowpregel._core.program import names
from flowpregel._core.provenance import CodeNotice, OtherCodeNotice
from flowpregel._core.records import INTERRUPT
from flowpregel._core.run import Result
from flowpregel._engine.drivers import Item
from flowpregel._entry_points import STREAMS, load_plugin
from flowpregel._inspection.code_changes import difference_in
from flowpregel._tracebacks import CodeLine, give_notice
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.invocation import WHOLE_OUTPUT, InvocationOptions
from flowpregel.pregel.progress import MODES, ProgressView
from flowpregel.pregel.snapshot import GraphOutput
from flowpregel.pregel.views import view_of

MODEL_MODES: Final = frozenset({"messages", "tools"})
"""The stream modes that show the calls of models and tools."""


def message_stream(
    modes: frozenset[str],
    metadata: Mapping[str, Any],
    *,
    as_events: bool,
) -> Any:
    """Return the object that listens to models and tools, and creates the items of
    stream mode ``messages``.

    Args:
        modes: The modes that are read: ``messages``, ``tools`` or both.
        metadata: The metadata of the run.
        as_events: Whether the output of models is shown as events of content blocks.

    Raises:
        ConfigurationError: LangChain is not installed.
    """
    make_stream = load_plugin(STREAMS, "messages")
    return make_stream(metadata, modes, as_events=as_events)


class StreamItems:
    """A converter of a run's events to the form that the reader requested. It also
    prints the events of the print modes.

    Args:
        definition: The parts of the graph.
        invocation: The options of the run.
        mode: The stream mode that the user passed, or None for the graph's default.
        saver: The store of earlier code, for notices.
        streams: Whether `Pregel.stream` was called.
    """

    def __init__(
        self,
        definition: GraphDefinition,
        invocation: InvocationOptions,
        mode: Any,
        saver: BaseCheckpointSaver | None,
        *,
        streams: bool,
    ) -> None:
        self._definition = definition
        self._version = invocation.version
        self._saver = saver
        self.started_at: CodeLine | None = None
        """The line of the user's program that started the run, if the run has its own
        OS thread. Notices refer to this line.
        """
        self._with_namespace = invocation.subgraphs
        self._with_mode = not isinstance(mode, str | None)
        self.modes: tuple[str, ...] = ()
        """The stream modes that the user reads. The tuple is empty if only the output
        is read.
        """
        if streams or mode not in WHOLE_OUTPUT:
            self.modes = names(invocation.stream_mode)
        self._printed = names(invocation.print_mode)
        if invocation.debug:
            self._printed = ("updates", "values")
        self.view: ProgressView | None = (
            view_of(definition.name) if invocation.progress else None
        )
        """The live view of the run, if it has one."""

    def read_modes(self) -> frozenset[str]:
        """Return all stream modes that the user, the printer or the view reads."""
        modes = {*self.modes, *self._printed}
        if self.view is not None:
            modes.update(MODES)
        return frozenset(modes)

    def items(self, event: Item) -> Iterator[Any]:
        """Yield *event* in the requested form, if the user reads the event's mode."""
        namespace, mode, payload = event
        if self.view is not None:
            self.view.see(event)
        if mode == "notices":
            payload = self._notice(payload)
            give_notice(payload, self.started_at)
        if mode in self._printed:
            path = f" [{'|'.join(namespace)}]" if namespace else ""
            sys.stdout.write(f"[{mode}]{path} {payload!r}\n")
        if mode not in self.modes:
            return
        if self._version != "v1":
            yield self._record(namespace, mode, payload)
            return
        parts: list[Any] = []
        if self._with_namespace:
            parts.append(namespace)
        if self._with_mode:
            parts.append(mode)
        yield (*parts, payload) if parts else payload

    def _notice(self, notice: Any) -> Any:
        """Return the text of a notice, with the lines of code that differ."""
        if not isinstance(notice, OtherCodeNotice | CodeNotice):
            return notice
        difference = ""
        if self._saver is not None:
            difference = difference_in(self._saver, notice.recorded, notice.now)
        return notice.text(difference)

    def _record(
        self,
        namespace: tuple[str, ...],
        mode: str,
        payload: Any,
    ) -> dict[str, Any]:
        """Return an event in the form of ``version="v2"`` and ``"v3"``."""
        record = {"type": mode, "ns": namespace, "data": payload}
        if mode != "values":
            return record
        values = payload
        interrupts: Any = ()
        if isinstance(payload, dict):
            values = dict(payload)
            interrupts = values.pop(INTERRUPT, ())
        record["data"] = values if namespace else self._definition.shaped(values)
        record["interrupts"] = interrupts
        return record

    def output(self, result: Result) -> Any:
        """Return the output of a run that has ended."""
        if self._version != "v1":
            values = self._definition.shaped(result.values)
            return GraphOutput(values, result.interrupts)
        if not result.interrupts:
            return result.values
        output: Mapping[str, Any] = {}
        if isinstance(result.values, dict):
            output = result.values
        return {**output, INTERRUPT: list(result.interrupts)}
