"""OpenTelemetry: spans and metrics of runs, supersteps, calls and commits.

::

    run study
     └── superstep 0
          └── call study (the body)
               ├── call parse        with the spans of the task, in a worker too
               └── call parse
          └── commit

A run is a generator of effects. The spans are made from the effects and replies that
pass between the run and the engine, so a program that does not import this module runs
no code for them.
"""

from __future__ import annotations

import time
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, metrics, trace

import flowpregel._core.run_loop as core
from flowpregel._core.effects import Commit, Effect, Ended, Steps, Submit, Wakeup
from flowpregel._core.program import Options, Program
from flowpregel._core.records import (
    Interrupted,
    Raised,
    Task,
    TaskOrigin,
    Withdrawn,
)

__all__ = ["instrument", "uninstrument"]

_KINDS = ("run", "superstep", "call", "commit")
_OUTCOMES = {Withdrawn: "cancelled", Interrupted: "waiting"}


def instrument(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Record spans and metrics of all runs that this program starts from now on.

    Args:
        tracer_provider: The provider of spans; None: the global one.
        meter_provider: The provider of metrics; None: the global one.

    Example:
        >>> instrument()
        >>> uninstrument()
    """
    core.observer = RunObserver(tracer_provider, meter_provider).observe


def uninstrument() -> None:
    """Record no spans and metrics of runs that start from now on."""
    core.observer = None


class RunObserver:
    """The recorder of spans and metrics; `instrument` documents the arguments."""

    def __init__(self, tracer_provider: Any, meter_provider: Any) -> None:
        self._tracer = trace.get_tracer("flowpregel", tracer_provider=tracer_provider)
        meter = metrics.get_meter("flowpregel", meter_provider=meter_provider)
        self._counts = {}
        self._seconds = {}
        for kind in _KINDS:
            name = f"flowpregel.{kind}"
            self._counts[kind] = meter.create_counter(f"{name}s")
            self._seconds[kind] = meter.create_histogram(f"{name}.duration", "s")
        self.graphs: dict[tuple[Any, str], Any] = {}
        """The contexts of calls that start a graph, by run and namespace."""

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
        """End a span, and measure it; without *seconds*, from its start."""
        span = opened.span
        if error is not None:
            outcome = "failed"
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.set_attribute("flowpregel.outcome", outcome)
        span.end()
        labels = {"flowpregel.outcome": outcome}
        # Runs and calls have few names; each label value costs the backend memory.
        if opened.kind in ("run", "call"):
            labels["flowpregel.name"] = opened.name
        if seconds is None:
            seconds = time.monotonic() - opened.began
        self._counts[opened.kind].add(1, labels)
        self._seconds[opened.kind].record(seconds, labels)

    def observe(
        self,
        steps: Steps,
        program: Program,
        options: Options,
    ) -> Steps:
        """Forward the steps of a run, and record its spans."""
        spans = _RunSpans(
            self,
            program,
            options,
        )
        reply = None
        failure: Exception | None = None
        try:
            while True:
                effect = _resume(
                    steps,
                    reply,
                    failure,
                )
                spans.begin_effect(effect)
                reply = None
                failure = None
                try:
                    reply = yield effect
                except Exception as error:  # noqa: BLE001 - it is raised inside the run
                    failure = error
                spans.end_effect(reply, failure)
        except StopIteration as stop:
            spans.end("waiting" if stop.value.paused else "done")
            return stop.value
        except BaseException as error:
            spans.end(error=error)
            raise
        finally:
            steps.close()


def _resume(
    steps: Steps,
    reply: Any,
    failure: Exception | None,
) -> Effect:
    """Send a run the reply to its last effect, or raise *failure* in it."""
    if failure is not None:
        return steps.throw(failure)
    return steps.send(reply)


@dataclass(eq=False)
class OpenSpan:
    """A span that has not ended."""

    kind: str
    name: str
    span: Any
    inside: Any
    """The context of spans inside it."""
    began: float = field(default_factory=time.monotonic)


class _RunSpans:
    """The spans of one run, outermost or nested."""

    def __init__(
        self,
        observer: RunObserver,
        program: Program,
        options: Options,
    ) -> None:
        self._observer = observer
        self._run_id = options.metadata.get("run_id")
        self._variables = copy_context()
        key = (self._run_id, options.namespace)
        parent = observer.graphs.pop(key, context.get_current())
        address = options.address
        self._run = observer.begin(
            "run",
            program.name,
            parent,
            thread_id=address and address.thread_id,
            run_id=self._run_id,
        )
        self._step: OpenSpan | None = None
        self._commit: OpenSpan | None = None
        self._calls: dict[str, OpenSpan] = {}

    def begin_effect(self, effect: Effect) -> None:
        """Begin the spans of an effect."""
        if isinstance(effect, Commit):
            parent = self._step or self._run
            self._commit = self._observer.begin(
                "commit",
                "",
                parent.inside,
            )
        elif isinstance(effect, Submit):
            step = self._step_span(str(effect.step.step))
            for task in effect.tasks:
                self._begin_call(task, step)

    def _step_span(self, number: str) -> OpenSpan:
        """Return the span of a superstep; end the one before it if that is new."""
        if self._step is None or self._step.name != number:
            self._end_step()
            self._step = self._observer.begin(
                "superstep",
                number,
                self._run.inside,
            )
        return self._step

    def _begin_call(self, task: Task, step: OpenSpan) -> None:
        caller = None
        if task.parent is not None:
            caller = self._calls.get(task.parent.id)
        parent = caller or step
        opened = self._observer.begin(
            "call",
            task.name,
            parent.inside,
            task_id=task.id,
            attempt=task.attempt.number,
        )
        self._calls[task.id] = opened
        # The task's code finds the span as the current one, in a worker too.
        variables = self._variables if task.variables is None else task.variables
        if task.origin is None:
            task.origin = TaskOrigin()
        task.origin.variables = variables.copy()
        task.origin.variables.run(context.attach, opened.inside)
        graph = task.node.graph
        if graph is not None:
            namespace = graph.namespace_at(task.namespace)
            self._observer.graphs[self._run_id, namespace] = opened.inside

    def end_effect(self, reply: Any, failure: BaseException | None) -> None:
        """End the spans of a commit and of calls that the reply reports as done."""
        if self._commit is not None:
            self._observer.end(self._commit, error=failure)
            self._commit = None
        if not isinstance(reply, Wakeup):
            return
        for event in reply.events:
            if isinstance(event, Ended):
                self._end_call(event)

    def _end_call(self, event: Ended) -> None:
        opened = self._calls.pop(event.task_id, None)
        if opened is None:
            return
        seconds = None
        attempt = event.span
        if attempt is not None:
            seconds = attempt.seconds
            opened.span.set_attributes(
                {"flowpregel.executor": attempt.executor, "flowpregel.pid": attempt.pid}
            )
        error = None
        if isinstance(event.outcome, Raised):
            error = event.outcome.error
        outcome = _OUTCOMES.get(type(event.outcome), "done")
        self._observer.end(
            opened,
            outcome,
            error,
            seconds,
        )

    def _end_step(self) -> None:
        if self._step is not None:
            self._observer.end(self._step)

    def end(self, outcome: str = "done", error: BaseException | None = None) -> None:
        """End the run's span, after the open spans inside it."""
        if self._commit is not None:
            self._observer.end(self._commit, "cancelled")
        for opened in self._calls.values():
            self._observer.end(opened, "cancelled")
        self._end_step()
        if error is not None and not isinstance(error, Exception):
            outcome = "stopped"
            error = None
        self._observer.end(
            self._run,
            outcome,
            error,
        )
