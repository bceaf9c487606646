"""Makes runs of a graph, outermost and nested, and hands them to the engine."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import StepContext, Steps
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import INTERRUPT, Address, Arguments, Kind, Node, Task
from flowpregel._core.run import run
from flowpregel._core.run_state import Result
from flowpregel._engine.commits import Committers
from flowpregel._engine.drivers import Item, adrive, drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.nested import RunContext, now
from flowpregel._fault import fault
from flowpregel._interrupts import held
from flowpregel.checkpoint.base import BaseCheckpointSaver, Lease
from flowpregel.context import RunControl, current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Config, ParsedConfig, merged, parse
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import ProgressView
from flowpregel.pregel.resume import kept_result, start_of

_OF_THE_OUTERMOST = (
    "interrupt_before", "interrupt_after", "control", "durability", "resume", "on_mismatch",
    "progress",
)  # fmt: skip
_WITHOUT_EFFECT = ("stream_mode", "print_mode", "context", "debug", "version")
_FROM_INSIDE = {"custom", "progress"}
"""What nested graphs give the stream even if it does not show subgraphs."""


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What ``invoke(version="v2")`` returns."""

    value: Any
    """What the output channels hold."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; empty if the run is done."""

    def __iter__(self) -> Iterator[Any]:
        """Yield value and interrupts, for unpacking."""
        return iter((self.value, self.interrupts))

    def __getitem__(self, key: str) -> Any:
        """Return what a plain output has under *key*, for programs that were written for one."""
        if key == INTERRUPT:
            return self.interrupts
        value = self.value
        return value[key] if isinstance(value, Mapping) else getattr(value, key)

    def __contains__(self, key: object) -> bool:
        """Return whether a plain output would have *key*."""
        if key == INTERRUPT:
            return bool(self.interrupts)
        value = self.value
        return key in value if isinstance(value, Mapping) else hasattr(value, str(key))


@dataclass(slots=True, kw_only=True, eq=False)
class GraphRun:
    """One outermost run of a graph: iterate over its items, then ask for its output."""

    graph: GraphDefinition
    given: Any
    """Its input."""
    config: ParsedConfig
    options: Options
    """All but what the thread's saver decides."""
    context: Any
    control: RunControl | None
    resume: Literal["auto"] | None
    modes: tuple[str, ...]
    """The stream modes that the user reads."""
    labelled: bool
    """Whether several modes were asked for, so that each item names its own."""
    subgraphs: bool
    """Whether nested graphs stream too, so that each item names its namespace."""
    printed: tuple[str, ...]
    """The stream modes that are printed."""
    view: ProgressView | None
    """Shows how far the run is."""
    version: Literal["v1", "v2"]
    engine: Engine = field(init=False)

    def items(self) -> Iterator[Any]:
        """Run to the end on this OS thread, and yield what the stream shows on the way."""
        emitted = self._driven()
        try:
            while True:
                with held():
                    item = next(emitted, None)
                if item is None:
                    return
                yield from self._shown(item)
        finally:
            with held(), self._viewed():
                emitted.close()

    def _driven(self) -> Generator[Item, None, None]:
        self.engine = Engine(run_plan(self))
        yield from drive(self.engine)

    async def aitems(self) -> AsyncIterator[Any]:
        """Run to the end on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        saver = self.graph.saver
        is_elsewhere = saver is not None and saver.needs_loop
        planned = await asyncio.to_thread(run_plan, self) if is_elsewhere else run_plan(self)
        self.engine = Engine(planned, asyncio.get_running_loop())
        emitted = adrive(self.engine)
        with self._viewed():
            async with aclosing(emitted):  # type: ignore[type-var]
                async for item in emitted:
                    for shown in self._shown(item):
                        yield shown

    def _viewed(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.view is None else closing(self.view)

    def _shown(self, item: Item) -> Iterator[Any]:
        """Yield what a run emitted in the form that was asked for, if it was."""
        namespace, mode, payload = item
        if self.view is not None:
            self.view.see(item)
        if mode in self.printed:
            where = f" [{'|'.join(namespace)}]" if namespace else ""
            sys.stdout.write(f"[{mode}]{where} {payload!r}\n")
        if mode not in self.modes:
            return
        if self.version == "v1":
            parts = ((namespace,) if self.subgraphs else ()) + ((mode,) if self.labelled else ())
            yield (*parts, payload) if parts else payload
            return
        shown = {"type": mode, "ns": namespace, "data": payload}
        if mode == "values":
            interrupts = ()
            if isinstance(payload, dict) and INTERRUPT in payload:
                payload = dict(payload)
                interrupts = payload.pop(INTERRUPT)
            data = payload if namespace else self.graph.shaped(payload)
            shown |= {"data": data, "interrupts": interrupts}
        yield shown

    def output(self) -> Any:
        """Return what the run came to, once all its items were read."""
        result = self.engine.result
        assert result is not None
        if self.version == "v2":
            return GraphOutput(self.graph.shaped(result.values), result.interrupts)
        return plain_output(result)


def plain_output(result: Result) -> Any:
    """Return what ``invoke(version="v1")`` returns."""
    if not result.interrupts:
        return result.values
    values = result.values if isinstance(result.values, dict) else {}
    return {**values, INTERRUPT: list(result.interrupts)}


def run_plan(asked: GraphRun) -> RunPlan:
    """Return what the engine is to do for a run; the lease of its thread is taken."""
    graph = asked.graph
    if graph.checkpointer is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the checkpointer of the "
            "graph around; give a saver or a path"
        )
    if graph.saver is None and asked.resume is not None:
        raise ConfigurationError(
            f"resume='auto': graph {graph.name!r} has no checkpointer, so there is nothing "
            "to go on with; pass checkpointer= where it is built"
        )
    with ExitStack() as resources:
        if graph.saver is None:
            return _plan(asked, None, resources)
        address = asked.config.address
        resources.callback(fault, "lease.released.after")
        fault("lease.taken.before")
        lease = resources.enter_context(graph.saver.lease(address.thread_id, address.namespace))
        fault("lease.taken.after")
        resources.callback(fault, "lease.released.before")
        return _plan(asked, lease, resources)


def _plan(asked: GraphRun, lease: Lease | None, resources: ExitStack) -> RunPlan:
    """Return the plan of a run, which takes *resources* over."""
    graph, saver, config = asked.graph, asked.graph.saver, asked.config
    fault("run.start.before")
    start = start_of(graph.program, saver, asked.given, config, resume=asked.resume)
    fault("run.start.after")
    run_id = start.run_id or str(uuid.uuid4())
    options = replace(
        asked.options,
        loaded=start.loaded,
        metadata={**start.metadata, **config.metadata, "run_id": run_id},
        now=now(),
    )
    if saver is not None and lease is not None:
        options = for_saver(replace(options, address=config.address, fence=lease.fence), saver)
    committers = Committers()
    around = RunContext(
        config={**config.shown(), "run_id": start.run_id},
        context=asked.context,
        store=graph.store,
        control=asked.control,
        committer=None if saver is None else committers.of(saver, options.durability),
        committers=committers,
        thread_id=config.thread_id,
        run_id=run_id,
        has_saver=saver is not None,
        executor=graph.executor,
        modes=options.modes if asked.subgraphs else options.modes & _FROM_INSIDE,
        options=options,
        replayed_before=config.checkpoint_id if asked.given is None else None,
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
    options = replace(options, keeps_deltas=saver.keeps_deltas)
    if not saver.owns_versions:
        return options
    return replace(options, next_version=lambda newest, _: saver.get_next_version(newest, None))


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
        interrupt_before=graph.interrupt_before_nodes,
        interrupt_after=graph.interrupt_after_nodes,
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
        config=config.shown(),
        committer=committer,
        has_saver=committer is not None,
        namespace=namespace,
        options=options,
        **inherited(graph, task, around),
    )
    return run(graph.program, options, given), inside


def inherited(graph: GraphDefinition, task: Task, around: RunContext) -> dict[str, Any]:
    """Return what a nested run has of the one *around*, unless it was given its own."""
    return {
        "store": around.store if graph.store is None else graph.store,
        "executor": around.executor if graph.executor is None else graph.executor,
        "variables": around.variables if task.variables is None else task.variables,
    }
