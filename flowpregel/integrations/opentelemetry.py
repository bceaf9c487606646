"""OpenTelemetry: spans and metrics of runs, supersteps, calls and commits.

::

    run study
     └── superstep 0
          └── call study (the body)
               ├── call parse        a task's own spans are inside, in a worker too
               └── call parse
          └── commit

A run is a generator of effects. The spans are made of what passes between it and the
engine, so a program that does not import this has no code for them in its way.
"""

from __future__ import annotations

import time
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, metrics, trace

import flowpregel._core.run as core
from flowpregel._core.effects import Commit, Effect, Ended, Steps, Submit, Wakeup
from flowpregel._core.program import Options, Program
from flowpregel._core.records import Interrupted, Raised, Task, Withdrawn

__all__ = ["instrument", "uninstrument"]

_KINDS = ("run", "superstep", "call", "commit")
_OUTCOMES = {Withdrawn: "cancelled", Interrupted: "waiting"}


def instrument(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Make spans and metrics of all runs that this program starts from now on.

    Args:
        tracer_provider: Makes the spans; None: the global one.
        meter_provider: Makes the metrics; None: the global one.

    Example:
        >>> instrument()
        >>> uninstrument()
    """
    core.observer = RunObserver(tracer_provider, meter_provider).observe


def uninstrument() -> None:
    """Make no more spans and metrics of runs that start from now on."""
    core.observer = None


class RunObserver:
    """Makes the spans and metrics of runs; `instrument` documents the arguments."""

    def __init__(self, tracer_provider: Any, meter_provider: Any) -> None:
        self._tracer = trace.get_tracer("flowpregel", tracer_provider=tracer_provider)
        meter = metrics.get_meter("flowpregel", meter_provider=meter_provider)
        self._counts = {
            kind: meter.create_counter(f"flowpregel.{kind}s") for kind in _KINDS
        }
        self._seconds = {
            kind: meter.create_histogram(f"flowpregel.{kind}.duration", "s")
            for kind in _KINDS
        }
        self.graphs: dict[tuple[Any, str], Any] = {}
        """The contexts of calls whose graphs are about to begin, by their run and
        namespace.
        """

    def begin(self, kind: str, name: str, around: Any, **attributes: Any) -> OpenSpan:
        """Begin a span inside the context *around*."""
        known = {
            f"flowpregel.{key}": each
            for key, each in attributes.items()
            if each is not None
        }
        span = self._tracer.start_span(
            f"{kind} {name}".strip(), around, attributes=known
        )
        return OpenSpan(kind, name, span, trace.set_span_in_context(span, around))

    def end(
        self,
        opened: OpenSpan,
        outcome: str = "done",
        error: BaseException | None = None,
        seconds: float | None = None,
    ) -> None:
        """End a span, and measure it: by default from its beginning."""
        if error is not None:
            outcome = "failed"
            opened.span.record_exception(error)
            opened.span.set_status(trace.StatusCode.ERROR, str(error))
        opened.span.set_attribute("flowpregel.outcome", outcome)
        opened.span.end()
        labels = {"flowpregel.outcome": outcome}
        if opened.kind in ("run", "call"):  # of which there are few names
            labels["flowpregel.name"] = opened.name
        took = time.monotonic() - opened.began if seconds is None else seconds
        self._counts[opened.kind].add(1, labels)
        self._seconds[opened.kind].record(took, labels)

    def observe(self, steps: Steps, program: Program, options: Options) -> Steps:
        """Go the steps of a run, and make its spans of what passes."""
        spans = _RunSpans(self, program, options)
        reply, failure = None, None
        try:
            while True:
                effect = steps.send(reply) if failure is None else steps.throw(failure)
                spans.asked(effect)
                reply = failure = None
                try:
                    reply = yield effect
                except Exception as error:  # noqa: BLE001 - it is raised inside the run
                    failure = error
                spans.answered(reply, failure)
        except StopIteration as stop:
            spans.end("waiting" if stop.value.paused else "done")
            return stop.value
        except BaseException as error:
            spans.end(error=error)
            raise
        finally:
            steps.close()


@dataclass(eq=False)
class OpenSpan:
    """A span that has not ended."""

    kind: str
    name: str
    span: Any
    inside: Any
    """The context of what happens inside it."""
    began: float = field(default_factory=time.monotonic)


class _RunSpans:
    """The spans of one run, outermost or nested."""

    def __init__(
        self, observer: RunObserver, program: Program, options: Options
    ) -> None:
        self._observer = observer
        self._run_id = options.metadata.get("run_id")
        self._variables = copy_context()
        around = observer.graphs.pop(
            (self._run_id, options.namespace), context.get_current()
        )
        known = {
            "thread_id": options.address and options.address.thread_id,
            "run_id": self._run_id,
        }
        self._run = observer.begin("run", program.name, around, **known)
        self._step: OpenSpan | None = None
        self._commit: OpenSpan | None = None
        self._calls: dict[str, OpenSpan] = {}

    def asked(self, effect: Effect) -> None:
        """Begin the spans of what the run asks for."""
        if isinstance(effect, Commit):
            self._commit = self._observer.begin(
                "commit", "", (self._step or self._run).inside
            )
        elif isinstance(effect, Submit):
            number = str(effect.setting.step)
            if self._step is None or self._step.name != number:
                self._end_step()
                self._step = self._observer.begin("superstep", number, self._run.inside)
            for task in effect.tasks:
                self._begin_call(task, self._step)

    def _begin_call(self, task: Task, step: OpenSpan) -> None:
        caller = None if task.parent is None else self._calls.get(task.parent.id)
        opened = self._calls[task.id] = self._observer.begin(
            "call",
            task.name,
            (caller or step).inside,
            task_id=task.id,
            attempt=task.attempt,
        )
        # Its own code, in a worker too, finds the span as the current one.
        task.variables = (
            self._variables if task.variables is None else task.variables
        ).copy()
        task.variables.run(context.attach, opened.inside)
        if task.node.graph is not None:
            namespace = task.node.graph.namespace_at(task.namespace)
            self._observer.graphs[self._run_id, namespace] = opened.inside

    def answered(self, reply: Any, failure: BaseException | None) -> None:
        """End the spans of what the reply to the run says is done."""
        if self._commit is not None:
            self._observer.end(self._commit, error=failure)
            self._commit = None
        for event in reply.events if isinstance(reply, Wakeup) else ():
            if isinstance(event, Ended) and (
                opened := self._calls.pop(event.task_id, None)
            ):
                if (ran := event.span) is not None:
                    where = {
                        "flowpregel.executor": ran.executor,
                        "flowpregel.pid": ran.pid,
                    }
                    opened.span.set_attributes(where)
                error = (
                    event.outcome.error if isinstance(event.outcome, Raised) else None
                )
                outcome = _OUTCOMES.get(type(event.outcome), "done")
                self._observer.end(opened, outcome, error, ran and ran.seconds)

    def _end_step(self) -> None:
        if self._step is not None:
            self._observer.end(self._step)

    def end(self, outcome: str = "done", error: BaseException | None = None) -> None:
        """End the run's span, and those that are left inside it."""
        for opened in filter(None, (self._commit, *self._calls.values())):
            self._observer.end(opened, "cancelled")
        self._end_step()
        if error is not None and not isinstance(error, Exception):
            outcome, error = "stopped", None
        self._observer.end(self._run, outcome, error)
