"""`Pregel`: a compiled graph that can be run, inspected and edited.

::

    Pregel --+-- definition   nodes, channels and defaults; the compiled program
             +-- threads      the states of threads: read, listed, edited
             +-- drawing      the nodes and edges as a picture
             +-- schemas      the types of input and output

The methods of `Pregel` have the names and arguments of LangGraph's methods. Each method
passes its arguments to one of the parts.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import fields
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Required,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from flowpregel._async_forms import async_form
from flowpregel._core.effects import StepContext, Steps
from flowpregel._core.program import Keys, Program, names
from flowpregel._core.records import Task
from flowpregel._engine.drivers import elsewhere
from flowpregel._engine.nested import RunContext
from flowpregel._interrupts import defer_interrupts, held_steps
from flowpregel._tracebacks import UsersFrames, leave_out_ours
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy, RetryPolicy
from flowpregel.pregel.config import Config, configs_of, merged
from flowpregel.pregel.definition import GraphDefinition, Where
from flowpregel.pregel.edits import StateUpdate
from flowpregel.pregel.event_streams import EventMethods
from flowpregel.pregel.graph_drawing import GraphDrawing
from flowpregel.pregel.invocation import WHOLE_OUTPUT, RunKeywords
from flowpregel.pregel.naming import RunIdentity
from flowpregel.pregel.nested_runs import call_nested, nested_run
from flowpregel.pregel.node import PregelNode
from flowpregel.pregel.runner import GraphRun
from flowpregel.pregel.schemas import GraphSchemas
from flowpregel.pregel.snapshot import StateSnapshot
from flowpregel.pregel.threads import GraphThreads

if TYPE_CHECKING:
    from flowpregel._inspection.run_table import RunDrawing
    from flowpregel.pregel.drawing import Graph

Value = TypeVar("Value")


class DefinitionAttribute(Generic[Value]):
    """An attribute of a graph, stored in the graph's definition."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, graph: None, owner: type) -> Self: ...
    @overload
    def __get__(self, graph: Pregel, owner: type) -> Value: ...
    def __get__(
        self,
        graph: Pregel | None,
        owner: type,
    ) -> Any:
        if graph is None:
            return self
        return getattr(graph.definition, self._name)

    def __set__(
        self,
        graph: Pregel,
        value: Value,
    ) -> None:
        graph.change(self._name, value)


class GraphParts(TypedDict, total=False):
    """The arguments of `Pregel`."""

    nodes: Required[Mapping[str, PregelNode]]
    channels: Required[Mapping[str, Any]]
    auto_validate: bool
    stream_mode: str | Sequence[str]
    output_channels: Required[str | Sequence[str]]
    stream_channels: str | Sequence[str] | None
    interrupt_after_nodes: Where
    interrupt_before_nodes: Where
    input_channels: Required[str | Sequence[str]]
    step_timeout: float | None
    debug: bool
    checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None
    store: Any
    cache: Any
    retry_policy: RetryPolicy | Sequence[RetryPolicy]
    cache_policy: CachePolicy | None
    context_schema: type[Any] | None
    config: Mapping[str, Any] | None
    name: str
    executor: Any
    migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    stream_transformers: Sequence[Callable[..., Any]]


_ATTRIBUTES: Final = frozenset(field.name for field in fields(GraphDefinition))


class Pregel(EventMethods):
    """Nodes and channels, run in supersteps.

    In each superstep, all nodes that are due run in parallel. Their writes become
    visible in the next superstep. The run ends when no node is due.

    Args:
        nodes: The nodes by name: `PregelNode`, `NodeBuilder` or `Channel` pipes.
        channels: The channels and the managed values (such as `RemainingSteps`) by
            name.
        auto_validate: Whether to check at once that nodes and channels fit together.
        stream_mode: The default mode of `stream`.
        output_channels: The channel whose value a run returns. With several channels,
            a run returns a dict.
        stream_channels: The channels shown in states and streams; by default all
            channels.
        interrupt_after_nodes, interrupt_before_nodes: The nodes at which runs stop
            until they are resumed, or ``"*"``.
        input_channels: The channels that take the input of a run.
        step_timeout: The maximum duration of a superstep in seconds.
        debug: Whether to print updates and values.
        checkpointer: Stores the state of threads: a saver, or the path of an LMDB
            folder. For a nested graph, None means the saver of the outer graph, True
            means the same saver with one history per thread, and False means no saver.
        store: A long-term store for data that outlives threads.
        cache: Shares results between runs, for nodes with a cache policy.
        retry_policy, cache_policy: The policies of nodes without their own policies.
        context_schema: The class to which the ``context`` dict of a run is converted.
        config: The default config of every run.
        name: The name in drawings and messages.
        executor: Runs the nodes: ``"processes"``, ``"threads"``, ``"inline"``, an
            executor, or a function that makes one when the first task needs it.
        migrate: A function that takes the channel values of a checkpoint, which an
            older program may have stored, and returns the values for this program. It
            is called at every read, even for values that were migrated before.
        stream_transformers: The transformers of `stream_events`, as LangGraph has them:
            classes, or functions that take a graph's namespace and return a
            transformer.

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

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """Support for annotations such as ``CompiledStateGraph[State]``, as in LangGraph's
    programs.
    """

    definition: GraphDefinition
    """The nodes, channels and defaults, and the compiled program."""
    threads: GraphThreads
    """The states of threads."""
    drawing: GraphDrawing
    """The nodes and edges as a picture."""
    schemas: GraphSchemas
    """The types of input and output."""

    nodes: DefinitionAttribute[Mapping[str, PregelNode]] = DefinitionAttribute()
    channels: DefinitionAttribute[Mapping[str, Any]] = DefinitionAttribute()
    stream_mode: DefinitionAttribute[str | Sequence[str]] = DefinitionAttribute()
    output_channels: DefinitionAttribute[str | Sequence[str]] = DefinitionAttribute()
    stream_channels: DefinitionAttribute[str | Sequence[str] | None] = (
        DefinitionAttribute()
    )
    interrupt_after_nodes: DefinitionAttribute[Where] = DefinitionAttribute()
    interrupt_before_nodes: DefinitionAttribute[Where] = DefinitionAttribute()
    input_channels: DefinitionAttribute[str | Sequence[str]] = DefinitionAttribute()
    step_timeout: DefinitionAttribute[float | None] = DefinitionAttribute()
    debug: DefinitionAttribute[bool] = DefinitionAttribute()
    checkpointer: DefinitionAttribute[
        BaseCheckpointSaver | str | os.PathLike[str] | bool | None
    ] = DefinitionAttribute()
    store: DefinitionAttribute[Any] = DefinitionAttribute()
    cache: DefinitionAttribute[Any] = DefinitionAttribute()
    retry_policy: DefinitionAttribute[RetryPolicy | Sequence[RetryPolicy]] = (
        DefinitionAttribute()
    )
    cache_policy: DefinitionAttribute[CachePolicy | None] = DefinitionAttribute()
    context_schema: DefinitionAttribute[type[Any] | None] = DefinitionAttribute()
    config: DefinitionAttribute[Mapping[str, Any] | None] = DefinitionAttribute()
    name: DefinitionAttribute[str] = DefinitionAttribute()
    executor: DefinitionAttribute[Any] = DefinitionAttribute()
    migrate: DefinitionAttribute[
        Callable[[dict[str, Any]], Mapping[str, Any]] | None
    ] = DefinitionAttribute()
    stream_transformers: DefinitionAttribute[Sequence[Any]] = DefinitionAttribute()
    run_options: DefinitionAttribute[Mapping[str, Any]] = DefinitionAttribute()
    once: DefinitionAttribute[RunIdentity | None] = DefinitionAttribute()

    def __init__(self, **parts: Unpack[GraphParts]) -> None:
        arguments: dict[str, Any] = dict(parts)
        is_checked = arguments.pop("auto_validate", True)
        definition = GraphDefinition(**arguments)
        if is_checked:
            definition.validate()
        self.compose(definition)

    def __repr__(self) -> str:
        return f"<graph {self.drawing.summary()}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {**self.get_graph()._repr_mimebundle_(), "text/plain": repr(self)}

    def compose(self, definition: GraphDefinition) -> None:
        """Set the definition of the graph, and rebuild the parts that depend on it.

        Args:
            definition: The nodes, channels and defaults of the graph.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.compose(double.definition.changed(name="twice"))
            >>> double.name
            'twice'
        """
        self.definition = definition
        self.threads = GraphThreads(definition)
        self.drawing = GraphDrawing(definition)
        self.schemas = GraphSchemas(definition)

    def change(
        self,
        name: str,
        value: Any,
    ) -> None:
        """Set an attribute of the definition; runs that have begun keep the old value.

        Args:
            name: The name of the attribute.
            value: The new value.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.change("name", "twice")  # as `double.name = "twice"` does
            >>> double.name
            'twice'
        """
        definition = self.definition.changed(**{name: value})
        self.compose(definition)

    def validate(self) -> Self:
        """Check that nodes and channels fit together, and return the graph.

        Raises:
            ConfigurationError: Nodes and channels do not fit together; the message
                names the wrong part.
        """
        self.definition.validate()
        return self

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the graph with the attributes of *update* changed.

        Raises:
            ConfigurationError: A graph has no such attribute.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.copy({"name": "twice"}).name, double.name
            ('twice', 'double')
        """
        clone = shallow_copy(self)
        # The copy gets a new definition, so that its program is compiled from the
        # present code.
        clone.compose(self.definition.changed())
        for name, value in (update or {}).items():
            if name not in _ATTRIBUTES and name not in clone.__dict__:
                raise ConfigurationError(f"a graph has no attribute {name!r} to change")
            setattr(clone, name, value)
        return clone

    def with_config(
        self,
        config: Config | None = None,
        **settings: Any,
    ) -> Self:
        """Return the graph with *config* and *settings* as defaults of every run.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.with_config(tags=["nightly"]).config["tags"]
            ['nightly']
        """
        return self.copy({"config": self._merged(config, settings)})

    def _merged(
        self,
        config: Config | None,
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the graph's config, with *config* and *settings* added."""
        return merged(self.definition.config, config, **settings)

    # ------------------------------------------------------------ runs

    def invoke(
        self,
        input: Any,
        config: Config | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Any:
        """Run the graph, and return the values of the output channels at the end.

        Args:
            input: The values of the input channels: a dict, or the bare value of a
                single channel. None resumes the thread where it stopped; a `Command`
                answers an interrupt, writes to channels, or jumps to a node.
            config: LangGraph's config dict. You can also pass its values as the
                keywords ``thread_id=``, ``checkpoint_id=``, ``run_id=``,
                ``recursion_limit=``, ``max_concurrency=``, ``tags=``,
                ``metadata=``, ``configurable=``.
            keywords: The options of `stream`: ``context``, ``stream_mode``,
                ``output_keys``, ``interrupt_before``, ``interrupt_after``,
                ``durability``, ``control``, ``print_mode``. ``resume="auto"`` resumes
                the thread's unfinished run, which must have been started with equal
                input, or starts a run if no unfinished one exists. A ``run_id`` names a
                run: a second call with the same ``run_id`` resumes the run or returns
                the run's result. ``on_code_change`` decides about a recorded result
                that different code computed: ``"keep"`` it (default, with a notice),
                ``"rerun"`` the call, or raise an ``"error"``. With ``fail_fast=True``,
                no further calls start once the body has failed.
                ``check_mutations=True`` gives a notice if a task changes an argument in
                place. ``progress=True`` shows a live view on stderr. ``version="v2"``
                returns a `GraphOutput`, which has the interrupts in addition to the
                value.

        Returns:
            The output, with ``__interrupt__`` if the run waits for answers; or a list
            of the items of a stream mode.

        Raises:
            EmptyInputError: There is no input to run on.
            GraphRecursionError: The run used up its supersteps.
            InputMismatchError: The run to resume was started with different input.
            ReplayMismatchError: A resumed body made a different call than before.
            Exception: The exception of a task that is not retried.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.invoke(4, thread_id="1")
            8
        """
        if current.get() is not None and keywords.get("stream_mode") in WHOLE_OUTPUT:
            return call_nested(self, input, config, keywords).result()
        try:
            with defer_interrupts():
                run = GraphRun(
                    self,
                    input,
                    config,
                    keywords,
                )
                items = list(run.items())
                return items if run.modes else run.output()
        except BaseException as error:
            leave_out_ours(error)
            raise

    async def ainvoke(
        self,
        input: Any,
        config: Config | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Any:
        """`invoke`, on the running event loop; async nodes run on it too."""
        if current.get() is not None and keywords.get("stream_mode") in WHOLE_OUTPUT:
            return await call_nested(
                self,
                input,
                config,
                keywords,
            )
        with UsersFrames():
            run = GraphRun(
                self,
                input,
                config,
                keywords,
            )
            items = [item async for item in run.aitems()]
            return items if run.modes else run.output()

    def stream(
        self,
        input: Any,
        config: Config | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Iterator[Any]:
        """Run the graph, and yield events while they happen.

        If the reader stops early, the run ends: running tasks are cancelled where
        possible, finished work is stored, and ``invoke(None)`` resumes the run.

        Args:
            input, config: As `invoke` takes them.
            keywords: ``stream_mode`` (``values``, ``updates``, ``custom``,
                ``messages``, ``tools``, ``progress``, ``checkpoints``, ``tasks``,
                ``debug``, or a list of them), ``subgraphs=True`` to include the events
                of nested graphs, ``output_keys``, ``interrupt_before``,
                ``interrupt_after``, ``durability``, ``context``, ``control``,
                ``print_mode``, and the config keywords. ``version="v2"`` yields dicts
                with ``type``, ``ns`` and ``data``.

        Yields:
            The payload of each event, or ``(mode, payload)`` if *stream_mode* is a
            list. With ``subgraphs=True`` each item is a tuple that begins with the
            namespace.

        Example:
            >>> from flowpregel import entrypoint, get_runtime
            >>> @entrypoint()
            ... def flow(number: int) -> int:
            ...     get_runtime().stream_writer("half done")
            ...     return 2 * number
            >>> list(flow.stream(4, stream_mode=["custom", "updates"]))
            [('custom', 'half done'), ('updates', {'flow': 8})]
        """
        return GraphRun(
            self,
            input,
            config,
            keywords,
            streams=True,
        ).items()

    def astream(
        self,
        input: Any,
        config: Config | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> AsyncIterator[Any]:
        """`stream`, on the running event loop."""
        return GraphRun(
            self,
            input,
            config,
            keywords,
            streams=True,
        ).aitems()

    def batch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **keywords: Unpack[RunKeywords],
    ) -> list[Any]:
        """Run the graph on all *inputs* in parallel, and return the outputs.

        Args:
            inputs: The input of each run; the outputs have the same order.
            config: One config for all runs, or a list with one config for each run.
            return_exceptions: Whether to return the exception of a failed run in place
                of the run's output, instead of raising it.
            keywords: As `invoke` takes them.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.batch([1, 2, 3])
            [2, 4, 6]
        """
        # Imported inside the method, because few programs call it.
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        pairs, limit = configs_of(inputs, config, keywords)
        limit = limit or min(32, max(1, len(pairs)))
        with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
            futures = [pool.submit(self.invoke, *pair, **keywords) for pair in pairs]
        if return_exceptions:
            return [future.exception() or future.result() for future in futures]
        return [future.result() for future in futures]

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **keywords: Unpack[RunKeywords],
    ) -> list[Any]:
        """`batch`, on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        pairs, limit = configs_of(inputs, config, keywords)
        slots = asyncio.Semaphore(limit or max(1, len(pairs)))

        async def invoke(
            run_input: Any,
            run_config: Config | None,
        ) -> Any:
            async with slots:
                return await self.ainvoke(run_input, run_config, **keywords)

        runs = [invoke(*pair) for pair in pairs]
        return await asyncio.gather(*runs, return_exceptions=return_exceptions)

    def __call__(
        self,
        input: Any,
        config: Config | None = None,
    ) -> Any:
        """Return the result of `invoke`, so that LangChain can use the graph as a
        function.

        Args:
            input, config: As `invoke` takes them.
        """
        return self.invoke(input, config)

    def nested_run(
        self,
        task: Task,
        step: StepContext,
        outer: RunContext,
    ) -> tuple[Steps, RunContext]:
        """Return a generator of the effects (requests to the engine) of this graph's
        run as *task* of an outer graph, and the context of the tasks in it.

        The engine calls this for a graph that is a node of another graph, or that a
        task calls.

        Args:
            task: The task of the outer graph that runs this graph.
            step: The superstep of the task.
            outer: The context of the outer run.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> @entrypoint()
            ... def total(numbers: list[int]) -> int:
            ...     return sum(double.invoke(number) for number in numbers)
            >>> total.invoke([1, 2])  # each call of `double` is a nested run
            6
        """
        return nested_run(
            self,
            task,
            step,
            outer,
        )

    # ------------------------------------------------------------ threads

    def get_state(
        self,
        config: Config | None = None,
        *,
        subgraphs: bool = False,
        **settings: Any,
    ) -> StateSnapshot:
        """Return the present state of a thread, or the state at a checkpoint.

        The present state includes the output of finished tasks. With a
        ``checkpoint_id``, the result is the state at the beginning of that checkpoint's
        superstep.

        Args:
            config: Names the thread; or pass ``thread_id=`` (and ``checkpoint_id=``).
            subgraphs: Whether the tasks include the states of nested graphs.
            settings: Keys of a config as keywords, such as ``thread_id=``.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> double.get_state(thread_id="1").values
            8
        """
        return self.threads.state(self._merged(config, settings), deep=subgraphs)

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
            filter: Metadata values that a checkpoint must have to be included.
            before: The config of a checkpoint; only earlier checkpoints are included.
            limit: The maximum number of states.
            settings: Keys of a config as keywords, such as ``thread_id=``.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> history = double.get_state_history(thread_id="1")
            >>> [state.metadata["step"] for state in history]
            [0, -1]
        """
        history = self.threads.history(
            self._merged(config, settings), filter=filter, before=before, limit=limit
        )
        return held_steps(history)

    async def aget_state_history(
        self,
        config: Config | None = None,
        **keywords: Any,
    ) -> AsyncIterator[StateSnapshot]:
        """`get_state_history`, without blocking the event loop.

        Args:
            config, keywords: As `get_state_history` takes them.
        """

        def read_all() -> list[StateSnapshot]:
            return list(self.get_state_history(config, **keywords))

        for state in await elsewhere(read_all):
            yield state

    def update_state(
        self,
        config: Config | None = None,
        values: Any = None,
        as_node: str | None = None,
        task_id: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Write to a thread's state in the name of a node, and return the new config.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            values: The output of the node.
            as_node: The node; by default the node that wrote last. ``"__input__"``
                makes *values* new input, ``"__end__"`` with None drops the tasks that
                are due, ``"__copy__"`` copies the checkpoint.
            task_id: The task to which the write is attributed.
            settings: Keys of a config as keywords, such as ``thread_id=``.

        Raises:
            InvalidUpdateError: The update cannot be made; the message gives the reason.

        Example:
            >>> from typing import TypedDict
            >>> from flowpregel import InMemorySaver
            >>> from flowpregel.graph import START, StateGraph
            >>> class State(TypedDict):
            ...     count: int
            >>> def add(state: State) -> dict:
            ...     return {"count": state["count"] + 1}
            >>> graph = StateGraph(State).add_node(add).add_edge(START, "add")
            >>> app = graph.compile(InMemorySaver(), executor="inline")
            >>> app.invoke({"count": 1}, thread_id="1")
            {'count': 2}
            >>> config = app.update_state(
            ...     values={"count": 9}, as_node="add", thread_id="1"
            ... )
            >>> app.get_state(config).values
            {'count': 9}
        """
        update = StateUpdate(values, as_node, task_id)
        return self.bulk_update_state(config, [[update]], **settings)

    def bulk_update_state(
        self,
        config: Config | None,
        supersteps: Sequence[Sequence[StateUpdate]],
        **settings: Any,
    ) -> dict[str, Any]:
        """Apply several supersteps of updates, and return the last checkpoint's config.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            supersteps: The updates of each superstep: `StateUpdate` or tuples
                ``(values, as_node)`` or ``(values, as_node, task_id)``.
            settings: Keys of a config as keywords, such as ``thread_id=``.

        Raises:
            ConfigurationError: There is nothing to apply.
            InvalidUpdateError: An update cannot be made.

        Example:
            >>> from flowpregel.types import StateUpdate
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> updates = [[StateUpdate(4, "__input__")], [StateUpdate(9, "double")]]
            >>> config = double.bulk_update_state({}, updates, thread_id="1")
            >>> double.get_state(config).values
            9
        """
        return self.threads.update(self._merged(config, settings), supersteps)

    def get_run(
        self,
        config: Config | None = None,
        *,
        xray: bool | int = False,
        limit: int | None = None,
        **settings: Any,
    ) -> RunDrawing:
        """Return the tasks of a thread's last run, with their durations and errors.

        Printed, the result is a table (``draw_ascii()``); its ``tasks`` attribute has
        the data. The run may still be running, in this process or another.

        Args:
            config: Names the thread, and perhaps the last checkpoint to include; or
                pass ``thread_id=``.
            xray: Whether to include the tasks of nested graphs. A number limits the
                depth of nesting.
            limit: The maximum number of supersteps; the newest are included.
            settings: Keys of a config as keywords, such as ``thread_id=``.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> print(double.get_run(thread_id="1"))
            step 0  ✓ double  ████████████████████  ... s
        """
        return self.threads.last_run(
            self._merged(config, settings), xray=xray, limit=limit
        )

    @async_form(get_state)
    async def aget_state(self, *args: Any, **kwargs: Any) -> Any:
        """`get_state`, without blocking the event loop."""
        return await elsewhere(self.get_state, *args, **kwargs)

    @async_form(update_state)
    async def aupdate_state(self, *args: Any, **kwargs: Any) -> Any:
        """`update_state`, without blocking the event loop."""
        return await elsewhere(self.update_state, *args, **kwargs)

    @async_form(bulk_update_state)
    async def abulk_update_state(self, *args: Any, **kwargs: Any) -> Any:
        """`bulk_update_state`, without blocking the event loop."""
        return await elsewhere(self.bulk_update_state, *args, **kwargs)

    @async_form(get_run)
    async def aget_run(self, *args: Any, **kwargs: Any) -> Any:
        """`get_run`, without blocking the event loop."""
        return await elsewhere(self.get_run, *args, **kwargs)

    # ------------------------------------------------------------ nodes and edges

    def get_graph(
        self,
        config: Any = None,
        *,
        xray: bool | int = False,
    ) -> Graph:
        """Return a drawing of the graph: ``draw_mermaid()``, ``draw_ascii()``.

        A notebook displays the result as a drawing.

        Args:
            config: Not used; accepted because LangGraph's programs pass it.
            xray: Whether to draw nested graphs too. A number limits the depth of
                nesting.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> print(double.get_graph().draw_ascii())
            __start__
              └─ __start__ ─> double
            double
              └─ __end__ ─> __end__
            __end__
        """
        return self.drawing.graph(xray=xray)

    def get_subgraphs(
        self,
        *,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> Iterator[tuple[str, Any]]:
        """Yield (namespace, graph) for each graph that is a node or that a node calls.

        A graph is regarded as called by a node if the code of the node's function names
        it. If the code names several graphs, the first is yielded. Graphs with
        ``checkpointer=False`` are left out.

        Args:
            namespace: The namespace, such as ``"outer|inner"``, of the only graph to
                yield.
            recurse: Whether to yield the graphs nested in those graphs too.

        Example:
            >>> from flowpregel.graph import START, StateGraph
            >>> inner = StateGraph(dict).add_node("load", dict).add_edge(START, "load")
            >>> outer = StateGraph(dict).add_node("inner", inner.compile())
            >>> app = outer.add_edge(START, "inner").compile()
            >>> [namespace for namespace, graph in app.get_subgraphs()]
            ['inner']
        """
        return self.definition.subgraphs(namespace=namespace, recurse=recurse)

    async def aget_subgraphs(
        self,
        *,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> AsyncIterator[tuple[str, Any]]:
        """`get_subgraphs`, as an async iterator."""
        for item in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield item

    @async_form(get_graph)
    async def aget_graph(self, *args: Any, **kwargs: Any) -> Any:
        """`get_graph`, without blocking the event loop."""
        return await elsewhere(self.get_graph, *args, **kwargs)

    @property
    def program(self) -> Program:
        """The program that `flowpregel._core` runs."""
        return self.definition.program

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The graph's own checkpointer, or None if the graph has none."""
        return self.definition.saver

    def namespace_at(self, namespace: str) -> str:
        """Return the namespace of the graph's checkpoints when a task at *namespace*
        runs the graph.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.namespace_at("outer:1")
            'outer:1'
        """
        return self.definition.namespace_at(namespace)

    @property
    def stream_channels_list(self) -> list[str]:
        """The channels that the stream modes ``tasks`` and ``checkpoints`` show."""
        return list(names(self.definition.stream_channels_asis))

    @property
    def stream_channels_asis(self) -> Keys:
        """The streamed channels, as one name or several; by default all channels."""
        return self.definition.stream_channels_asis

    # ------------------------------------------------------------ input and output

    def completed(self, run_input: Any) -> Any:
        """Return the input of a run, with defaults for missing parameters.

        Args:
            run_input: The input, as `invoke` takes it.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def scale(number: int, factor: int = 2) -> int:
            ...     return factor * number
            >>> scale.completed({"number": 4})
            {'number': 4, 'factor': 2}
        """
        return run_input

    @property
    def InputType(self) -> Any:
        """The type of a run's input, or None if there are several input channels."""
        return self.schemas.input_type

    @property
    def OutputType(self) -> Any:
        """The type of a run's output, or None if there are several output channels."""
        return self.schemas.output_type

    def get_input_jsonschema(
        self,
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON Schema of a run's input.

        Args:
            config: Not used; accepted because LangGraph's programs pass it.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.get_input_jsonschema()
            {'title': 'doubleInput', 'type': 'integer'}
        """
        return self.schemas.input_json()

    def get_output_jsonschema(
        self,
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON Schema of a run's output.

        Args:
            config: Not used; accepted because LangGraph's programs pass it.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.get_output_jsonschema()
            {'title': 'doubleOutput', 'type': 'integer'}
        """
        return self.schemas.output_json()

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of a run's context, or None if it has no schema."""
        return self.schemas.context_json()

    def get_input_schema(self, config: Mapping[str, Any] | None = None) -> Any:
        """Return a pydantic model of a run's input, or the input's type if pydantic is
        not installed.

        Args:
            config: Not used; accepted because LangGraph's programs pass it.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.get_input_schema().model_json_schema()
            {'title': 'doubleInput', 'type': 'integer'}
        """
        return self.schemas.input_model()

    def get_output_schema(self, config: Mapping[str, Any] | None = None) -> Any:
        """Return a pydantic model of a run's output, or the output's type if pydantic
        is not installed.

        Args:
            config: Not used; accepted because LangGraph's programs pass it.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.get_output_schema().model_json_schema()
            {'title': 'doubleOutput', 'type': 'integer'}
        """
        return self.schemas.output_model()

    @property
    def input_schema(self) -> Any:
        """The same as `get_input_schema`."""
        return self.get_input_schema()

    @property
    def output_schema(self) -> Any:
        """The same as `get_output_schema`."""
        return self.get_output_schema()

    # ------------------------------------------------------------ shared results

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Delete the shared results of *nodes*, or of all nodes.

        Raises:
            ConfigurationError: The graph has no cache, or no such node.

        Example:
            >>> from typing import TypedDict
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> from flowpregel.graph import START, StateGraph
            >>> from flowpregel.policies import CachePolicy
            >>> class State(TypedDict):
            ...     count: int
            >>> def add(state: State) -> dict:
            ...     print("adding")
            ...     return {"count": state["count"] + 1}
            >>> graph = StateGraph(State).add_node(add, cache_policy=CachePolicy())
            >>> graph = graph.add_edge(START, "add")
            >>> app = graph.compile(cache=InMemoryCache(), executor="inline")
            >>> app.invoke({"count": 1}), app.invoke({"count": 1})
            adding
            ({'count': 2}, {'count': 2})
            >>> app.clear_cache(["add"])
            >>> app.invoke({"count": 1})
            adding
            {'count': 2}
        """
        self.definition.clear_cache(nodes)

    @async_form(clear_cache)
    async def aclear_cache(self, *args: Any, **kwargs: Any) -> Any:
        """`clear_cache`, without blocking the event loop."""
        return await elsewhere(self.clear_cache, *args, **kwargs)
