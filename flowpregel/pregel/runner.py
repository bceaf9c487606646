"""Makes runs of a graph, outermost, nested and side by side, and hands them to the engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from flowpregel._core.effects import StepContext, Steps
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import INTERRUPT, Address, Arguments, Kind, Node, Task
from flowpregel._core.run import run
from flowpregel._engine.commits import Committers
from flowpregel._engine.drivers import adrive, drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver, Lease
from flowpregel.context import current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Config, merged, parse
from flowpregel.pregel.definition import GraphDefinition, names_where
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import Item
from flowpregel.pregel.request import (
    GraphOutput,
    InvokeRequest,
    RunKeywords,
    print_item,
    stream_item,
)
from flowpregel.pregel.resume import kept_result, start_of

_OF_THE_OUTERMOST = (
    "interrupt_before", "interrupt_after", "control", "durability", "resume", "on_mismatch",
    "progress",
)  # fmt: skip
_WITHOUT_EFFECT = ("stream_mode", "print_mode", "context", "debug", "version")
_FROM_INSIDE = {"custom", "progress"}
"""What nested graphs give the stream even if it does not show subgraphs."""


class GraphRun:
    """One outermost run of a graph: iterate over its items, then ask for its output.

    Args:
        graph: What to run.
        request: What was asked of the run.
    """

    def __init__(self, graph: GraphDefinition, request: InvokeRequest) -> None:
        self._graph = graph
        self._request = request
        self._engine: Engine

    def items(self) -> Iterator[Any]:
        """Run to the end on this OS thread, and yield what the stream shows on the way."""
        self._engine = Engine(run_plan(self._graph, self._request))
        emitted = drive(self._engine)
        try:
            for item in emitted:
                yield from self._shown(item)
        finally:
            emitted.close()  # type: ignore[attr-defined]
            self._close()

    async def aitems(self) -> AsyncIterator[Any]:
        """Run to the end on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        loop = asyncio.get_running_loop()
        self._engine = Engine(run_plan(self._graph, self._request), loop)
        emitted = adrive(self._engine)
        try:
            async for item in emitted:
                for shown in self._shown(item):
                    yield shown
        finally:
            await emitted.aclose()  # type: ignore[attr-defined]
            self._close()

    def _shown(self, item: Item) -> Iterator[Any]:
        request = self._request
        if request.view is not None:
            request.view.see(item)
        if item[1] in request.printed:
            print_item(item)
        if item[1] in request.modes:
            yield stream_item(self._graph, item, request)

    def _close(self) -> None:
        if self._request.view is not None:
            self._request.view.close()

    def output(self) -> Any:
        """Return what the run came to, once all its items were read."""
        result = self._engine.result
        assert result is not None
        if self._request.version == "v2":
            return GraphOutput(self._graph.shaped(result.values), result.interrupts)
        if not result.interrupts:
            return result.values
        values = result.values if isinstance(result.values, dict) else {}
        return {**values, INTERRUPT: list(result.interrupts)}


def run_plan(graph: GraphDefinition, request: InvokeRequest) -> RunPlan:
    """Return what the engine is to do for *request*; the lease of its thread is taken."""
    if graph.checkpointer is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the checkpointer of the "
            "graph around; give a saver or a path"
        )
    if graph.saver is None and request.resume is not None:
        raise ConfigurationError(
            f"resume='auto': graph {graph.name!r} has no checkpointer, so there is nothing "
            "to go on with; pass checkpointer= where it is built"
        )
    with ExitStack() as resources:
        if graph.saver is None:
            return _plan(graph, request, None, resources)
        address = request.config.address
        resources.callback(fault, "lease.released.after")
        fault("lease.taken.before")
        lease = resources.enter_context(graph.saver.lease(address.thread_id, address.namespace))
        fault("lease.taken.after")
        resources.callback(fault, "lease.released.before")
        return _plan(graph, request, lease, resources)


def _plan(
    graph: GraphDefinition, request: InvokeRequest, lease: Lease | None, resources: ExitStack
) -> RunPlan:
    """Return the plan of a run, which takes *resources* over."""
    saver = graph.saver
    config = request.config
    fault("run.start.before")
    start = start_of(graph.program, saver, request)
    fault("run.start.after")
    run_id = start.run_id or str(uuid.uuid4())
    options = replace(
        request.options,
        loaded=start.loaded,
        metadata={**start.metadata, **config.metadata, "run_id": run_id},
        now=now(),
    )
    if saver is not None and lease is not None:
        options = for_saver(replace(options, address=config.address, fence=lease.fence), saver)
    committers = Committers()
    around = RunContext(
        config=replace(config, run_id=start.run_id).shown(),
        context=request.context,
        store=graph.store,
        control=request.control,
        committer=None if saver is None else committers.of(saver, options.durability),
        committers=committers,
        thread_id=config.thread_id,
        run_id=run_id,
        has_saver=saver is not None,
        namespace=config.namespace,
        executor=graph.executor,
        modes=options.modes if request.subgraphs else options.modes & _FROM_INSIDE,
        options=options,
        replayed_before=config.checkpoint_id if request.given is None else None,
    )
    if start.over is None:
        steps = run(graph.program, options, start.given)
    else:
        steps = kept_result(graph.program, start.over, options.output_channels, options.modes)
    return RunPlan(
        steps=steps,
        around=around,
        cache=graph.cache,
        max_concurrency=config.max_concurrency,
        resources=resources.pop_all(),
        lease=lease,
    )


def for_saver(options: Options, saver: BaseCheckpointSaver) -> Options:
    """Return *options* for what *saver* can keep, and for the versions it makes."""
    if not saver.owns_versions:
        return replace(options, keeps_deltas=saver.keeps_deltas)
    return replace(
        options,
        keeps_deltas=saver.keeps_deltas,
        next_version=lambda newest, _: saver.get_next_version(newest, None),
    )


# ---------------------------------------------------------------- nested runs


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
    own = merged(config, **settings)
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
    outer = around.options
    parents = {**outer.metadata.get("parents", {}), outer.namespace: setting.checkpoint_id}
    options = replace(
        outer,
        address=None,
        namespace=namespace,
        loaded=None,
        recursion_limit=config.recursion_limit,
        interrupt_before=names_where(graph.interrupt_before_nodes),
        interrupt_after=names_where(graph.interrupt_after_nodes),
        output_channels=graph.program.output_channels,
        modes=around.modes,
        step_timeout=graph.step_timeout,
        retry=policies_of(graph.retry_policy),
        cache=graph.cache_policy,
        metadata={**outer.metadata, "parents": parents},
        fence=None,
        now=now(),
        nested=Nested(
            resuming=setting.resuming or task.attempt > 1,
            answers=setting.answers,
            before=around.replayed_before if own_id is None else None,
            addressed=own_id is not None,
        ),
    )
    committer = None if graph.checkpointer is False else around.committer
    if graph.saver is not None:
        committer = around.committers.of(graph.saver, outer.durability)
    if committer is not None and around.thread_id is not None:
        address = Address(around.thread_id, namespace, own_id)
        options = replace(for_saver(options, committer.saver), address=address)
    inside = replace(
        around,
        committer=committer,
        has_saver=committer is not None,
        namespace=namespace,
        options=options,
        store=around.store if graph.store is None else graph.store,
        executor=around.executor if graph.executor is None else graph.executor,
        variables=around.variables if task.variables is None else task.variables,
    )
    return run(graph.program, options, given), inside


# ---------------------------------------------------------------- runs side by side


def batch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """Run the graph on each of *inputs*, side by side, and return the outputs in order.

    Args:
        graph: The graph.
        inputs: What each run is given.
        config: One for all, or one for each.
        return_exceptions: Whether to return what a run raises in its place.
        asked: As `Pregel.invoke` takes it.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

    configs, limit = _configs(config, len(inputs))
    limit = limit or min(32, max(1, len(inputs)))
    with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
        invoke = partial(graph.invoke, **asked)
        futures = [pool.submit(invoke, *each) for each in zip(inputs, configs, strict=True)]
    if return_exceptions:
        return [future.exception() or future.result() for future in futures]
    return [future.result() for future in futures]


async def abatch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """`batch`, on the running event loop."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    configs, limit = _configs(config, len(inputs))
    slots = asyncio.Semaphore(limit or max(1, len(inputs)))

    async def one(given: Any, own: Config | None) -> Any:
        async with slots:
            return await graph.ainvoke(given, own, **asked)

    runs = [one(given, own) for given, own in zip(inputs, configs, strict=True)]
    return await asyncio.gather(*runs, return_exceptions=return_exceptions)


def _configs(
    config: Config | Sequence[Config] | None, count: int
) -> tuple[list[Config | None], int | None]:
    """Return a config for each run, and how many may run at once, if that is bounded."""
    is_one = config is None or isinstance(config, Mapping)
    configs: list[Any] = [config] * count if is_one else [*(config or ())]
    if len(configs) != count:
        raise ValueError(f"batch got {count} inputs and {len(configs)} configs; give one for each")
    first = configs[0] if configs else None
    return configs, (first or {}).get("max_concurrency")
