"""Graphs inside graphs: where a nested run keeps its state, and what it inherits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowpregel._core.effects import StepContext
from flowpregel._core.program import Nested, Options
from flowpregel._core.progress import Steps
from flowpregel._core.records import Address, Arguments, Kind, Node, Task
from flowpregel._core.run import run
from flowpregel._engine import clock
from flowpregel._engine.keeper import Committer
from flowpregel._engine.placing import RunContext
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Config, merged, of_keywords, parse
from flowpregel.pregel.definition import GraphDefinition, names_where
from flowpregel.pregel.runner import for_saver

_OF_THE_OUTERMOST = (
    "interrupt_before", "interrupt_after", "control", "durability", "resume", "on_mismatch",
    "progress",
)  # fmt: skip
_WITHOUT_EFFECT = ("stream_mode", "print_mode", "context", "debug", "version")


def call_nested(
    graph: GraphDefinition, given: Any, config: Config | None, asked: Mapping[str, Any]
) -> Any:
    """Call *graph* from a task of another, and return the future of its output."""
    scope = current_scope(f"graph {graph.name!r}")
    for name in _OF_THE_OUTERMOST:
        if name in asked:
            raise ConfigurationError(
                f"{name} belongs to the outermost run, not to a graph called in it"
            )
    settings = {key: value for key, value in asked.items() if key not in _WITHOUT_EFFECT}
    own = merged(config, of_keywords(settings))
    # Hidden: streams show what the graph emits, and not the call itself, as LangGraph's do.
    node = Node(name=graph.name, graph=graph, role="graph", hidden=True)
    return scope.ends.call(node, Arguments((given,), own), None, graph.name)


def nested_run(
    graph: GraphDefinition, task: Task, setting: StepContext, around: RunContext
) -> tuple[Steps, RunContext]:
    """Return the run of *graph* that *task* of another graph is, and the context of its tasks."""
    is_call = task.kind is Kind.CALL
    given, own_config = (task.input.args[0], task.input.kwargs) if is_call else (task.input, {})
    config = parse(merged(around.config, graph.config, own_config))
    namespace = graph.namespace_at(task.namespace)
    own_id = config.checkpoint_map.get(namespace)
    nested = Nested(
        resuming=setting.resuming or task.attempt > 1,
        answers=setting.answers,
        before=around.replayed_before if own_id is None else None,
        addressed=own_id is not None,
    )
    options = replace(
        _options(graph, setting, around),
        namespace=namespace,
        recursion_limit=config.recursion_limit,
        nested=nested,
    )
    committer = _committer(graph, around)
    if committer is not None and around.thread_id is not None:
        address = Address(around.thread_id, namespace, own_id)
        options = replace(for_saver(options, committer.saver), address=address)
    inside = replace(
        around,
        keeper=committer,
        namespace=namespace,
        options=options,
        store=around.store if graph.store is None else graph.store,
        executor=around.executor if graph.executor is None else graph.executor,
        variables=around.variables if task.variables is None else task.variables,
    )
    return run(graph.program, options, given), inside


def _options(graph: GraphDefinition, setting: StepContext, around: RunContext) -> Options:
    """Return the options of the run around, with what the graph itself decides."""
    outer = around.options
    assert outer is not None
    parents = {**outer.metadata.get("parents", {}), outer.namespace: setting.checkpoint_id}
    return replace(
        outer,
        address=None,
        loaded=None,
        interrupt_before=names_where(graph.interrupt_before_nodes),
        interrupt_after=names_where(graph.interrupt_after_nodes),
        output_channels=graph.program.output_channels,
        modes=around.modes,
        step_timeout=graph.step_timeout,
        retry=graph.retry_policy,
        cache=graph.cache_policy,
        metadata={**outer.metadata, "parents": parents},
        fence=None,
        now=clock.now(),
    )


def _committer(graph: GraphDefinition, around: RunContext) -> Committer | None:
    """Return what keeps the state of a nested run: by default that of the run around."""
    if graph.checkpointer is None or graph.checkpointer is True:
        return around.keeper
    if isinstance(graph.checkpointer, BaseCheckpointSaver):
        assert around.options is not None
        return around.keepers.of(graph.checkpointer, around.options.durability)
    return None
