"""OpenTelemetry: spans and metrics of runs, supersteps, calls and commits.

::

    run study
     └── superstep 0
          └── call study (the body)
               ├── call parse        with the spans of the task, in a worker too
               └── call parse
          └── commit

The spans are made by a tracer (see `flowpregel.tracing`), so a program that does not
call `instrument` runs no code for them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opentelemetry import context, metrics, trace

from flowpregel.tracing import (
    CallEnd,
    RunTracer,
    TracedCall,
    TracedRun,
    set_tracer,
)

__all__ = ["instrument", "uninstrument"]

_KINDS = ("run", "superstep", "call", "commit")


def instrument(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Record spans and metrics of all runs that this program starts from now on.

    Args:
        tracer_provider: The provider of spans; None: the global one.
        meter_provider: The provider of metrics; None: the global one.

    Example:
        >>> from flowpregel.plugins.opentelemetry import uninstrument
        >>> instrument()
        >>> uninstrument()
    """
    recorder = SpanRecorder(tracer_provider, meter_provider)
    set_tracer(partial(RunSpans, recorder))


def uninstrument() -> None:
    """Record no spans or metrics of runs that start from now on."""
    set_tracer(None)


class SpanRecorder:
    """A recorder of spans and metrics. `instrument` documents the arguments."""

    def __init__(
        self,
        tracer_provider: Any,
        meter_provider: Any,
    ) -> None:
        self._tracer = trace.get_tracer("flowpregel", tracer_provider=tracer_provider)
        meter = metrics.get_meter("flowpregel", meter_provider=meter_provider)
        self._counts = {}
        self._seconds = {}
        for kind in _KINDS:
            name = f"flowpregel.{kind}"
            self._counts[kind] = meter.create_counter(f"{name}s")
            self._seconds[kind] = meter.create_histogram(f"{name}.duration", "s")
        self.graphs: dict[tuple[Any, str], Any] = {}
        """The trace contexts of calls that run a nested graph, by the run and the
        namespace of the graph.
        """

    def begin(
        self,
        kind: str,
        name: str,
        parent: Any,
        **attributes: Any,
    ) -> OpenSpan:
        """Begin a span inside the context *parent*."""
        labels = {}
        for key, value in attributes.items():
            if value is not None:
                labels[f"flowpregel.{key}"] = value
        title = f"{kind} {name}".strip()
        span = self._tracer.start_span(
            title,
            parent,
            attributes=labels,
        )
        return OpenSpan(
            kind,
            name,
            span,
            inside=trace.set_span_in_context(span, parent),
        )

    def end(
        self,
        opened: OpenSpan,
        outcome: str = "done",
        error: BaseException | None = None,
        seconds: float | None = None,
    ) -> None:
        """End a span, and record its duration: *seconds*, or else the time since the
        span began.
        """
        span = opened.span
        if error is not None:
            outcome = "failed"
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.set_attribute("flowpregel.outcome", outcome)
        span.end()
        labels = {"flowpregel.outcome": outcome}
        # Each different label value costs memory in the metrics backend. So only runs
        # and calls, which have few different names, are labelled with the name.
        if opened.kind in ("run", "call"):
            labels["flowpregel.name"] = opened.name
        if seconds is None:
            seconds = time.monotonic() - opened.began
        self._counts[opened.kind].add(1, labels)
        self._seconds[opened.kind].record(seconds, labels)


@dataclass(eq=False)
class OpenSpan:
    """A span that has not ended."""

    kind: str
    name: str
    span: Any
    inside: Any
    """The trace context for spans inside this span."""
    began: float = field(default_factory=time.monotonic)


class RunSpans(RunTracer):
    """The spans of one run, outermost or nested."""

    def __init__(
        self,
        recorder: SpanRecorder,
        run: TracedRun,
    ) -> None:
        self._recorder = recorder
        self._run_id = run.run_id
        key = (run.run_id, run.namespace)
        parent = recorder.graphs.pop(
            key,
            context.get_current(),
        )
        self._run = recorder.begin(
            "run",
            run.name,
            parent,
            thread_id=run.thread_id,
            run_id=run.run_id,
        )
        self._step: OpenSpan | None = None
        self._commit: OpenSpan | None = None
        self._calls: dict[str, OpenSpan] = {}

    def call_began(self, call: TracedCall) -> None:
        step = self._step_span(str(call.step))
        caller = None
        if call.parent_id is not None:
            caller = self._calls.get(call.parent_id)
        parent = caller or step
        opened = self._recorder.begin(
            "call",
            call.name,
            parent.inside,
            task_id=call.task_id,
            attempt=call.attempt,
        )
        self._calls[call.task_id] = opened
        # The span becomes the current one for the task's code, even in a worker
        # process.
        call.variables.run(context.attach, opened.inside)
        if call.graph_namespace is not None:
            self._recorder.graphs[self._run_id, call.graph_namespace] = opened.inside

    def _step_span(self, number: str) -> OpenSpan:
        """Return the span of a superstep. If the superstep is new, end the span of the
        superstep before it.
        """
        if self._step is None or self._step.name != number:
            self._end_step()
            self._step = self._recorder.begin(
                "superstep",
                number,
                self._run.inside,
            )
        return self._step

    def _end_step(self) -> None:
        if self._step is not None:
            self._recorder.end(self._step)

    def call_ended(self, task_id: str, end: CallEnd) -> None:
        opened = self._calls.pop(task_id, None)
        if opened is None:
            return
        if end.executor is not None and end.pid is not None:
            attributes = {
                "flowpregel.executor": end.executor,
                "flowpregel.pid": end.pid,
            }
            opened.span.set_attributes(attributes)
        self._recorder.end(
            opened,
            end.outcome,
            end.error,
            end.seconds,
        )

    def commit_began(self) -> None:
        parent = self._step or self._run
        self._commit = self._recorder.begin(
            "commit",
            "",
            parent.inside,
        )

    def commit_ended(self, error: BaseException | None) -> None:
        if self._commit is not None:
            self._recorder.end(self._commit, error=error)
            self._commit = None

    def run_ended(self, outcome: str, error: BaseException | None) -> None:
        """End the run's span, after the open spans inside it."""
        if self._commit is not None:
            self._recorder.end(self._commit, "cancelled")
        for opened in self._calls.values():
            self._recorder.end(opened, "cancelled")
        self._end_step()
        if not isinstance(error, Exception):
            error = None
        self._recorder.end(
            self._run,
            outcome,
            error,
        )
