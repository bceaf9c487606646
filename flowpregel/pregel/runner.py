"""Makes a run of a graph, hands it to the engine, and gives what it emits to its reader."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from flowpregel._core.program import Options
from flowpregel._core.run import run
from flowpregel._engine import clock
from flowpregel._engine.drivers import adrive, drive, result_of
from flowpregel._engine.elsewhere import running_loop
from flowpregel._engine.host import Host, Plan
from flowpregel._engine.keeper import Committers
from flowpregel._engine.placing import RunContext
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.shapes import Lease
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.progress import Item
from flowpregel.pregel.request import GraphOutput, RunRequest, print_item, stream_item
from flowpregel.pregel.resume import kept_result, start_of

_FROM_INSIDE = {"custom", "progress"}
"""What nested graphs give the stream even if it does not show subgraphs."""


class GraphRun:
    """One outermost run of a graph: iterate over its items, then ask for its output.

    Args:
        graph: What to run.
        request: What was asked of the run.
    """

    def __init__(self, graph: GraphDefinition, request: RunRequest) -> None:
        self._graph = graph
        self._request = request
        self._engine: Host

    def items(self) -> Iterator[Any]:
        """Run to the end on this OS thread, and yield what the stream shows on the way."""
        self._engine = Host(run_plan(self._graph, self._request))
        emitted = drive(self._engine)
        try:
            for item in emitted:
                yield from self._shown(item)
        finally:
            emitted.close()  # type: ignore[attr-defined]
            self._close()

    async def aitems(self) -> AsyncIterator[Any]:
        """Run to the end on the running event loop."""
        self._engine = Host(run_plan(self._graph, self._request), running_loop())
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
        result = result_of(self._engine)
        if self._request.version == "v2":
            return GraphOutput(self._graph.shaped(result.values), result.interrupts)
        if not result.interrupts:
            return result.values
        values = result.values if isinstance(result.values, dict) else {}
        return {**values, "__interrupt__": list(result.interrupts)}


def run_plan(graph: GraphDefinition, request: RunRequest) -> Plan:
    """Return what the engine is to do for *request*; the lease of its thread is taken."""
    saver = _saver_of(graph)
    if saver is None:
        if request.resume is not None:
            raise ConfigurationError(
                f"resume='auto': graph {graph.name!r} has no checkpointer, so there is nothing "
                "to go on with; pass checkpointer= where it is built"
            )
        return _plan(graph, request, None, None, ExitStack())
    address = request.config.address
    with ExitStack() as resources:
        resources.callback(fault, "lease.released.after")
        fault("lease.taken.before")
        lease = resources.enter_context(saver.lease(address.thread_id, address.namespace))
        fault("lease.taken.after")
        resources.callback(fault, "lease.released.before")
        plan = _plan(graph, request, saver, lease, resources)
        return replace(plan, resources=resources.pop_all())


def _saver_of(graph: GraphDefinition) -> BaseCheckpointSaver | None:
    if graph.checkpointer is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the checkpointer of the "
            "graph around; give a saver or a path"
        )
    return graph.checkpointer or None


def _plan(
    graph: GraphDefinition,
    request: RunRequest,
    saver: BaseCheckpointSaver | None,
    lease: Lease | None,
    resources: ExitStack,
) -> Plan:
    config = request.config
    fault("run.start.before")
    start = start_of(graph.program, saver, request)
    fault("run.start.after")
    run_id = start.run_id or str(uuid.uuid4())
    options = replace(
        request.options,
        loaded=start.loaded,
        metadata={**start.metadata, **config.metadata, "run_id": run_id},
        now=clock.now(),
    )
    if saver is not None and lease is not None:
        options = for_saver(replace(options, address=config.address, fence=lease.fence), saver)
    committers = Committers()
    around = RunContext(
        config=replace(config, run_id=start.run_id).shown(),
        context=request.context,
        store=graph.store,
        control=request.control,
        keeper=None if saver is None else committers.of(saver, options.durability),
        keepers=committers,
        thread_id=config.thread_id,
        run_id=run_id,
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
    return Plan(
        steps=steps,
        around=around,
        cache=graph.cache,
        max_concurrency=config.max_concurrency,
        resources=resources,
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
