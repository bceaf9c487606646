"""Tracing of runs: a tracer gets a call at the beginning and end of each part of a run.

::

    engine                        observed_steps                    tracer of one run
    ------                        --------------                    -----------------
    reply to an effect  ------>   calls that have ended  ------>    `call_ended`
                                  the steps of the run
    effect              <------   a commit, or tasks     ------>    `commit_began`, ...

The effects and replies pass through unchanged. A program that sets no tracer runs no
code for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from flowpregel._core.effects import Commit, Effect, Ended, Steps, Submit, Wakeup
from flowpregel._core.program import Options, Program
from flowpregel._core.records import Interrupted, Raised, Task, TaskOrigin, Withdrawn

CallOutcome: TypeAlias = Literal["done", "failed", "cancelled", "waiting"]
"""The way in which an attempt of a call has ended. A ``waiting`` attempt has asked a
question.
"""
RunOutcome: TypeAlias = Literal["done", "failed", "stopped", "waiting"]
"""The way in which a run has ended. A ``stopped`` run can be resumed."""

_OUTCOMES: dict[type[Any], CallOutcome] = {
    Withdrawn: "cancelled",
    Interrupted: "waiting",
    Raised: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """A run, outermost or nested, that begins."""

    name: str
    """The name of the graph or workflow."""
    run_id: str | None
    """The id of the run, or None if it has none."""
    thread_id: str | None
    """The id of the thread, or None if nothing of the run is stored."""
    namespace: str
    """The namespace of a nested run, or an empty string for the outermost run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """An attempt of a call, or of a node's task, that begins."""

    task_id: str
    """The id of the task, which is the same for all attempts."""
    name: str
    """The name of the node or task."""
    attempt: int
    """The number of the attempt; the first is 1."""
    step: int
    """The number of the superstep."""
    parent_id: str | None
    """The task whose code made the call, or None for the task of a node."""
    graph_namespace: str | None
    """The namespace of the nested run that the task starts, or None."""
    variables: Context
    """The `contextvars.Context` in which the task will run. The tracer may set
    variables in it. A worker gets those that are declared with `carry`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The end of an attempt of a call."""

    outcome: CallOutcome
    """The way in which the attempt has ended."""
    error: BaseException | None
    """The exception with which the attempt failed, or None if it did not fail."""
    seconds: float | None
    """The duration of the call in its process, or None if the call did not run."""
    executor: str | None
    """The name of the executor, or None if the call did not run."""
    pid: int | None
    """The pid of the process in which the call ran, or None if it did not run."""


class RunTracer:
    """A tracer of one run; derive from it, and override methods.

    The methods are called in order on the OS thread that drives the run, which waits
    for them. They should not raise.

    Example:
        >>> from flowpregel import entrypoint
        >>> from flowpregel.tracing import RunTracer, set_tracer
        >>> class Log(RunTracer):
        ...     def call_began(self, call):
        ...         print("began", call.name)
        ...     def run_ended(self, outcome, error):
        ...         print("run", outcome)
        >>> @entrypoint()
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> set_tracer(lambda run: Log())
        >>> double.invoke(4)
        began double
        run done
        8
        >>> set_tracer(None)
    """

    def call_began(self, call: TracedCall) -> None:
        """Trace the beginning of a call.

        Args:
            call: The attempt of a call that begins.
        """

    def call_ended(self, task_id: str, end: CallEnd) -> None:
        """Trace the end of a call. A call that the run abandons has no end.

        Args:
            task_id: The `TracedCall.task_id` of the call.
            end: The outcome of the attempt, with facts about its execution.
        """

    def commit_began(self) -> None:
        """Trace the beginning of a commit."""

    def commit_ended(self, error: BaseException | None) -> None:
        """Trace the end of a commit, which has failed if there is an *error*."""

    def run_ended(self, outcome: RunOutcome, error: BaseException | None) -> None:
        """Trace the end of the run.

        Args:
            outcome: The way in which the run has ended.
            error: The exception that ended the run, or None.
        """


MakeTracer: TypeAlias = Callable[[TracedRun], RunTracer]
make_tracer: MakeTracer | None = None
"""The function that was last passed to `set_tracer`."""


def set_tracer(tracer: MakeTracer | None) -> None:
    """Trace all runs that this program starts from now on.

    Args:
        tracer: A function that returns the tracer of a run that begins, or None to
            trace no runs.

    Example:
        >>> from flowpregel.tracing import set_tracer
        >>> set_tracer(None)  # trace no runs
    """
    global make_tracer
    make_tracer = tracer


def traced_steps(
    steps: Steps,
    make: MakeTracer,
    program: Program,
    options: Options,
) -> Steps:
    """Yield the effects in *steps* (the generator of a run), and report them to the
    tracer that *make* returns.
    """
    address = options.address
    thread_id = None if address is None else address.thread_id
    run = TracedRun(
        name=program.name,
        run_id=options.metadata.get("run_id"),
        thread_id=thread_id,
        namespace=options.namespace,
    )
    trace = _Trace(make(run))
    try:
        result = yield from observed_steps(steps, trace)
    except Exception as error:
        trace.tracer.run_ended("failed", error)
        raise
    except BaseException as error:
        trace.tracer.run_ended("stopped", error)
        raise
    outcome: RunOutcome = "waiting" if result.paused else "done"
    trace.tracer.run_ended(outcome, None)
    return result


class StepsObserver(Protocol):
    """An observer of the effects of one run, and of the replies to them."""

    def begin(self, effect: Effect) -> None:
        """Observe an effect before it is performed."""

    def end(self, reply: Any, failure: Exception | None) -> None:
        """Take note of the reply to the last effect, or of the error with which the
        effect failed (*failure*).
        """


def observed_steps(steps: Steps, observer: StepsObserver) -> Steps:
    """Yield the effects in *steps* (the generator of a run) unchanged, and pass each
    effect and each reply to *observer* first.
    """
    reply: Any = None
    failure: Exception | None = None
    try:
        while True:
            effect = steps.send(reply) if failure is None else steps.throw(failure)
            observer.begin(effect)
            reply = None
            failure = None
            try:
                reply = yield effect
            except Exception as error:  # noqa: BLE001 - it is raised inside the run
                failure = error
            observer.end(reply, failure)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


class _Trace:
    """A translator of a run's effects and replies to calls of the tracer's methods."""

    def __init__(self, tracer: RunTracer) -> None:
        self.tracer = tracer
        self._variables = copy_context()
        self._is_committing = False

    def begin(self, effect: Effect) -> None:
        """Report to the tracer that *effect* begins a commit or calls."""
        if isinstance(effect, Commit):
            self._is_committing = True
            self.tracer.commit_began()
        elif isinstance(effect, Submit):
            for task in effect.tasks:
                self._begin_call(task, effect.step.step)

    def _begin_call(self, task: Task, step: int) -> None:
        """Report the beginning of an attempt of *task*, and give the task context
        variables of its own, in which the tracer may set values.
        """
        variables = self._variables if task.variables is None else task.variables
        if task.origin is None:
            task.origin = TaskOrigin()
        task.origin.variables = variables.copy()
        graph = task.node.graph
        namespace = None if graph is None else graph.namespace_at(task.namespace)
        parent_id = None if task.parent is None else task.parent.id
        call = TracedCall(
            task_id=task.id,
            name=task.name,
            attempt=task.attempt.number,
            step=step,
            parent_id=parent_id,
            graph_namespace=namespace,
            variables=task.origin.variables,
        )
        self.tracer.call_began(call)

    def end(self, reply: Any, failure: Exception | None) -> None:
        """Report to the tracer which commit or calls end with the reply to the last
        effect.
        """
        if self._is_committing:
            self._is_committing = False
            self.tracer.commit_ended(failure)
        if isinstance(reply, Wakeup):
            for event in reply.events:
                if isinstance(event, Ended):
                    self.tracer.call_ended(event.task_id, _end_of(event))


def _end_of(event: Ended) -> CallEnd:
    """Return the public record of the end of a task."""
    outcome = _OUTCOMES.get(type(event.outcome), "done")
    error = event.outcome.error if isinstance(event.outcome, Raised) else None
    span = event.span
    if span is None:
        return CallEnd(
            outcome=outcome, error=error, seconds=None, executor=None, pid=None
        )
    return CallEnd(
        outcome=outcome,
        error=error,
        seconds=span.seconds,
        executor=span.executor,
        pid=span.pid,
    )
