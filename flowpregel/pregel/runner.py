"""Makes runs of a graph, outermost and nested, and hands them to the engine.

::

    invoke(...) --> GraphRun --> items -> plan_of: a RunPlan --> Engine
                (what is asked,          (the thread leased,
                 checked)                 where it starts)
"""

from __future__ import annotations

import sys
import uuid
import warnings
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from flowpregel._core.effects import Emit, StepContext, Steps, Stopped
from flowpregel._core.ids import time_from_id
from flowpregel._core.program import Nested, Options, names
from flowpregel._core.provenance import OtherCodeNotice
from flowpregel._core.records import (
    INTERRUPT,
    Address,
    Arguments,
    Durability,
    Kind,
    Node,
    Task,
)
from flowpregel._core.run import Result
from flowpregel._core.run_loop import run_program
from flowpregel._engine.commits import Committers
from flowpregel._engine.drivers import Item, adrive, drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.nested import RunContext, now
from flowpregel._fault import fault
from flowpregel._interrupts import deliver, ending, held, held_on_loop
from flowpregel._tracebacks import UsersFrames, callers_level, leave_out_ours
from flowpregel.checkpoint.base import BaseCheckpointSaver, OnConflict
from flowpregel.context import current_scope
from flowpregel.errors import (
    ConfigurationError,
    GraphInterrupt,
    RunNotice,
    ThreadBusyError,
)
from flowpregel.pregel import outer_runs
from flowpregel.pregel.config import (
    OPTIONS,
    WHOLE,
    Config,
    context_of,
    merged,
    options_of,
    parse,
)
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.hints import add_hint
from flowpregel.pregel.kept_results import difference_in
from flowpregel.pregel.naming import RunIdentity, labels_of_graph
from flowpregel.pregel.progress import MODES, message_stream, run_hooks
from flowpregel.pregel.resume import Start, for_saver, kept_result, start_of
from flowpregel.pregel.snapshot import GraphOutput
from flowpregel.pregel.views import view_of
from flowpregel.runtime import RunControl

_WITHOUT_EFFECT = ("stream_mode", "print_mode", "context", "debug", "version")
"""Options of an invocation that a graph may be given when another one calls it."""
_PAUSE = 0.05
"""Seconds after which an async run looks again whether its thread is free."""
_FROM_INSIDE = {"custom", "progress"}
"""What nested graphs give the stream even if it does not show subgraphs."""


class GraphRun:
    """One outermost run of a graph: iterate over its items, then ask for its output.

    Args:
        graph: Gives the defaults.
        given: The input.
        given_config: LangGraph's config, or None.
        asked: The keywords.
        streams: Whether `Pregel.stream` was called.

    Raises:
        ConfigurationError: Something cannot be; the message says what.
        TypeError: A keyword that nobody knows.
    """

    engine: Engine
    """What runs it, as soon as it runs."""
    is_unnamed = False
    """Whether its thread was given a name here, which the user does not know."""
    _stopped: Stopped | None = None

    def __init__(
        self,
        graph: GraphDefinition,
        given: Any,
        given_config: Config | None,
        asked: Mapping[str, Any],
        *,
        streams: bool = False,
    ) -> None:
        self.saver = _saver_of(graph)
        wanted = options_of(graph, asked, streams=streams)
        settings = {key: asked[key] for key in asked.keys() - OPTIONS}
        config = parse(
            merged({"run_name": graph.name}, graph.config, given_config, **settings)
        )
        if config.namespace:
            # The checkpoint of a nested graph is found when that is called: by the map
            # of them.
            config = replace(
                config, namespace="", checkpoint_id=config.checkpoint_map.get("")
            )
        self.graph, self.given, self.config = graph, given, config
        self.labels = {} if self.saver is None else labels_of_graph(graph)
        """Metadata that say how another program imports the graph."""
        self._hooks: Any = partial(run_hooks, self) if config.callbacks else nullcontext
        schema, context = graph.context_schema, wanted["context"]
        self.context = context if schema is None else context_of(schema, context)
        self.control: RunControl | None = wanted["control"]
        self.resume: Literal["auto"] | RunIdentity | None = wanted["resume"]
        self.on_conflict: OnConflict = wanted["on_conflict"]
        self.version: Literal["v1", "v2"] = wanted["version"]
        self.stop_after, self.stop_grace = wanted["stop_after"], wanted["stop_grace"]
        mode = asked.get("stream_mode")
        self.modes = (
            () if mode in WHOLE and not streams else names(wanted["stream_mode"])
        )
        """The stream modes that the user reads; none for an output alone."""
        self._printed = (
            ("updates", "values") if wanted["debug"] else names(wanted["print_mode"])
        )
        self._labelled = not isinstance(mode, str | None)
        """Whether several modes were asked for, so that each item names its own."""
        self.subgraphs: bool = wanted["subgraphs"]
        """Whether nested graphs stream too, so that each item names its namespace."""
        self._view = view_of(graph.name) if wanted["progress"] else None
        modes = frozenset((*self.modes, *self._printed, *(MODES if self._view else ())))
        self.options = Options(
            durability=Durability(wanted["durability"]),
            recursion_limit=config.recursion_limit,
            interrupt_before=wanted["interrupt_before"],
            interrupt_after=wanted["interrupt_after"],
            output_channels=wanted["output_keys"],
            modes=modes,
            messages=message_stream(config.metadata) if "messages" in modes else None,
            step_timeout=graph.step_timeout,
            drain=lambda: None if self.control is None else self.control.drain_reason,
            on_code_change=wanted["on_code_change"],
            on_unreadable=wanted["on_unreadable"],
            on_unmatched=wanted["on_unmatched"],
            fail_fast=wanted["fail_fast"],
            stop_grace=wanted["stop_grace"],
        )
        """All but what the thread's saver decides."""

    def cancel(self) -> None:
        """Ask the run to stop at once; may be called on any OS thread, and before it
        starts.
        """
        self._stop(Stopped("the run was cancelled"))

    def end(self, reason: str) -> bool:
        """Ask the run to end in time: its running tasks are told; return whether it has
        begun.
        """
        self._stop(Stopped(reason, kill=False))
        return hasattr(self, "engine")

    def _stop(self, stopped: Stopped) -> None:
        self._stopped = stopped
        if hasattr(self, "engine"):
            self.engine.ask_to_stop(stopped.reason, kill=stopped.kill)

    def items(self) -> Iterator[Any]:
        """Run to the end on this OS thread, and yield what the stream shows on the
        way.
        """
        emitted = self._driven()
        try:
            with ending(self.end):
                try:
                    while True:
                        with held():
                            item = next(emitted, None)
                        if item is None:
                            return
                        yield from self._shown(item)
                finally:
                    with (
                        held(),
                        nullcontext() if self._view is None else closing(self._view),
                    ):
                        emitted.close()
        except BaseException as error:
            add_hint(self, error)
            leave_out_ours(error)
            raise

    def _driven(self) -> Generator[Item, None, None]:
        self.engine = Engine(planned := plan_of(self))
        if self._stopped is not None:
            self._stop(self._stopped)
        with self._hooks(planned):
            yield from drive(self.engine)

    async def aitems(self) -> AsyncIterator[Any]:
        """Run to the end on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        loop = asyncio.get_running_loop()
        emitted: Any = None
        with UsersFrames(), self._hints(), ending(self.end), ExitStack() as around:
            try:
                while True:
                    # Until the reader's code has its turn.
                    with held_on_loop(loop, self._wake):
                        if emitted is None:
                            emitted = adrive(await self._begun(loop, around))
                        item = await anext(emitted, None)
                    if item is None:
                        return
                    for shown in self._shown(item):
                        yield shown
            finally:
                if emitted is not None:
                    with held_on_loop(loop, self._wake):
                        await emitted.aclose()

    async def _begun(self, loop: Any, around: ExitStack) -> Engine:
        """Return the engine of the run, and enter in *around* what lasts as long as
        it.
        """
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        is_elsewhere = self.saver is not None and self.saver.needs_loop
        # Who waits must not block the loop, which may have the other run to go on with.
        waits = self.on_conflict == "wait"
        self.on_conflict = "raise" if waits else self.on_conflict
        planned = None
        while planned is None:
            try:
                planned = (
                    await asyncio.to_thread(plan_of, self)
                    if is_elsewhere
                    else plan_of(self)
                )
            except ThreadBusyError:
                if not waits:
                    raise
                deliver()
                await asyncio.sleep(_PAUSE)
        self.engine = Engine(planned, loop)
        around.enter_context(self._hooks(planned))
        if self._view is not None:
            around.enter_context(closing(self._view))
        return self.engine

    def _wake(self) -> None:
        """End what a run on an event loop waits for, in a signal's handler."""
        if hasattr(self, "engine"):
            self.engine.wake()

    @contextmanager
    def _hints(self) -> Iterator[None]:
        """Add to what is raised how to go on."""
        try:
            yield
        except BaseException as error:
            add_hint(self, error)
            raise

    def _shown(self, item: Item) -> Iterator[Any]:
        """Yield what a run emitted in the form that was asked for, if it was."""
        namespace, mode, payload = item
        if self._view is not None:
            self._view.see(item)
        if mode == "notices":
            if isinstance(payload, OtherCodeNotice):
                payload = payload.text(self._difference(payload))
            warnings.warn(payload, RunNotice, stacklevel=callers_level())
        if mode in self._printed:
            where = f" [{'|'.join(namespace)}]" if namespace else ""
            sys.stdout.write(f"[{mode}]{where} {payload!r}\n")
        if mode not in self.modes:
            return
        if self.version == "v1":
            parts = ((namespace,) if self.subgraphs else ()) + (
                (mode,) if self._labelled else ()
            )
            yield (*parts, payload) if parts else payload
            return
        shown = {"type": mode, "ns": namespace, "data": payload}
        if mode == "values":
            values = dict(payload) if isinstance(payload, dict) else payload
            interrupts = values.pop(INTERRUPT, ()) if isinstance(values, dict) else ()
            data = values if namespace else self.graph.shaped(values)
            shown |= {"data": data, "interrupts": interrupts}
        yield shown

    def _difference(self, notice: OtherCodeNotice) -> str:
        """Return the first line that differs in the code that a notice is about."""
        if self.saver is None:
            return ""
        return difference_in(self.saver, notice.recorded, notice.now)

    def output(self, result: Result | None = None) -> Any:
        """Return what the run came to, once all its items were read, or *result* if
        given.
        """
        result = self.engine.result if result is None else result
        assert result is not None
        if self.version == "v2":
            return GraphOutput(self.graph.shaped(result.values), result.interrupts)
        if not result.interrupts:
            return result.values
        values = result.values if isinstance(result.values, dict) else {}
        return {**values, INTERRUPT: list(result.interrupts)}


def _saver_of(graph: GraphDefinition) -> BaseCheckpointSaver | None:
    """Return what keeps the runs of a graph; refuse one that cannot run by itself, or
    not here.
    """
    if outer_runs.is_dry.get():
        raise GraphInterrupt  # it would run, and keep something
    own: Any = graph.checkpointer
    if own is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the "
            "checkpointer of the graph around; give a saver or a path"
        )
    return None if own is False else own


def plan_of(asked: GraphRun) -> RunPlan:
    """Return what the engine is to do for a run; the lease of its thread is taken."""
    graph, config, options, lease = asked.graph, asked.config, asked.options, None
    saver, committers = asked.saver, Committers()
    with ExitStack() as resources:
        if saver is not None:
            place = config.address.thread_id, config.address.namespace
            outer_runs.refuse_inside_itself(saver, place)
            resources.callback(fault, "lease.released.after")
            fault("lease.taken.before")
            lease = resources.enter_context(
                saver.lease(*place, on_conflict=asked.on_conflict)
            )
            lease.drawing = lambda: cast(Any, graph).get_graph().outline()
            fault("lease.taken.after")
            resources.callback(fault, "lease.released.before")
            options = for_saver(
                replace(options, address=config.address, fence=lease.fence), saver
            )
        fault("run.start.before")
        start = _start_of(asked, options)
        fault("run.start.after")
        run_id = start.run_id or str(uuid.uuid4())
        metadata = {**asked.labels, **start.metadata, **config.metadata}
        metadata["run_id"] = run_id
        options = _begun(asked, options, start, metadata)
        variables = options.messages.variables() if options.messages else copy_context()
        committer = None
        if saver is not None:
            variables.run(outer_runs.enter_run, saver, place)
            committer = committers.of(saver, options.durability)
        around = RunContext(
            config={**config.shown, "run_id": start.run_id},
            context=asked.context,
            store=graph.store,
            control=asked.control,
            committer=committer,
            committers=committers,
            thread_id=config.thread_id,
            run_id=run_id,
            has_saver=saver is not None,
            outer_runs=variables.run(outer_runs.outer_runs_of_tasks),
            executor=graph.executor,
            modes=options.modes if asked.subgraphs else options.modes & _FROM_INSIDE,
            options=options,
            variables=variables,
            replayed_before=start.replayed_before,
            is_over=start.over is not None,
        )
        return RunPlan(
            steps=_steps_of(start, options, saver),
            around=around,
            open_cache=graph.open_cache,
            max_concurrency=config.max_concurrency,
            resources=resources.pop_all(),
            lease=lease,
            stop_after=asked.stop_after,
            stop_grace=asked.stop_grace,
        )


def _start_of(asked: GraphRun, options: Options) -> Start:
    """Return how a run starts, by what is kept of it."""
    return start_of(
        asked.graph.program_now(),
        asked.saver,
        asked.given,
        asked.config,
        resume=asked.resume,
        options=options,
    )


def _begun(
    asked: GraphRun, options: Options, start: Start, metadata: Mapping[str, Any]
) -> Options:
    """Return the options of a run that starts now."""
    return replace(
        options,
        address=start.address or options.address,
        adopts_input=start.adopts_input,
        loaded=start.loaded,
        metadata=metadata,
        now=now() if start.after is None else max(now(), time_from_id(start.after) + 1),
    )


def _steps_of(
    start: Start, options: Options, saver: BaseCheckpointSaver | None
) -> Steps:
    """Go the steps of a run, the notices about what is kept first."""
    found = start.kept
    if start.over is None:
        for notice in () if found is None else found.node_notices():
            yield Emit("notices", notice)
        return (yield from run_program(start.program, options, start.given))
    if found is not None and saver is not None and (notice := found.notice(saver)):
        yield Emit("notices", notice)
    return (yield from kept_result(start.program, start.over, options))


# ---------------------------------------------------------------- nested runs


def call_nested(
    graph: GraphDefinition, given: Any, config: Config | None, asked: Mapping[str, Any]
) -> Any:
    """Call *graph* from a task of another, and return the future of its output."""
    scope = current_scope(f"graph {graph.name!r}")
    for name in OPTIONS.difference(_WITHOUT_EFFECT):
        if name in asked:
            raise ConfigurationError(
                f"{name} belongs to the outermost run, not to a graph called in it"
            )
    settings = {key: value for key, value in asked.items() if key not in OPTIONS}
    # Hidden: streams show what the graph emits, and not the call itself, as LangGraph's
    # do.
    node = Node(name=graph.name, graph=graph, role="graph", hidden=True)
    return scope.ends.call(node, Arguments((given,), merged(config, **settings)), None)


def nested_run(
    graph: GraphDefinition, task: Task, setting: StepContext, around: RunContext
) -> tuple[Steps, RunContext]:
    """Return the run of *graph* that *task* of another graph is, and the context of its
    tasks.
    """
    if (own := _own_thread_run(graph, task, around)) is not None:
        return own
    is_call = task.kind is Kind.CALL
    given, own_config = (
        (task.input.args[0], task.input.kwargs) if is_call else (task.input, {})
    )
    config = parse(merged(around.config, graph.config, own_config))
    namespace = graph.namespace_at(task.namespace)
    own_id = config.checkpoint_map.get(namespace)
    before = None if own_id is not None else around.take_back(task.namespace)
    outer = around.options
    parents = {
        **outer.metadata.get("parents", {}),
        outer.namespace: setting.checkpoint_id,
    }
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
        metadata={**outer.metadata, "parents": parents},
        fence=None,
        now=now(),
        nested=Nested(
            resuming=before is None and (setting.resuming or task.attempt.number > 1),
            answers=setting.answers,
            own_answers=task.attempt.answers,
            before=before,
            addressed=own_id is not None,
        ),
    )
    committer = None if graph.checkpointer is False else around.committer
    if graph.saver is not None:
        committer = around.committers.of(graph.saver, outer.durability)
    if committer is not None and around.thread_id is not None:
        address = Address(around.thread_id, namespace, own_id)
        options = replace(for_saver(options, committer.saver), address=address)
    inside = _inside(graph, task, around, around)
    has_saver = committer is not None
    inside = replace(
        inside, committer=committer, has_saver=has_saver, config=config.shown
    )
    inner = run_program(graph.program_now(), options, given)
    return inner, replace(inside, namespace=namespace, options=options)


def _own_thread_run(
    graph: GraphDefinition, task: Task, around: RunContext
) -> tuple[Steps, RunContext] | None:
    """Return the run of a graph that *task* calls on another thread; None: it is on the
    caller's.

    It is an outermost run in all but its engine, and a question ends it for its caller.
    A graph without a saver of its own keeps its state with the caller's, as any other.
    """
    if task.kind is not Kind.CALL or graph.saver is None:
        return None
    given, own = task.input.args[0], task.input.kwargs
    wanted = parse(merged(graph.config, own))
    is_callers = around.thread_id is not None and wanted.thread_id == around.thread_id
    shares_saver = (
        around.committer is not None and around.committer.saver is graph.saver
    )
    if wanted.thread_id is None or (is_callers and (shares_saver or wanted.namespace)):
        return None
    labels = {key: around.config.get(key) for key in ("tags", "metadata")}
    durability = "exit" if around.options.durability is Durability.EXIT else "sync"
    options = {"durability": durability, "control": around.control}
    asked = GraphRun(graph, given, merged(labels, own), options)
    planned = plan_of(asked)

    def steps() -> Steps:
        """Go the steps of the run, and release its thread where it ends."""
        with planned.resources:
            return Result(asked.output((yield from planned.steps)))

    return steps(), replace(
        _inside(graph, task, around, planned.around), context=around.context
    )


def _inside(
    graph: GraphDefinition, task: Task, around: RunContext, own: RunContext
) -> RunContext:
    """Return *own*, with what a nested run has of the one *around* if it was not given
    its own.
    """
    return replace(
        own,
        ending=around.ending,
        store=around.store if graph.store is None else graph.store,
        executor=around.executor if graph.executor is None else graph.executor,
        variables=around.variables if task.variables is None else task.variables,
    )
