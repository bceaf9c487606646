"""Runs of graphs inside other runs: as nodes, or called by the code of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowpregel._core.effects import Prepare, StepContext, Steps
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import (
    Address,
    Arguments,
    Durability,
    Kind,
    Node,
    Task,
)
from flowpregel._core.run import Result
from flowpregel._core.run_loop import run_program
from flowpregel._engine.commits import Committer, refuse_blocked_loop
from flowpregel._engine.engine import RunPlan
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel.context import current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Config, ParsedConfig, merged, parse
from flowpregel.pregel.definition import CompiledGraph, GraphDefinition
from flowpregel.pregel.hooks import nested_callbacks, with_graph_callbacks
from flowpregel.pregel.invocation import OPTION_NAMES, options_for_saver
from flowpregel.pregel.run_plan import plan_of
from flowpregel.pregel.runner import GraphRun
from flowpregel.pregel.stored_results import after_notices_of_nodes

_IGNORED_OPTIONS = frozenset(
    {"stream_mode", "print_mode", "context", "debug", "version"}
)
"""The options that have no effect if a graph is called inside another one."""


def call_nested(
    graph: CompiledGraph,
    input: Any,
    config: Config | None,
    keywords: Mapping[str, Any],
) -> Any:
    """Call *graph* from a task of another graph, and return a future for the output.

    Raises:
        ConfigurationError: A keyword only applies to an outermost run.
    """
    definition = graph.definition
    scope = current_scope(f"graph {definition.name!r}")
    for name in OPTION_NAMES - _IGNORED_OPTIONS:
        if name in keywords:
            raise ConfigurationError(
                f"{name} belongs to the outermost run, not to a graph called in it"
            )
    settings = {key: keywords[key] for key in keywords.keys() - OPTION_NAMES}
    # The node of this call is hidden from streams, because they show the graph's events
    # instead of the call, as in LangGraph.
    node = Node(
        name=definition.name,
        graph=graph,
        role="graph",
        hidden=True,
    )
    arguments = Arguments((input,), merged(config, **settings))
    return scope.run_client.call(node, arguments, None)


def nested_run(
    graph: CompiledGraph,
    task: Task,
    step: StepContext,
    outer: RunContext,
) -> tuple[Steps, RunContext]:
    """Return a generator of the effects (requests to the engine) of a nested run, and
    the context of the tasks in it.

    Args:
        graph: The nested graph.
        task: The task of the outer graph that runs the nested graph.
        step: The superstep of the task.
        outer: The context of the outer run.
    """
    definition = graph.definition
    run_input = task.input
    call_config: Mapping[str, Any] = {}
    if task.kind is Kind.CALL:
        run_input = task.input.args[0]
        call_config = task.input.kwargs
        if _is_on_another_thread(definition, call_config, outer):
            return _own_thread_run(graph, task, step, outer)
    config = parse(merged(outer.config, definition.config, call_config))
    namespace = definition.namespace_at(task.namespace)
    options = _nested_options(definition, config, namespace, task, step, outer)
    committer = None
    if definition.checkpointer is not False:
        committer = outer.committer
    if definition.saver is not None:
        committer = outer.committers.of(definition.saver, outer.options.durability)
    if committer is not None and outer.thread_id is not None:
        checkpoint_id = config.checkpoint_map.get(namespace)
        address = Address(outer.thread_id, namespace, checkpoint_id)
        options = replace(options_for_saver(options, committer.saver), address=address)
    options = replace(options, task_labels=_task_labels(config, task, outer.options))
    callbacks = nested_callbacks(outer, task, step, definition, config)
    steps = _steps_of_nested(definition, options, committer, run_input)
    steps = with_graph_callbacks(steps, run_input, callbacks)
    run_context = replace(
        _inherited(definition, task, outer, outer),
        callbacks=callbacks,
        committer=committer,
        has_saver=committer is not None,
        config=config.run_config,
        namespace=namespace,
        options=options,
    )
    return steps, run_context


def _steps_of_nested(
    definition: GraphDefinition,
    options: Options,
    committer: Committer | None,
    run_input: Any,
) -> Steps:
    """Return the effects (requests to the engine) of a nested run, preceded by notices
    on finished nodes whose code has changed.
    """
    program = definition.program_now()
    steps = run_program(program, options, run_input)
    if committer is None or not _uses_finished_nodes(definition, options):
        return steps
    return after_notices_of_nodes(program, options, steps)


def _uses_finished_nodes(definition: GraphDefinition, options: Options) -> bool:
    """Return whether a nested run resumes, and uses the stored results of nodes that
    finished before.

    A graph with ``checkpointer=True`` never does: its newest state may belong to an
    earlier run.
    """
    nested = options.nested
    return (
        nested is not None and nested.resuming and definition.checkpointer is not True
    )


def _nested_options(
    definition: GraphDefinition,
    config: ParsedConfig,
    namespace: str,
    task: Task,
    step: StepContext,
    outer: RunContext,
) -> Options:
    """Return the options of a nested run, except those that depend on the saver."""
    is_addressed = config.checkpoint_map.get(namespace) is not None
    before = None
    if not is_addressed:
        before = outer.take_replay_limit(task.namespace)
    outer_options = outer.options
    parents = {
        **outer_options.metadata.get("parents", {}),
        outer_options.namespace: step.checkpoint_id,
    }
    nested = Nested(
        resuming=before is None and (step.resuming or task.attempt.number > 1),
        answers=step.answers,
        own_answers=task.attempt.answers,
        before=before,
        addressed=is_addressed,
    )
    return replace(
        outer_options,
        address=None,
        namespace=namespace,
        loaded=None,
        recursion_limit=config.recursion_limit,
        interrupt_before=definition.interrupt_before_nodes,
        interrupt_after=definition.interrupt_after_nodes,
        output_channels=definition.program.output_channels,
        modes=outer.modes,
        step_timeout=definition.step_timeout,
        metadata={**outer_options.metadata, "parents": parents},
        fence=None,
        now=now(),
        nested=nested,
    )


def _task_labels(
    config: ParsedConfig, task: Task, outer_options: Options
) -> dict[str, Any]:
    """Return the metadata that the tasks of a nested run have in streams."""
    labels = config.task_labels
    if task.kind is Kind.CALL:
        return labels
    # If a node is a graph, the metadata of the node override those of the graph, as in
    # LangGraph.
    for key, value in outer_options.task_labels.items():
        if key != "tags":
            labels[key] = value
    return {**labels, **task.node.metadata}


def _is_on_another_thread(
    definition: GraphDefinition,
    call_config: Mapping[str, Any],
    outer: RunContext,
) -> bool:
    """Return whether a called graph runs on a thread (of checkpoints) of its own: with
    another thread id than its caller, or with the same id in another saver.

    A graph without its own saver stores its state on the caller's thread.
    """
    if definition.saver is None:
        return False
    config = parse(merged(definition.config, call_config))
    if config.thread_id is None:
        return False
    if outer.thread_id is None or config.thread_id != outer.thread_id:
        return True
    committer = outer.committer
    shares_saver = committer is not None and committer.saver is definition.saver
    return not shares_saver and not config.namespace


def _own_thread_run(
    graph: CompiledGraph,
    task: Task,
    step: StepContext,
    outer: RunContext,
) -> tuple[Steps, RunContext]:
    """Return a generator of the effects (requests to the engine), and the `RunContext`,
    of a called graph that runs on a thread of its own.

    The called run is planned like an outermost run (lease, start, steps), but the
    engine of the outer run executes it. If it stops at an interrupt, it ends, and the
    caller gets the output that it has by then.
    """
    definition = graph.definition
    saver = definition.saver
    assert saver is not None
    labels = {key: outer.config.get(key) for key in ("tags", "metadata")}
    durability = "sync"
    if outer.options.durability is Durability.EXIT:
        durability = "exit"
    run = GraphRun(
        graph,
        task.input.args[0],
        merged(labels, task.input.kwargs),
        {"durability": durability, "control": outer.control},
    )
    callbacks = nested_callbacks(outer, task, step, definition, run.config)

    def inheriting_plan() -> RunPlan:
        """Return the plan of the called run, with the context that it inherits from the
        outer run.
        """
        if saver.needs_loop:
            refuse_blocked_loop(saver)
        plan = plan_of(run)
        run_context = _inherited(definition, task, outer, plan.run_context)
        run_context = replace(run_context, context=outer.context, callbacks=callbacks)
        return replace(plan, run_context=run_context)

    steps = _planned_steps(run, Prepare(inheriting_plan, saver.needs_loop))
    steps = with_graph_callbacks(steps, run.input, callbacks)
    # This first context of the called run has no committer (the object that commits
    # checkpoints), because that is only created when the run is planned.
    run_context = replace(
        _inherited(definition, task, outer, outer),
        callbacks=callbacks,
        committer=None,
        thread_id=run.config.thread_id,
        namespace="",
    )
    return steps, run_context


def _planned_steps(run: GraphRun, prepare: Prepare) -> Steps:
    """Yield the effects (requests to the engine) of a called run, and release its
    thread at the end. The effect *prepare* comes first: the engine replies to it with
    the plan of the run, which contains the other effects.
    """
    plan: RunPlan = yield prepare
    with plan.resources:
        result = yield from plan.steps
        return Result(run.output(result))


def _inherited(
    definition: GraphDefinition,
    task: Task,
    outer: RunContext,
    run_context: RunContext,
) -> RunContext:
    """Return the context of a nested run, with the parts that it inherits from the
    outer run.

    Args:
        definition: The parts of the nested graph.
        task: The task that runs the nested graph.
        outer: The context of the outer run.
        run_context: The context of the nested run so far.
    """
    store = definition.store
    executor = definition.executor
    return replace(
        run_context,
        ending=outer.ending,
        checks_mutations=outer.checks_mutations,
        store=outer.store if store is None else store,
        executor=outer.executor if executor is None else executor,
        variables=outer.variables if task.variables is None else task.variables,
    )
