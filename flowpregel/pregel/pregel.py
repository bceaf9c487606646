"""`Pregel`: a compiled graph, to be run, looked at and edited."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

from flowpregel._engine.drivers import elsewhere
from flowpregel._interrupts import held, held_steps
from flowpregel._tracebacks import UsersFrames, leave_out_ours
from flowpregel.context import current
from flowpregel.pregel import threads
from flowpregel.pregel.config import WHOLE, Config, RunKeywords, configs_of, merged
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.runner import GraphRun, call_nested, nested_run
from flowpregel.pregel.snapshot import StateSnapshot
from flowpregel.pregel.threads import StateUpdate

if TYPE_CHECKING:
    from flowpregel.pregel.drawing import Graph
    from flowpregel.pregel.runs import RunDrawing

Params = ParamSpec("Params")
Value = TypeVar("Value")


def _off_loop(
    method: Callable[Params, Value],
) -> Callable[Params, Coroutine[Any, Any, Value]]:
    """Return the async form of *method*: the same, on another OS thread."""

    @wraps(method)
    async def awaited(*args: Params.args, **kwargs: Params.kwargs) -> Value:
        # By its name: a subclass may have a method of its own.
        bound = getattr(args[0], method.__name__)
        result: Value = await elsewhere(bound, *args[1:], **kwargs)
        return result

    awaited.__doc__ = f"`{method.__name__}`, without blocking the event loop."
    return awaited


class Pregel(GraphDefinition):
    """Nodes and channels, run in supersteps.

    In each superstep the nodes that are due run side by side; what they write
    becomes visible to others in the next. The run ends when no node is due.

    Args:
        nodes: By name; a `PregelNode`, a `NodeBuilder` or a `Channel` pipe.
        channels: By name; channels, or managed values such as `RemainingSteps`.
        auto_validate: Whether to check at once that they fit together.
        stream_mode: What `stream` yields by default.
        output_channels: What a run returns: one channel's value, or a dict of several.
        stream_channels: What state and streams show; by default all channels.
        interrupt_after_nodes, interrupt_before_nodes: Where runs stop until they
            are resumed: node names, or ``"*"``.
        input_channels: What a run is given.
        step_timeout: The most seconds a superstep may take.
        debug: Whether to print updates and values.
        checkpointer: Keeps the state of threads: a saver, or the path of an LMDB
            folder. For a nested graph: None is the saver of the graph around,
            True the same with one history per thread, False none.
        store: A long-term store for what outlives threads.
        cache: Shares results between runs, for nodes with a cache policy.
        retry_policy, cache_policy: For nodes that have none of their own.
        context_schema: The class that a run's ``context`` dict becomes.
        config: Defaults of every run.
        name: Shown in drawings and messages.
        executor: Where nodes run: ``"processes"``, ``"threads"``, ``"inline"``, or an
            executor.
        migrate: Given what the channels of a checkpoint held, perhaps as an older
            program kept it, returns what they hold now; called on every read, so it has
            to look what it got.

    Raises:
        ConfigurationError: Nodes and channels do not fit together.

    Example:
        >>> from flowpregel.channels import LastValue
        >>> from flowpregel.pregel import NodeBuilder, Pregel
        >>> double = NodeBuilder().subscribe_only("a").do(lambda x: x + x).write_to("b")
        >>> app = Pregel(
        ...     nodes={"double": double},
        ...     channels={"a": LastValue(str), "b": LastValue(str)},
        ...     input_channels="a",
        ...     output_channels="b",
        ...     executor="inline",
        ... )
        >>> app.invoke("foo")
        'foofoo'
    """

    def invoke(
        self, input: Any, config: Config | None = None, **asked: Unpack[RunKeywords]
    ) -> Any:
        """Run the graph, and return what its output channels hold at the end.

        Args:
            input: What the input channels are given: a dict, or the bare value
                of a single input channel. None goes on where the thread stopped;
                a `Command` answers an interrupt, writes, or goes somewhere.
            config: LangGraph's config dict; the same as keywords is
                ``thread_id=``, ``checkpoint_id=``, ``run_id=``,
                ``recursion_limit=``, ``max_concurrency=``, ``tags=``,
                ``metadata=``, ``configurable=``.
            asked: What `stream` takes as well: ``context``, ``stream_mode``,
                ``output_keys``, ``interrupt_before``, ``interrupt_after``,
                ``durability``, ``control``, ``print_mode``. ``resume="auto"`` goes on
                with the thread's unfinished run if there is one, which must have been
                given equal input, and starts one otherwise. A ``run_id`` names a run:
                asked for again, it goes on, or returns what it returned.
                ``on_code_change`` says what to do with a recorded result that other
                code made: ``"keep"`` it (default, with a notice), ``"rerun"`` the call,
                or ``"error"``. ``fail_fast=True`` starts no call of a body that has
                failed. ``progress=True`` shows a live view on stderr. ``version="v2"``
                returns a `GraphOutput`, with interrupts beside the value.

        Returns:
            The output, with ``__interrupt__`` if it waits for answers; or a mode's
            items.

        Raises:
            EmptyInputError: There is nothing to run on.
            GraphRecursionError: The run used up its supersteps.
            InputMismatchError: The run to go on with was started with other input.
            ReplayMismatchError: A resumed body made another call than before.
            Exception: What a task raised when it would not be tried again.

        Example:
            >>> app.invoke({"a": "foo"}, thread_id="1")  # doctest: +SKIP
            {'b': 'foofoo'}
        """
        if current.get() is not None and asked.get("stream_mode") in WHOLE:
            return call_nested(self, input, config, asked).result()
        try:
            with held():
                run = GraphRun(self, input, config, asked)
                items = [*run.items()]
                return items if run.modes else run.output()
        except BaseException as error:
            leave_out_ours(error)
            raise

    async def ainvoke(
        self, input: Any, config: Config | None = None, **asked: Unpack[RunKeywords]
    ) -> Any:
        """`invoke`, on the running event loop; async nodes run on it too."""
        if current.get() is not None and asked.get("stream_mode") in WHOLE:
            return await call_nested(self, input, config, asked)
        with UsersFrames():
            run = GraphRun(self, input, config, asked)
            items = [item async for item in run.aitems()]
            return items if run.modes else run.output()

    def stream(
        self, input: Any, config: Config | None = None, **asked: Unpack[RunKeywords]
    ) -> Iterator[Any]:
        """Run the graph, and yield what happens while it happens.

        A reader that stops early ends the run: what is running is cancelled
        where it can be, what finished is kept, and ``invoke(None)`` goes on.

        Args:
            input, config: As `invoke` takes them.
            asked: ``stream_mode`` (``values``, ``updates``, ``custom``, ``messages``,
                ``progress``, ``checkpoints``, ``tasks``, ``debug``, or a list of them),
                ``subgraphs=True`` to hear of nested graphs too, ``output_keys``,
                ``interrupt_before``, ``interrupt_after``, ``durability``,
                ``context``, ``control``, ``print_mode``, and the settings.
                ``version="v2"`` yields dicts with ``type``, ``ns`` and ``data``.

        Yields:
            Payloads; with a list of modes ``(mode, payload)``; with
            ``subgraphs=True`` the namespace comes first.
        """
        return GraphRun(self, input, config, asked, streams=True).items()

    def astream(
        self, input: Any, config: Config | None = None, **asked: Unpack[RunKeywords]
    ) -> AsyncIterator[Any]:
        """`stream`, on the running event loop."""
        return GraphRun(self, input, config, asked, streams=True).aitems()

    def batch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **asked: Unpack[RunKeywords],
    ) -> list[Any]:
        """Run the graph on each of *inputs*, side by side, and return the outputs in
        order.

        Args:
            inputs: What each run is given.
            config: One for all, or one for each.
            return_exceptions: Whether to return what a run raises in its place.
            asked: As `invoke` takes it.
        """
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

        pairs, limit = configs_of(inputs, config, asked)
        limit = limit or min(32, max(1, len(pairs)))
        with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
            futures = [pool.submit(self.invoke, *pair, **asked) for pair in pairs]
        if return_exceptions:
            return [future.exception() or future.result() for future in futures]
        return [future.result() for future in futures]

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **asked: Unpack[RunKeywords],
    ) -> list[Any]:
        """`batch`, on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        pairs, limit = configs_of(inputs, config, asked)
        slots = asyncio.Semaphore(limit or max(1, len(pairs)))

        async def one(given: Any, own: Config | None) -> Any:
            async with slots:
                return await self.ainvoke(given, own, **asked)

        runs = [one(*pair) for pair in pairs]
        return await asyncio.gather(*runs, return_exceptions=return_exceptions)

    nested_run = nested_run

    def __call__(self, input: Any, config: Config | None = None) -> Any:
        """Return what `invoke` does, for what takes functions: LangChain's chains
        do.
        """
        return self.invoke(input, config)

    # ------------------------------------------------------------ states of threads

    def get_state(
        self, config: Config | None = None, *, subgraphs: bool = False, **settings: Any
    ) -> StateSnapshot:
        """Return the state of a thread: as it is, or at one of its checkpoints.

        Without a ``checkpoint_id`` it shows how things stand, the output of tasks
        that are done included; with one, how that step began.

        Args:
            config: Names the thread; or pass ``thread_id=`` (and ``checkpoint_id=``).
            subgraphs: Show the states of nested graphs too, in the tasks they are.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.
        """
        return threads.thread_state(
            self, merged(self.config, config, **settings), deep=subgraphs
        )

    def get_state_history(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
        **settings: Any,
    ) -> Iterator[StateSnapshot]:
        """Yield the states of a thread's checkpoints, newest first.

        Args:
            config: Names the thread; or pass ``thread_id=``.
            filter: Only checkpoints whose metadata has these values.
            before: Only those before the one this config names.
            limit: At most this many.
        """
        merged_config = merged(self.config, config, **settings)
        found = threads.thread_history(
            self, merged_config, filter=filter, before=before, limit=limit
        )
        return held_steps(found)

    def update_state(
        self,
        config: Config | None = None,
        values: Any = None,
        as_node: str | None = None,
        task_id: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Write to a thread's state as if a node had, and return the new checkpoint's
        config.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            values: What the node would have returned.
            as_node: The node to act as; by default the one that wrote last.
                ``"__input__"`` acts as new input, ``"__end__"`` with None drops
                what is still to do, ``"__copy__"`` copies the checkpoint.
            task_id: The task that the write is to count as.

        Raises:
            InvalidUpdateError: The update cannot be made; the message says why.
        """
        return self.bulk_update_state(
            config, [[StateUpdate(values, as_node, task_id)]], **settings
        )

    def bulk_update_state(
        self,
        config: Config | None,
        supersteps: Sequence[Sequence[StateUpdate]],
        **settings: Any,
    ) -> dict[str, Any]:
        """Apply several supersteps of updates, and return the config of the last
        checkpoint.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            supersteps: For each superstep its updates: `StateUpdate` or tuples
                ``(values, as_node)`` or ``(values, as_node, task_id)``.

        Raises:
            ConfigurationError: There is nothing to apply.
            InvalidUpdateError: An update cannot be made.
        """
        return threads.update(self, merged(self.config, config, **settings), supersteps)

    async def aget_state_history(
        self, config: Config | None = None, **asked: Any
    ) -> AsyncIterator[StateSnapshot]:
        """`get_state_history`, without blocking the event loop."""
        for item in await elsewhere(lambda: [*self.get_state_history(config, **asked)]):
            yield item

    aget_state = _off_loop(get_state)
    aupdate_state = _off_loop(update_state)
    abulk_update_state = _off_loop(bulk_update_state)

    # ------------------------------------------------------------ drawings

    def get_graph(self, config: Any = None, *, xray: bool | int = False) -> Graph:
        """Return a drawing of the graph: ``draw_mermaid()``, ``draw_ascii()``,
        notebooks.

        Args:
            config: Not used; LangGraph's programs pass it.
            xray: Whether to draw the graphs that are nodes too; a number is how deep.
        """
        from flowpregel.pregel.drawing import edges_of, graph_of  # noqa: PLC0415 - seldom needed

        return graph_of(self.nodes, edges_of(self), self._subgraph_drawings(xray))

    def _subgraph_drawings(self, xray: bool | int) -> dict[str, Graph]:
        """Return drawings of the graphs that are nodes, as deep as *xray* says."""
        if xray is True:
            # Not deeper than that: graphs may call each other.
            depths = [name.count("|") for name, _ in self.get_subgraphs(recurse=True)]
            xray = 1 + max(depths, default=0)
        if xray <= 0:
            return {}
        return {
            name: graph.get_graph(xray=xray - 1) for name, graph in self.get_subgraphs()
        }

    @held()
    def get_run(
        self,
        config: Config | None = None,
        *,
        xray: bool | int = False,
        limit: int | None = None,
        **settings: Any,
    ) -> RunDrawing:
        """Return what a thread's last run did: which tasks, when, how long, what
        failed.

        It shows itself as a table, ``draw_ascii()``; ``tasks`` is the data.
        It may be asked while the run goes on, in this process or another.

        Args:
            config: Names the thread, and perhaps the checkpoint to look back from;
                or pass ``thread_id=``.
            xray: Whether to look into graphs that are nodes too; a number is how deep.
            limit: Only the newest of its supersteps, at most this many.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.

        Example:
            >>> print(app.get_run(thread_id="1"))  # doctest: +SKIP
            step 0  ✓ load  ████████████████████  0.500 s
            step 1  ✗ rank  ██                    0.051 s  KeyError: 'score'
        """
        from flowpregel.pregel import runs  # noqa: PLC0415 - seldom needed

        graph, saver, parsed = threads.open_thread(
            self, merged(self.config, config, **settings)
        )
        assert isinstance(graph, Pregel)
        depth = 1 << 30 if xray is True else int(xray)
        history = runs.last_run(saver, parsed.address, limit)
        tasks = runs.RunReader(graph, saver).tasks(history, depth)
        shapes = graph.get_graph(xray=xray).leaves().items()
        nodes = {id_: shape.name for id_, shape in shapes if shape.kind == "node"}
        return runs.RunDrawing(tuple(tasks), nodes)

    aget_graph = _off_loop(get_graph)
    aget_run = _off_loop(get_run)

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """`get_subgraphs`, as an async iterator."""
        for item in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield item

    # copies, shared results ------------------------------------------------

    def with_config(self, config: Config | None = None, **settings: Any) -> Self:
        """Return the graph with *config* and *settings* as defaults of every run."""
        return self.copy({"config": merged(self.config, config, **settings)})

    aclear_cache = _off_loop(GraphDefinition.clear_cache)
