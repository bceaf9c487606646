"""One run of a graph that is not nested in another run, from request to output.

::

    the user calls `invoke` or `stream`
      |
      v
    `GraphRun` checks the arguments
      |
      v
    `plan_of` leases the thread, finds where the run starts, and returns a `RunPlan`
      |
      v
    an `Engine` executes the plan, and yields the items of the stream
      |
      v
    the output, which `invoke` returns
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from flowpregel._core.effects import Stopped
from flowpregel._core.program import Options
from flowpregel._core.records import Durability
from flowpregel._core.run import Result
from flowpregel._engine.drivers import Item, adrive, drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.handlers import Handlers
from flowpregel._interrupts import (
    defer_interrupts,
    held_on_loop,
    on_sigterm,
    raise_pending_interrupts,
)
from flowpregel._tracebacks import UsersFrames, leave_out_ours
from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import BaseCheckpointSaver, OnConflict
from flowpregel.errors import ConfigurationError, GraphInterrupt, ThreadBusyError
from flowpregel.pregel.cache_misses import ExplainedCache, miss_notices
from flowpregel.pregel.config import Config, ParsedConfig, merged, parse
from flowpregel.pregel.definition import CompiledGraph
from flowpregel.pregel.hints import add_hint
from flowpregel.pregel.hooks import handlers_of, run_hooks, with_node_callbacks
from flowpregel.pregel.invocation import (
    OPTION_NAMES,
    InvocationOptions,
    context_of,
    options_of,
)
from flowpregel.pregel.naming import RunIdentity, labels_of_graph
from flowpregel.pregel.outer_runs import is_dry, refuse_while_imported
from flowpregel.pregel.run_plan import plan_of
from flowpregel.pregel.stream_items import MODEL_MODES, StreamItems, message_stream
from flowpregel.runtime import RunControl

_TASK_MODES = frozenset({"tasks", "debug"})
"""The stream modes that show tasks with the metadata of the run."""
_PAUSE = 0.05
"""Seconds between two attempts of an async run to lease a busy thread."""


class GraphRun:
    """One outermost run of a graph: iterate over its items, then take its output.

    Args:
        graph: The graph, with its defaults.
        input: The input of the run.
        config: LangGraph's config, or None.
        keywords: The keywords of the invocation: options, and parts of a config.
        streams: Whether `Pregel.stream` was called.

    Raises:
        ConfigurationError: A value is not allowed.
        TypeError: There is no such keyword.
    """

    engine: Engine
    """The engine, which executes the run, once the run has begun."""
    is_unnamed = False
    """True if the user does not know the id of the run's thread."""
    handlers: Handlers = Handlers()
    """The callback handlers of the run, once it has begun."""
    _stopped: Stopped | None = None
    _grace: float | None = None
    """The grace period of the last request to stop, which is in `_stopped`. Both are
    stored because the request may arrive before the run begins.
    """

    def __init__(
        self,
        graph: CompiledGraph,
        input: Any,
        config: Config | None,
        keywords: Mapping[str, Any],
        *,
        streams: bool = False,
    ) -> None:
        definition = graph.definition
        self.graph = graph
        self.definition = definition
        self.input = input
        self.saver: BaseCheckpointSaver | None = _saver_of(graph)
        invocation = options_of(definition, keywords, streams=streams)
        self.config: ParsedConfig = _config_of(graph, config, keywords)
        self.labels: dict[str, str] = (
            {} if self.saver is None else labels_of_graph(graph)
        )
        """The metadata with which another program can import the graph."""
        self.context: Any = context_of(definition.context_schema, invocation.context)
        self.control: RunControl | None = invocation.control
        self.resume: Literal["auto"] | RunIdentity | None = invocation.resume
        self.on_conflict: OnConflict = invocation.on_conflict
        self.stop_after: float | None = invocation.stop_after
        self.subgraphs: bool = invocation.subgraphs
        """True if the stream includes the events of nested graphs."""
        self.form: StreamItems = StreamItems(
            definition,
            invocation,
            keywords.get("stream_mode"),
            self.saver,
            streams=streams,
        )
        """The converter of events to the items of the stream."""
        self.modes: tuple[str, ...] = self.form.modes
        """The stream modes that the user reads. The tuple is empty if only the output
        is read.
        """
        self.options: Options = self._core_options(invocation)
        """The options for `flowpregel._core`, without those that depend on the saver.
        """
        self._cache_changes: dict[str, str] = {}
        """The changes of code that explain why the cache lacks results, by task."""

    def _core_options(self, invocation: InvocationOptions) -> Options:
        modes = self.form.read_modes()
        messages = None
        if not modes.isdisjoint(MODEL_MODES):
            messages = message_stream(
                modes & MODEL_MODES,
                self.config.metadata,
                as_events=invocation.version == "v3",
            )
        return Options(
            durability=Durability(invocation.durability),
            recursion_limit=self.config.recursion_limit,
            interrupt_before=invocation.interrupt_before,
            interrupt_after=invocation.interrupt_after,
            output_channels=invocation.output_keys,
            modes=modes,
            messages=messages,
            task_labels=self.config.task_labels if modes & _TASK_MODES else {},
            step_timeout=self.definition.step_timeout,
            # If the user has passed no `control`, this function always returns None, so
            # the run is never asked to stop at a barrier.
            drain=partial(getattr, self.control, "drain_reason", None),
            on_code_change=invocation.on_code_change,
            on_unreadable=invocation.on_unreadable,
            on_unmatched=invocation.on_unmatched,
            fail_fast=invocation.fail_fast,
            checks_mutations=invocation.check_mutations,
            stop_grace=invocation.stop_grace,
        )

    # ------------------------------------------------------------ requests to stop

    def cancel(self) -> None:
        """Ask the run to stop at once.

        The method may be called on any OS thread, and before the run has begun.
        """
        self._stop(Stopped("the run was cancelled"))

    def end(self, reason: str, grace: float | None = None) -> bool:
        """Ask the run to stop gracefully, and return whether the run has begun.

        Running tasks get a notice and the grace period.

        Args:
            reason: The reason for the request.
            grace: The grace period in seconds, which may be infinite. None for the
                option ``stop_grace``.
        """
        self._grace = grace
        self._stop(Stopped(reason, kill=False))
        return hasattr(self, "engine")

    def _stop(self, stopped: Stopped) -> None:
        self._stopped = stopped
        if hasattr(self, "engine"):
            self.engine.ask_to_stop(
                stopped.reason, kill=stopped.kill, grace=self._grace
            )

    # ------------------------------------------------------------ on an OS thread

    def items(self) -> Iterator[Any]:
        """Run to the end on this OS thread, and yield the items of the stream."""
        events = self._driven()
        try:
            with on_sigterm(self.end):
                try:
                    while True:
                        with defer_interrupts():
                            event = next(events, None)
                        if event is None:
                            break
                        yield from self.form.items(event)
                    if self._cache_changes:
                        yield from self._last_items()
                finally:
                    with defer_interrupts(), self._open_view():
                        events.close()
        except BaseException as error:
            add_hint(self, error)
            leave_out_ours(error)
            raise

    def _driven(self) -> Generator[Item, None, None]:
        plan = plan_of(self)
        if self.config.callbacks:
            self.handlers = handlers_of(self.config)
            plan = with_node_callbacks(self, plan)
        self.engine = Engine(plan)
        if self._stopped is not None:
            self._stop(self._stopped)
        with self._hooks(plan):
            yield from drive(self.engine)

    def open_cache(self, resources: ExitStack) -> BaseCache | None:
        """Return the cache of the run, which notes why results are missing.

        Args:
            resources: The exit stack that closes a cache opened by this call.
        """
        cache = self.definition.open_cache(resources)
        return None if cache is None else ExplainedCache(cache, self._cache_changes)

    def _last_items(self) -> Iterator[Any]:
        """Yield the items of the stream that follow the last event of the run."""
        for notice in miss_notices(self._cache_changes):
            yield from self.form.items(((), "notices", notice))

    def _open_view(self) -> Any:
        """Return a context manager at whose end the live view of the run, if there is
        one, is drawn a last time and closed.
        """
        view = self.form.view
        return nullcontext() if view is None else closing(view)

    def _hooks(self, plan: RunPlan) -> Any:
        """Return a context manager that calls the run's callback handlers at the start
        and the end of the run.
        """
        return run_hooks(self, plan) if self.config.callbacks else nullcontext()

    # ------------------------------------------------------------ running on a loop

    async def aitems(self) -> AsyncIterator[Any]:
        """Run to the end on the running event loop. Yield the items of the stream."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        loop = asyncio.get_running_loop()
        events: Any = None
        with UsersFrames(), self._hints(), on_sigterm(self.end):
            async with AsyncExitStack() as contexts:
                try:
                    while True:
                        # While the reader's code runs, Python's signal handlers are
                        # called at once. Otherwise they are delayed.
                        with held_on_loop(loop, self._wake):
                            if events is None:
                                engine = await self._begun(loop, contexts)
                                events = adrive(engine)
                            event = await anext(events, None)
                        if event is None:
                            break
                        for item in self.form.items(event):
                            yield item
                    if self._cache_changes:
                        for item in self._last_items():
                            yield item
                finally:
                    if events is not None:
                        with held_on_loop(loop, self._wake):
                            await events.aclose()

    async def _begun(
        self,
        loop: Any,
        contexts: AsyncExitStack,
    ) -> Engine:
        """Return the engine that executes the run, and enter the context managers of
        the run in *contexts*.
        """
        plan = await self._plan_on_loop()
        if self.config.callbacks:
            self.handlers = handlers_of(self.config, loop)
            if self.handlers.queue is not None:
                contexts.push_async_callback(self.handlers.queue.drain)
            plan = with_node_callbacks(self, plan)
        self.engine = Engine(plan, loop)
        contexts.enter_context(self._hooks(plan))
        contexts.enter_context(self._open_view())
        return self.engine

    async def _plan_on_loop(self) -> RunPlan:
        """Return the plan of the run, once its thread is free."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        is_elsewhere = self.saver is not None and self.saver.needs_loop
        # A run that waits for its thread must not block the event loop, because the run
        # that has the thread may need the same loop. So the lease is tried repeatedly.
        waits = self.on_conflict == "wait"
        if waits:
            self.on_conflict = "raise"
        while True:
            try:
                if is_elsewhere:
                    return await asyncio.to_thread(plan_of, self)
                return plan_of(self)
            except ThreadBusyError:
                if not waits:
                    raise
                raise_pending_interrupts()
                await asyncio.sleep(_PAUSE)

    def _wake(self) -> None:
        """Wake a run that waits on an event loop. A signal handler calls this."""
        if hasattr(self, "engine"):
            self.engine.wake()

    @contextmanager
    def _hints(self) -> Iterator[None]:
        """Add a hint to a raised error that explains how to resume the run."""
        try:
            yield
        except BaseException as error:
            add_hint(self, error)
            raise

    # ------------------------------------------------------------ the output

    def output(self, result: Result | None = None) -> Any:
        """Return the output of a run whose items have been read.

        Args:
            result: The result, if another engine has executed the run.
        """
        if result is None:
            result = self.engine.result
        assert result is not None
        return self.form.output(result)


def _saver_of(graph: CompiledGraph) -> BaseCheckpointSaver | None:
    """Return the saver of a graph's runs.

    Raises:
        ConfigurationError: The graph only runs inside another graph, or a command is
            importing the module that starts the run.
        GraphInterrupt: The call is made in a dry replay, which starts no run.
    """
    if is_dry.get():
        raise GraphInterrupt
    refuse_while_imported()
    checkpointer: Any = graph.definition.checkpointer
    if checkpointer is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the "
            "checkpointer of the surrounding graph; give a saver or a path"
        )
    return None if checkpointer is False else checkpointer


def _config_of(
    graph: CompiledGraph,
    config: Config | None,
    keywords: Mapping[str, Any],
) -> ParsedConfig:
    """Return the config of a run, with the graph's defaults."""
    definition = graph.definition
    settings = {key: keywords[key] for key in keywords.keys() - OPTION_NAMES}
    defaults = {"run_name": definition.name}
    parsed = parse(
        merged(
            defaults,
            definition.config,
            config,
            **settings,
        )
    )
    if not parsed.namespace:
        return parsed
    # A nested graph finds its own checkpoint in the map of checkpoints when it is
    # called, so the outermost graph takes its checkpoint from the map too.
    checkpoint_id = parsed.checkpoint_map.get("")
    return replace(parsed, namespace="", checkpoint_id=checkpoint_id)
