"""The callback handlers of a run, which are called when the run and its nodes start and
end.

The handlers are those in ``config["callbacks"]``, which have the methods of LangChain's
handlers, and the hooks of a workflow (`EndHooks`), which are called once for each end
of a run. A handler may lack methods that it does not use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

from flowpregel._core.effects import StepContext, Steps, labels_of
from flowpregel._core.records import Kind, Task
from flowpregel._engine.callbacks import (
    GraphCallbacks,
    GraphLabels,
    callback_id,
)
from flowpregel._engine.engine import RunPlan
from flowpregel._engine.handlers import HandlerQueue, Handlers
from flowpregel._engine.nested import RunContext
from flowpregel._entry_points import STREAMS, load_plugin
from flowpregel._interrupts import is_from_handler
from flowpregel.errors import RunDiedError
from flowpregel.pregel.config import ParsedConfig
from flowpregel.pregel.definition import GraphDefinition

_SHOWN_IDS: Final = (
    "thread_id",
    "checkpoint_id",
    "checkpoint_ns",
    "task_id",
    "run_id",
    "assistant_id",
    "graph_id",
)
"""The keys of ``configurable`` that callback handlers get as metadata, as in
LangGraph.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run: the argument of a workflow's hook.

    Example:
        >>> from flowpregel import entrypoint
        >>> def report(end: RunEnd) -> None:
        ...     print(end.flow, end.error or end.result)
        >>> @entrypoint(on_end=report, on_failure=report)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4)
        double 8
        8
    """

    flow: str
    """The name of the workflow."""
    id: str | None
    """The id of the run, or None if the run is not stored."""
    result: Any = None
    """The result of the workflow."""
    error: Exception | None = None
    """The error of the run; `RunDiedError` if its process died."""


Hook: TypeAlias = Callable[[RunEnd], object]


@dataclass(frozen=True, slots=True)
class EndHooks:
    """The callback handler for the ``on_end=`` and ``on_failure=`` of a workflow."""

    on_run_end: Hook | None
    """The function that is called when a run has succeeded."""
    on_run_failure: Hook | None
    """The function that is called when a run has failed, or is found to have died."""


@contextmanager
def run_hooks(
    run: Any,
    plan: RunPlan,
) -> Iterator[None]:
    """Call the callback handlers of a run before it starts and when it has ended.

    The handlers are called in the coordinator, and only for the outermost run. An error
    of a handler is logged. The run keeps its thread's lease until the handlers have
    returned. If the program dies before that, the next run of the thread finds the
    lease of a dead process, and calls the handlers for the run that died.

    Args:
        run: The `GraphRun`.
        plan: The plan of the run.
    """
    config = run.config
    handlers = run.handlers
    lease = plan.lease
    has_died = lease is not None and lease.is_inherited
    is_finished = plan.run_context.is_finished
    flow = str(config.run_name)
    run_id = config.thread_id
    identity = _identity_of(config, plan)
    with plan.resources.pop_all():
        if has_died and not is_finished:
            error = RunDiedError(str(run_id))
            handlers.call("on_run_failure", RunEnd(flow=flow, id=run_id, error=error))
        labels = {"metadata": _shown_metadata(config), "name": config.run_name}
        handlers.call("on_chain_start", None, run.input, **identity, **labels)
        try:
            yield
        except BaseException as failure:
            handlers.call("on_chain_error", failure, **identity)
            if isinstance(failure, Exception) and not is_from_handler(failure):
                end = RunEnd(flow=flow, id=run_id, error=failure)
                handlers.call("on_run_failure", end)
            raise
        handlers.call("on_chain_end", _output_of(run), **identity)
        result = run.engine.result
        is_first_end = has_died or not is_finished
        if result is not None and not result.paused and is_first_end:
            end = RunEnd(flow=flow, id=run_id, result=result.values)
            handlers.call("on_run_end", end)


def _identity_of(
    config: ParsedConfig,
    plan: RunPlan,
) -> dict[str, Any]:
    """Return the arguments that identify an outermost run for a callback handler."""
    tags = list(config.run_config["tags"])
    parent_id = None
    if config.chain_run is not None:
        parent_id = config.chain_run.run_id
        for tag in config.chain_run.tags:
            if tag not in tags:
                tags.append(tag)
    return {
        "run_id": callback_id(plan.run_context.run_id or ""),
        "parent_run_id": parent_id,
        "tags": tags,
    }


def _output_of(run: Any) -> Any:
    """Return the output of a `GraphRun` that has ended, without questions that wait for
    answers.
    """
    result = run.engine.result
    if result is not None and result.paused:
        return result.values
    return run.output()


def handlers_of(config: ParsedConfig, loop: Any = None) -> Handlers:
    """Return the callback handlers of a run.

    Args:
        config: The config of the run.
        loop: The event loop of an async run.
    """
    queue = None if loop is None else HandlerQueue(loop)
    return _with_manager(Handlers(config.callbacks, queue))


def _with_manager(handlers: Handlers) -> Handlers:
    """Return *handlers*. If one of them is a callback handler of LangChain, the config
    that the code of nodes gets has a callback manager of LangChain with the handlers,
    so that models and tools called in nodes use them.
    """
    base = sys.modules.get("langchain_core.callbacks.base")
    handler_class = getattr(base, "BaseCallbackHandler", None)
    if handlers.make_manager is not None or handler_class is None:
        return handlers
    if not any(isinstance(item, handler_class) for item in handlers.handlers):
        return handlers
    plugin = load_plugin(STREAMS, "messages")
    return replace(handlers, make_manager=plugin.make_manager)


def with_node_callbacks(run: Any, plan: RunPlan) -> RunPlan:
    """Return *plan*, that of an outermost run, with a generator of effects that also
    calls the run's callback handlers for each node.

    Args:
        run: The `GraphRun`.
        plan: The plan of the run.
    """
    handlers = run.handlers
    if not handlers.observe_nodes():
        return plan
    variables = plan.run_context.variables
    labels = _labels_of(run.definition, run.config, variables)
    after = plan.run_context.options.interrupt_after
    labels = replace(labels, interrupt_after=after)
    run_id = callback_id(plan.run_context.run_id or "")
    callbacks = GraphCallbacks(handlers, labels, run_id)
    return replace(
        plan,
        steps=callbacks.node_steps(plan.steps),
        run_context=replace(plan.run_context, callbacks=callbacks),
    )


def nested_callbacks(
    outer: RunContext,
    task: Task,
    step: StepContext,
    definition: GraphDefinition,
    config: ParsedConfig,
) -> GraphCallbacks | None:
    """Return the object that calls the callback handlers of a nested run, or None if it
    has no handlers.

    Args:
        outer: The context of the outer run.
        task: The task of the outer run that runs the nested graph.
        step: The superstep of the task.
        definition: The nested graph.
        config: The config of the nested run. Its handlers are called in addition to
            those of the outer run.
    """
    outer_callbacks = outer.callbacks
    outer_handlers = Handlers() if outer_callbacks is None else outer_callbacks.handlers
    handlers = _with_manager(outer_handlers.with_more(config.callbacks))
    if not handlers.observe_nodes():
        return None
    variables = outer.variables if task.variables is None else task.variables
    labels = _labels_of(definition, config, variables)
    # If a node's code calls the graph, the library makes a hidden task for the call.
    # The callback handlers get the labels of the node, and not those of this task.
    node_task = task.parent or task if task.kind is Kind.CALL else task
    metadata = {**labels.metadata, **labels_of(node_task, step.step)}
    labels = replace(labels, metadata=metadata)
    run_id = uuid4()
    if outer_callbacks is None:
        return GraphCallbacks(
            handlers,
            labels,
            run_id,
        )
    parent_id = outer_callbacks.id_of(task)
    if config.chain_run is not None:
        # A chain in the node's code calls the graph and passes its config. So the run
        # of the chain, and not the node, is the parent.
        parent_id = config.chain_run.run_id
        own_tags = [tag for tag in config.chain_run.tags if tag not in labels.tags]
        labels = replace(labels, own_tags=tuple(own_tags))
    return GraphCallbacks(
        handlers,
        labels,
        run_id,
        parent_id=parent_id,
        escape=partial(outer_callbacks.escape, task),
    )


def with_graph_callbacks(
    steps: Steps,
    graph_input: Any,
    callbacks: GraphCallbacks | None,
) -> Steps:
    """Yield the effects (requests to the engine) of a nested run, from *steps*, and
    call the run's callback handlers if it has any.
    """
    if callbacks is None:
        return steps
    return callbacks.graph_steps(steps, graph_input)


def _shown_metadata(config: ParsedConfig) -> dict[str, Any]:
    """Return the metadata that callback handlers get for a run: the user's, and the ids
    in ``configurable``.
    """
    configurable = config.run_config["configurable"]
    ids = {key: configurable[key] for key in _SHOWN_IDS if configurable.get(key)}
    return {**ids, **config.metadata}


def _labels_of(
    definition: GraphDefinition,
    config: ParsedConfig,
    variables: Context,
) -> GraphLabels:
    return GraphLabels(
        name=config.run_name or definition.name,
        tags=tuple(config.run_config["tags"]),
        metadata=_shown_metadata(config),
        stream_channels=definition.stream_channels_asis,
        variables=variables,
    )
