"""The callback handlers of a run, which are called when graphs and nodes start and end.

The handlers have the methods of LangChain's handlers. For them, each attempt of a node
is a run of its own, with an id, and with the id of the graph's run as its parent::

    graph                     `on_chain_start`, ..., `on_chain_end`
     └── attempt of a node    `on_chain_start`, ..., `on_chain_end` or `on_chain_error`
          └── nested graph    ...

The handlers are called in the coordinator, on the OS thread that drives the run, also
if a node runs in a worker process. For the models and tools that a node calls, the
handlers are called where the node runs (see `node_callbacks`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from flowpregel._annotations import signature_of
from flowpregel._core.barrier import PUSHED
from flowpregel._core.effects import (
    Effect,
    Emitted,
    Ended,
    HandlerCall,
    Steps,
    Submit,
    Wakeup,
    labels_of,
)
from flowpregel._core.program import Keys, Names
from flowpregel._core.records import (
    Arguments,
    Escaped,
    Interrupted,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    TaskOrigin,
)
from flowpregel._core.run import Result
from flowpregel._core.stream_events import StreamEvents
from flowpregel._core.tracing import observed_steps
from flowpregel._engine.handlers import Handlers
from flowpregel._engine.lifecycle import LifecycleCalls
from flowpregel._engine.node_callbacks import AttemptCallbacks
from flowpregel._loggers import run_log
from flowpregel.context import node_callbacks
from flowpregel.errors import GraphInterrupt, ParentCommand, TaskCancelled
from flowpregel.policies import TracePolicy

_REDACTED: Final = "<redacted>"
_IN_NODE: Final = "seq:step:1"
"""The tag that LangChain's callback handlers get with a (traced) run that was started
inside a node.
"""


def callback_id(run_id: str) -> UUID:
    """Return the id that callback handlers get for the run *run_id*.

    Handlers expect a UUID. The id of a run may be any string. If it is not a UUID, it
    is converted to one.

    Example:
        >>> callback_id("6ba7b812-9dad-11d1-80b4-00c04fd430c8").version
        1
        >>> callback_id("order-7") == callback_id("order-7")
        True
    """
    try:
        return UUID(run_id)
    except ValueError:
        return uuid5(NAMESPACE_OID, run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLabels:
    """The facts about a graph's run that each call of a callback handler contains."""

    name: str
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stream_channels: Keys = ()
    """The channels whose writes are reported as a node's output."""
    interrupt_after: Names = frozenset()
    """The nodes after which the run stops."""
    variables: Context = field(default_factory=copy_context)
    """The `contextvars.Context` in which the nodes run."""
    own_tags: tuple[str, ...] = (_IN_NODE,)
    """The tags of a nested graph's run that are not passed on to the runs of the nodes.
    """


def _ignore(_: ParentCommand) -> None:
    """Do nothing: a graph that is not nested has no outer graph for its `Command`."""


class GraphCallbacks:
    """The calls of callback handlers for the nodes of one graph's run, outermost or
    nested.

    Args:
        handlers: The callback handlers that the user passed.
        labels: The facts about the run that each call of a handler contains.
        run_id: The id of the run, as handlers get it.
        parent_id: The id of the node that the run is nested in, or None.
        escape: A function that is called if the run ends with a command for the graph
            around it.
    """

    def __init__(
        self,
        handlers: Handlers,
        labels: GraphLabels,
        run_id: UUID,
        parent_id: UUID | None = None,
        escape: Callable[[ParentCommand], None] = _ignore,
    ) -> None:
        self.handlers = handlers
        self._labels = labels
        self._run_id = run_id
        self._parent_id = parent_id
        self._escape = escape
        self._outputs = StreamEvents(
            frozenset(), labels.stream_channels, labels.stream_channels
        )
        self._lifecycle = LifecycleCalls(handlers.call, run_id, labels.interrupt_after)
        self._attempts: dict[str, _StartedAttempt] = {}
        """The attempts that have started and not ended, by the id of the task."""

    # ------------------------------------------------------------ steps of runs

    def node_steps(self, steps: Steps) -> Steps:
        """Yield the effects in *steps* (the generator of a run), and call the callback
        handlers for the run's nodes, but not for the run itself.
        """
        try:
            result: Result = yield from observed_steps(steps, self)
        except GeneratorExit:
            raise
        except BaseException:
            self._abandon()
            raise
        self._lifecycle.end(result)
        return result

    def graph_steps(self, steps: Steps, graph_input: Any) -> Steps:
        """Yield the effects in *steps* (the generator of a nested run), and call the
        callback handlers for the run and for its nodes.
        """
        labels = self._labels
        tags = (*labels.own_tags, *labels.tags)
        identity = _arguments_of_run(self._run_id, self._parent_id, tags)
        self.handlers.call(
            "on_chain_start",
            None,
            graph_input,
            **identity,
            metadata=dict(labels.metadata),
            name=labels.name,
        )
        try:
            result: Result = yield from observed_steps(steps, self)
        except BaseException as error:
            self._abandon()
            # An outer run abandons a nested run by closing the nested run's generator,
            # which raises `GeneratorExit` here.
            is_abandoned = isinstance(error, GeneratorExit)
            cause = TaskCancelled() if is_abandoned else error
            self.handlers.call("on_chain_error", cause, **identity)
            if isinstance(error, ParentCommand):
                self._escape(error)
            raise
        if result.paused:
            question = GraphInterrupt(result.interrupts)
            self.handlers.call("on_chain_error", question, **identity)
        else:
            self.handlers.call("on_chain_end", result.values, **identity)
        return result

    # ------------------------------------------------------------ effects and replies

    def begin(self, effect: Effect) -> None:
        """Call the callback handlers for the attempts that an effect starts."""
        self._lifecycle.begin(effect)
        if isinstance(effect, Submit):
            for task in effect.tasks:
                if not task.node.hidden or _follows_path(task):
                    self._start(task, effect.step.step)

    def end(self, reply: Any, failure: Exception | None) -> None:
        """Call the callback handlers for the attempts whose ends are in the reply to an
        effect.
        """
        if isinstance(reply, Wakeup):
            for event in reply.events:
                if isinstance(event, Ended):
                    self._end(event)
                elif isinstance(event, Emitted):
                    self._forward(event.payload)

    def _forward(self, payload: Any) -> None:
        """Call the callback handler that a task in another process wants to call, if
        *payload* is such a call.
        """
        if isinstance(payload, HandlerCall):
            handler = self.handlers.handlers[payload.position]
            self.handlers.call_one(
                handler, payload.method, payload.args, payload.kwargs
            )

    def _start(self, task: Task, step: int) -> None:
        """Call the callback handlers for the start of an attempt of *task*."""
        labels = self._labels
        is_call = task.kind is Kind.CALL
        tag = _IN_NODE if is_call else f"graph:step:{step}"
        own_tags = (*labels.tags, *task.node.tags)
        parent_id = self._run_id
        if is_call and task.parent is not None:
            parent_id = self.id_of(task.parent)
        policy = task.node.trace_policy or TracePolicy()
        attempt = _StartedAttempt(uuid4(), parent_id, (tag, *own_tags), policy)
        self._attempts[task.id] = attempt
        metadata = {
            **labels.metadata,
            **task.node.metadata,
            **labels_of(task, step),
        }
        if is_call or task.kind is Kind.HANDLER:
            metadata["langgraph_triggers"] = PUSHED
        self._pass_on(task, attempt.run_id, own_tags, metadata)
        task_input = _shown_input(task)
        recorded = _processed(task_input, policy.process_inputs)
        for handlers, value in self.handlers.with_values(task_input, recorded):
            handlers.call(
                "on_chain_start",
                None,
                value,
                **attempt.identity,
                metadata=metadata,
                name=task.name,
            )

    def _pass_on(
        self,
        task: Task,
        run_id: UUID,
        tags: tuple[str, ...],
        metadata: Mapping[str, Any],
    ) -> None:
        """Let the code of *task* call the callback handlers, with *run_id* as the
        parent.
        """
        variables = task.variables
        if variables is None:
            variables = self._labels.variables
        variables = variables.copy()
        callbacks = AttemptCallbacks(
            handlers=self.handlers, run_id=run_id, tags=tags, metadata=metadata
        )
        variables.run(node_callbacks.set, callbacks)
        if task.origin is None:
            task.origin = TaskOrigin()
        task.origin.variables = variables

    def _end(self, event: Ended) -> None:
        """Call the callback handlers for the end of an attempt."""
        attempt = self._attempts.pop(event.task_id, None)
        if attempt is None:
            return
        identity = attempt.identity
        outcome = event.outcome
        if isinstance(outcome, Returned):
            output = self._outputs.update_of(outcome.writes)
            recorded = _processed(output, attempt.policy.process_outputs)
            for handlers, value in self.handlers.with_values(output, recorded):
                handlers.call("on_chain_end", value, **identity)
        else:
            self.handlers.call("on_chain_error", _error_of(outcome), **identity)

    def _abandon(self) -> None:
        """Report to the callback handlers that the attempts for which the run no longer
        waits have ended.
        """
        for attempt in self._attempts.values():
            self.handlers.call("on_chain_error", TaskCancelled(), **attempt.identity)
        self._attempts.clear()

    # ------------------------------------------------------------ nested runs

    def escape(self, task: Task, error: ParentCommand) -> None:
        """Call the callback handlers for the end of *task*, whose nested graph ended
        with a `Command` for this graph.
        """
        attempt = self._attempts.pop(task.id, None)
        if attempt is not None:
            self.handlers.call("on_chain_error", error, **attempt.identity)

    def id_of(self, task: Task) -> UUID:
        """Return the id of the attempt of *task*. A hidden task, of which handlers get
        no notice, has no id: then return the id of the attempt that called it.
        """
        for ancestor in _task_and_callers(task):
            attempt = self._attempts.get(ancestor.id)
            if attempt is not None:
                return attempt.run_id
        return self._run_id


@dataclass(frozen=True, slots=True)
class _StartedAttempt:
    """An attempt that has started and not ended."""

    run_id: UUID
    parent_id: UUID
    tags: tuple[str, ...]
    policy: TracePolicy

    @property
    def identity(self) -> dict[str, Any]:
        """The keyword arguments, such as the run's id, by which a callback handler
        identifies the attempt.
        """
        return _arguments_of_run(self.run_id, self.parent_id, self.tags)


def _arguments_of_run(
    run_id: UUID, parent_id: UUID | None, tags: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments that identify a run for a callback handler."""
    return {"run_id": run_id, "parent_run_id": parent_id, "tags": [*tags]}


def _processed(value: Any, process: Callable[[Any], Any] | None) -> Any:
    """Return the value to show for *value*, which a node's trace policy computes with
    *process*. If *process* fails, the error is logged and the value is left out.
    """
    if process is None:
        return value
    try:
        return process(value)
    except Exception:  # noqa: BLE001 - a run does not depend on its handlers
        run_log.exception("a function of a trace policy failed")
        return {}


def _shown_input(task: Task) -> Any:
    """Return the input of *task* for callback handlers. For a call, these are the
    arguments by the names of the parameters, without redacted arguments.
    """
    arguments = task.input
    if not isinstance(arguments, Arguments):
        return arguments
    redacted = task.node.redacted
    args: list[Any] = []
    for position, value in enumerate(arguments.args):
        argument = _REDACTED if position in redacted else value
        args.append(argument)
    kwargs: dict[str, Any] = {}
    for name, value in arguments.kwargs.items():
        kwargs[name] = _REDACTED if name in redacted else value
    target = task.node.steps[0]
    return _by_parameter(target.func or target.coroutine, args, kwargs)


def _by_parameter(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of *function*, and defaults, by the names of the
    parameters.
    """
    try:
        signature = signature_of(function)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        # Either the arguments do not fit, and the call will fail, or the function is
        # written in C and has no signature. The arguments are then returned without
        # names.
        return {"args": tuple(args), "kwargs": dict(kwargs)}
    bound.apply_defaults()
    values: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
        elif name not in ("self", "cls"):
            values[name] = value
    return values


def _follows_path(task: Task) -> bool:
    """Return whether a conditional edge leaves the node of *task*."""
    return any(hasattr(writer, "path") for writer in task.node.writers)


def _task_and_callers(task: Task) -> Iterator[Task]:
    """Yield *task*, its caller, the caller's caller and so on."""
    ancestor: Task | None = task
    while ancestor is not None:
        yield ancestor
        ancestor = ancestor.parent


def _error_of(outcome: Outcome) -> BaseException:
    """Return the exception that ended an attempt with this *outcome*."""
    match outcome:
        case Raised(error):
            return error
        case Interrupted(interrupts):
            return GraphInterrupt(interrupts)
        case Escaped(command):
            return ParentCommand(command)
    return TaskCancelled()
