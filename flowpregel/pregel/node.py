"""`PregelNode`, two ways to build one (`NodeBuilder` and `Channel` pipes), and the
search for the graphs that a node calls.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import CodeType, ModuleType
from typing import Any, Final, Literal, Self

from flowpregel._code.values import target_of_partial
from flowpregel._core.commands import call_target_of
from flowpregel._core.effects import StepContext
from flowpregel._core.program import names
from flowpregel._core.records import Kind, Node, Outcome, Raised, Returned, Task
from flowpregel._pickling.digest import SharedSpace
from flowpregel.context import Job, RunClient, RunInfo
from flowpregel.errors import ConfigurationError, GraphInterrupt
from flowpregel.executors.attempt import aperform, perform
from flowpregel.executors.by_name import check_executor
from flowpregel.policies import (
    CachePolicy,
    Resources,
    RetryPolicy,
    TimeoutPolicy,
    TracePolicy,
)
from flowpregel.pregel._write import ChannelWrite, ChannelWriteEntry
from flowpregel.pregel.runnables import (
    RunnableMethods,
    parts_of_chain,
    runnable_class,
)

TAG_HIDDEN: Final = "langsmith:hidden"
"""The tag of a node that streams and breakpoints skip."""
TAG_NOSTREAM: Final = "nostream"
"""LangChain's tag for models whose output must not be streamed, defined for programs
that come from LangGraph.
"""


@dataclass(kw_only=True, eq=False, repr=False)
class PregelNode(RunnableMethods):
    """A function, the channels that trigger it, the channels it reads, and its writers.

    Args:
        channels: The channels to read. With one name the node gets the bare value,
            with several names a dict.
        triggers: The channels whose change makes the node run.
        mapper: Converts the values of the channels to the node's input.
        writers: Functions that take the node's output and return writes.
        bound: The function to call: a callable, or an object with ``invoke`` or
            ``ainvoke``. With None, the output of the node is its input.
        tags, metadata: Shown in streams.
        retry_policy, cache_policy, timeout: The policies for retries, shared results
            and time limits.
        executor: The executor that runs the node; None means the graph's default.
        isolation: ``"fresh"`` gives each attempt a worker process of its own.
        trace_policy: The values that tracers record for the input and the output.
    """

    channels: str | Sequence[str]
    triggers: Sequence[str]
    mapper: Callable[[Any], Any] | None = None
    writers: Sequence[Callable[..., Any]] = ()
    bound: Any = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    cache_policy: CachePolicy | None = None
    timeout: float | timedelta | TimeoutPolicy | None = None
    executor: Any = None
    isolation: Literal["fresh"] | None = None
    trace_policy: TracePolicy | None = None
    reads: Sequence[str] = ()
    """The channels that a writer of the node may read after the node has run, for
    example to choose the next node.
    """
    then: Sequence[Any] = ()
    """The callables after *bound*; each takes the output of the previous one."""
    error_handler: str | None = None
    """The node that handles a failure of this node."""
    role: Literal["body"] | None = None
    """``"body"`` for a node that calls tasks and waits for them."""

    def __post_init__(self) -> None:
        self.channels = (
            self.channels if isinstance(self.channels, str) else [*self.channels]
        )
        self.triggers = [*self.triggers]
        self.writers = [*(self.writers or ())]
        self.tags = [*(self.tags or ())]
        self.metadata = {**(self.metadata or {})}
        self.retry_policy = policies_of(self.retry_policy)
        self.cache_policy = checked_cache_policy(self.cache_policy)
        check_trace_policy(self.trace_policy)
        self.timeout = TimeoutPolicy.coerce(self.timeout)
        self.executor = check_executor(self.executor)
        # `Resources` is only created because its constructor raises an error for a
        # value that is not allowed.
        Resources(isolation=self.isolation)
        if self.isolation is not None and is_graph(self.bound):
            raise ConfigurationError(
                f"isolation={self.isolation!r}: {self.bound.name!r} is a graph, which "
                f"has no process; give isolation={self.isolation!r} to the nodes in it"
            )

    @property
    def steps(self) -> tuple[Any, ...]:
        """The callables (steps) of the node, in order."""
        return () if self.bound is None else (self.bound, *self.then)

    @property
    def subgraph(self) -> Any:
        """The graph that this node runs: the node itself, or the first graph that the
        node's code names. None if there is no such graph.
        """
        for step in self.steps:
            graphs = [step] if is_graph(step) else graphs_named_by(step)
            for graph in graphs:
                if graph.checkpointer is not False:
                    return graph
        return None

    @property
    def subgraphs(self) -> list[Any]:
        """The graph that `subgraph` returns, in a list; empty if there is none."""
        graph = self.subgraph
        return [] if graph is None else [graph]

    @property
    def written(self) -> list[str]:
        """The channels that the writers write to, if they declare them."""
        return [
            key for writer in self.writers for key in getattr(writer, "channels", ())
        ]

    @property
    def reads_state(self) -> bool:
        """True if a callable of the node may read the values of *channels* while it
        runs, because it has an attribute of this name that is True.
        """
        return any(getattr(step, "reads_state", None) is True for step in self.steps)

    def _channels_read_again(self) -> tuple[str, ...]:
        channels = names(self.channels) if self.reads_state else ()
        return tuple(dict.fromkeys((*self.reads, *channels)))

    def __or__(self, other: Any) -> PregelNode:
        """Return the node with one more part: a writer, a dict of writers, or a
        function.
        """
        if isinstance(other, ChannelWrite):
            return self.changed(writers=[*self.writers, other])
        if isinstance(other, Mapping):
            for key, part in other.items():
                if not isinstance(part, ChannelWrite):
                    raise ConfigurationError(
                        f"{key!r} in a dict at the end of a pipe is {part!r}; "
                        "use Channel.write_to(...)"
                    )
            return self.changed(writers=[*self.writers, *other.values()])
        return self.changed(**self._with_step(other))

    def invoke(
        self,
        input: Any,
        config: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the output of the node for *input*, outside of a run. Nothing is
        written.

        Args:
            input: The input of the node.
            config: The config that the callables get.

        Example:
            >>> NodeBuilder().subscribe_only("a").do(str.upper).build().invoke("ada")
            'ADA'
        """
        if is_graph(self.bound):
            return self.bound.invoke(input, config)
        return _outcome_result(perform(self._job(input, config), RunClient()))

    async def ainvoke(
        self,
        input: Any,
        config: Mapping[str, Any] | None = None,
    ) -> Any:
        """`invoke`, with the async forms of the callables."""
        if is_graph(self.bound):
            return await self.bound.ainvoke(input, config)
        return _outcome_result(await aperform(self._job(input, config), RunClient()))

    def stream(
        self,
        input: Any,
        config: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Iterator[Any]:
        """Yield the output of `invoke`. A chain of LangChain that is streamed calls
        this method.

        Args:
            input, config, keywords: As `invoke` takes them.

        Raises:
            ConfigurationError: LangChain is not installed.

        Example:
            >>> node = NodeBuilder().subscribe_only("a").do(str.upper).build()
            >>> list(node.stream("ada"))
            ['ADA']
        """
        yield from runnable_class("stream").stream(self, input, config, **keywords)

    async def astream(
        self,
        input: Any,
        config: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> AsyncIterator[Any]:
        """`stream`, on the running event loop."""
        function = runnable_class("astream").astream
        async for item in function(self, input, config, **keywords):
            yield item

    def batch(
        self,
        inputs: Sequence[Any],
        config: Any = None,
        **keywords: Any,
    ) -> list[Any]:
        """Return the outputs for all *inputs*. A chain of LangChain calls this method
        for its own inputs.

        Args:
            inputs: The inputs of the node, one for each output.
            config: One config for all inputs, or a list with one config for each.
            keywords: As `invoke` takes them.

        Raises:
            ConfigurationError: LangChain is not installed.

        Example:
            >>> node = NodeBuilder().subscribe_only("a").do(str.upper).build()
            >>> node.batch(["ada", "grace"])
            ['ADA', 'GRACE']
        """
        function = runnable_class("batch").batch
        outputs: list[Any] = function(self, inputs, config, **keywords)
        return outputs

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: Any = None,
        **keywords: Any,
    ) -> list[Any]:
        """`batch`, on the running event loop."""
        function = runnable_class("abatch").abatch
        outputs: list[Any] = await function(self, inputs, config, **keywords)
        return outputs

    def _job(
        self,
        node_input: Any,
        config: Mapping[str, Any] | None,
    ) -> Job:
        node = Node(name="node", steps=tuple(map(call_target_of, self.steps)))
        step = StepContext(
            "",
            "",
            step=0,
            stop=1,
        )
        task = Task(
            "",
            node,
            Kind.CALL,
            node_input,
            "",
        )
        return Job(task, step, RunInfo(config=config or {}))

    def _with_step(self, step: Any) -> dict[str, Any]:
        # `call_target_of` is only called because it raises an error if the step cannot
        # be called.
        call_target_of(step)
        return {"bound": step} if self.bound is None else {"then": [*self.then, step]}

    def changed(self, **changes: Any) -> PregelNode:
        """Return a copy of the node, as a `PregelNode`, with some parts changed.

        Args:
            changes: The new values of the parts, by the names of the fields.

        Example:
            >>> node = NodeBuilder().subscribe_only("a").do(str.upper).build()
            >>> node.changed(tags=["nightly"]).tags, node.tags
            (['nightly'], [])
        """
        parts = {part.name: getattr(self, part.name) for part in fields(PregelNode)}
        return PregelNode(**{**parts, **changes})

    def compile(
        self,
        name: str,
        *,
        retry: tuple[RetryPolicy, ...] = (),
        cache: CachePolicy | None = None,
        contexts: Collection[str] = (),
    ) -> Node:
        """Return the node as `flowpregel._core` takes it, without the namespace of
        shared results.

        `shared_space` returns that namespace.

        Args:
            name: The name of the node.
            retry, cache: The policies of the graph, used if the node has none.
            contexts: The `Context` channels of the graph.

        Raises:
            ConfigurationError: A step cannot be called.

        Example:
            >>> from flowpregel.pregel import NodeBuilder
            >>> node = NodeBuilder().subscribe_only("a").do(str.upper).build()
            >>> node.compile("upper").triggers
            ('a',)
        """
        is_nested = not self.then and is_graph(self.bound)
        steps = () if is_nested else tuple(map(call_target_of, self._parts()))
        channels = self.channels
        if not isinstance(channels, str):
            channels = tuple(channels)
        read_contexts = [key for key in contexts if key in channels]
        return Node(
            name=name,
            steps=steps,
            graph=self.bound if is_nested else None,
            subgraph=self.subgraph,
            role=self.role or ("graph" if is_nested else "leaf"),
            triggers=tuple(self.triggers),
            channels=channels,
            contexts=() if self.mapper else tuple(read_contexts),
            mapper=self.mapper,
            writers=tuple(self.writers),
            reads=self._channels_read_again(),
            reads_state=self.reads_state,
            retry=policies_of(self.retry_policy) or retry,
            cache=self.cache_policy or cache,
            timeout=TimeoutPolicy.coerce(self.timeout),
            handler=self.error_handler,
            executor=self.executor,
            resources=self._resources(),
            hidden=TAG_HIDDEN in self.tags,
            metadata=self.metadata,
            trace_policy=self.trace_policy,
            tags=tuple(self.tags),
        )

    def _parts(self) -> Iterator[Any]:
        """Yield the steps of the node. A chain of LangChain is replaced by its
        parts.
        """
        for step in self.steps:
            yield from parts_of_chain(step)

    def _resources(self) -> Resources | None:
        return None if self.isolation is None else Resources(isolation=self.isolation)

    def shared_space(self, name: str) -> SharedSpace:
        """Return the namespace of the node's shared results under *name*.

        The namespace depends on the callables and the written channels.

        Args:
            name: The name of the node.

        Example:
            >>> from flowpregel.pregel import NodeBuilder
            >>> upper = NodeBuilder().subscribe_only("a").do(str.upper).build()
            >>> lower = NodeBuilder().subscribe_only("a").do(str.lower).build()
            >>> upper.shared_space("n").now() == lower.shared_space("n").now()
            False
        """
        return SharedSpace(name, self.steps, ends=self.written)

    def __repr__(self) -> str:
        return f"PregelNode(channels={self.channels!r}, triggers={self.triggers!r})"


def policies_of(
    policy: RetryPolicy | Sequence[RetryPolicy] | None,
) -> tuple[RetryPolicy, ...]:
    """Return one, several or no policies as a tuple.

    Raises:
        ConfigurationError: A value is not a `RetryPolicy`.
    """
    if policy is None:
        return ()
    policies = tuple(policy) if isinstance(policy, list | tuple) else (policy,)
    for item in policies:
        if not isinstance(item, RetryPolicy):
            raise ConfigurationError(
                f"retry_policy={item!r}; use RetryPolicy(max_attempts=3)"
            )
    return policies


def checked_cache_policy(policy: CachePolicy | None) -> CachePolicy | None:
    """Return *policy* after a type check.

    Raises:
        ConfigurationError: *policy* is neither a `CachePolicy` nor None.
    """
    if policy is not None and not isinstance(policy, CachePolicy):
        raise ConfigurationError(f"cache_policy={policy!r}; use CachePolicy(ttl=60)")
    return policy


def check_trace_policy(policy: TracePolicy | None) -> None:
    """Refuse a *policy* that is neither a `TracePolicy` nor None.

    Raises:
        ConfigurationError: *policy* has another type.
    """
    if policy is not None and not isinstance(policy, TracePolicy):
        raise ConfigurationError(
            f"trace_policy={policy!r}; use TracePolicy(process_inputs=...)"
        )


class NodeBuilder(PregelNode):
    """A `PregelNode` that is built step by step.

    Example:
        >>> node = NodeBuilder().subscribe_only("a").do(str.upper).write_to("b").build()
        >>> node.triggers
        ['a']
    """

    def __init__(self) -> None:
        super().__init__(channels=[], triggers=[])

    def subscribe_only(self, channel: str) -> Self:
        """Be triggered by *channel* alone, and get its bare value.

        Raises:
            ConfigurationError: The node already has channels or triggers.
        """
        if self.channels or self.triggers:
            raise ConfigurationError(
                f"subscribe_only({channel!r}): the node is already subscribed to "
                f"{self.triggers or self.channels}; use subscribe_to for several "
                "channels"
            )
        return self._set(channels=channel, triggers=[channel])

    def subscribe_to(
        self,
        *channels: str,
        read: bool = True,
    ) -> Self:
        """Be triggered by *channels* and, with *read*, get their values in a dict.

        Example:
            >>> node = NodeBuilder().subscribe_to("a", "b").do(sum).build()
            >>> node.triggers, node.channels
            (['a', 'b'], ['a', 'b'])
        """
        if read:
            self.read_from(*channels)
        return self._set(triggers=dict.fromkeys((*self.triggers, *channels)))

    def read_from(self, *channels: str) -> Self:
        """Get the values of *channels* in a dict, without being triggered by them.

        Raises:
            ConfigurationError: The node gets a bare value (`subscribe_only`).

        Example:
            >>> node = NodeBuilder().subscribe_to("a").read_from("b").build()
            >>> node.triggers, node.channels
            (['a'], ['a', 'b'])
        """
        if isinstance(self.channels, str):
            raise ConfigurationError(
                f"the node gets the bare value of {self.channels!r} (subscribe_only) "
                f"and cannot read {', '.join(channels)} as well; use "
                f"subscribe_to({self.channels!r})"
            )
        return self._set(channels=dict.fromkeys((*self.channels, *channels)))

    def do(self, node: Any) -> Self:
        """Add *node* to the callables; each takes the output of the previous one."""
        return self._set(**self._with_step(node))

    def write_to(
        self,
        *channels: str | ChannelWriteEntry,
        **named: Any,
    ) -> Self:
        """Write the output of the node to channels.

        Args:
            channels: The channels to which the output is written.
            named: The channels that get something else: for a callable, its result for
                the output, unless that is None; any other value is written unchanged.
        """
        added = Channel.write_to(*channels, **named)
        return self._set(writers=[*self.writers, *([added] if added.writes else ())])

    def meta(
        self,
        *tags: str,
        **metadata: Any,
    ) -> Self:
        """Add tags and metadata, shown in streams.

        Args:
            tags: The tags to add.
            metadata: The metadata, by key.

        Example:
            >>> builder = NodeBuilder().subscribe_only("a")
            >>> node = builder.meta("nightly", team="data").build()
            >>> node.tags, node.metadata
            (['nightly'], {'team': 'data'})
        """
        return self._set(
            tags=[*self.tags, *tags], metadata={**self.metadata, **metadata}
        )

    def add_retry_policies(self, *policies: RetryPolicy) -> Self:
        """Retry the node by *policies*; the first that matches an error decides.

        Example:
            >>> from flowpregel.types import RetryPolicy
            >>> policy = RetryPolicy(max_attempts=5, retry_on=ConnectionError)
            >>> builder = NodeBuilder().subscribe_only("a")
            >>> node = builder.add_retry_policies(policy).build()
            >>> len(node.retry_policy)
            1
        """
        return self._set(retry_policy=(*policies_of(self.retry_policy), *policies))

    def add_cache_policy(self, policy: CachePolicy) -> Self:
        """Share the node's results with later tasks that have the same input.

        Args:
            policy: The policy, such as the time for which a result is kept.

        Example:
            >>> from flowpregel.types import CachePolicy
            >>> builder = NodeBuilder().subscribe_only("a")
            >>> builder.add_cache_policy(CachePolicy(ttl=60)).build().cache_policy.ttl
            60
        """
        return self._set(cache_policy=policy)

    def set_timeout(self, timeout: float | timedelta | TimeoutPolicy | None) -> Self:
        """Limit the duration of an attempt.

        Args:
            timeout: The limit in seconds, as a `datetime.timedelta` or as a policy.
                None means no limit.

        Example:
            >>> node = NodeBuilder().subscribe_only("a").set_timeout(60).build()
            >>> node.timeout.run_timeout
            60.0
        """
        return self._set(timeout=timeout)

    def run_on(self, executor: Any) -> Self:
        """Run the node on *executor* instead of the graph's default.

        Args:
            executor: ``"processes"``, ``"threads"``, ``"inline"``, an executor, or a
                function that makes one.

        Example:
            >>> NodeBuilder().subscribe_only("a").run_on("threads").build().executor
            'threads'
        """
        return self._set(executor=executor)

    def build(self) -> PregelNode:
        """Return the node."""
        return self.changed()

    def _set(self, **parts: Any) -> Self:
        vars(self).update(parts)
        self.__post_init__()
        return self


class Channel:
    """The two ends of a pipe: ``Channel.subscribe_to("a") | fn |
    Channel.write_to("b")``.

    Example:
        >>> from flowpregel.channels import LastValue
        >>> from flowpregel.pregel import Pregel
        >>> app = Pregel(
        ...     nodes={
        ...         "up": Channel.subscribe_to("a") | str.upper | Channel.write_to("b")
        ...     },
        ...     channels={"a": LastValue(str), "b": LastValue(str)},
        ...     input_channels="a",
        ...     output_channels="b",
        ...     executor="inline",
        ... )
        >>> app.invoke("ada")
        'ADA'
    """

    @staticmethod
    def subscribe_to(
        channels: str | Sequence[str],
        *,
        tags: Sequence[str] | None = None,
    ) -> PregelNode:
        """Return a node that *channels* trigger.

        Args:
            channels: The channels to read. With one name the node gets the bare value,
                with a list of names a dict.
            tags: Shown in streams.
        """
        return PregelNode(channels=channels, triggers=names(channels), tags=tags or ())

    @staticmethod
    def write_to(
        *channels: str | ChannelWriteEntry,
        **named: Any,
    ) -> ChannelWrite:
        """Return a writer of a node's output.

        Args:
            channels: The channels to which the output is written.
            named: The channels that get something else: for a callable, its result for
                the output, unless that is None; any other value is written unchanged.
        """
        entries: list[ChannelWriteEntry] = []
        for item in channels:
            entry = item
            if not isinstance(entry, ChannelWriteEntry):
                entry = ChannelWriteEntry(entry)
            entries.append(entry)
        for channel, value in named.items():
            if callable(value):
                entry = ChannelWriteEntry(channel, skip_none=True, mapper=value)
            else:
                entry = ChannelWriteEntry(channel, value)
            entries.append(entry)
        return ChannelWrite(entries)


# ---------------------------------------------------------------- called graphs


def is_graph(target: Any) -> bool:
    """Return whether *target* is a compiled graph, which runs nested."""
    return hasattr(type(target), "nested_run")


def graphs_named_by(target: Any) -> Iterator[Any]:
    """Yield the compiled graphs that the code of *target* names, in order.

    A name may be a closure variable, a global variable of the function's module, or an
    attribute of a module.

    Args:
        target: A function, which may be wrapped. Other objects name no graphs.
    """
    function = inspect.unwrap(target_of_partial(target))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        known = dict(function.__globals__)
        for name, cell in zip(
            code.co_freevars, function.__closure__ or (), strict=True
        ):
            # The variable may have no value yet. Then it names no graph.
            with suppress(ValueError):
                known[name] = cell.cell_contents
        yield from _graphs_in(code, known)


def _graphs_in(
    code: CodeType,
    known: Mapping[str, Any],
) -> Iterator[Any]:
    value: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = known.get(name)
        elif isinstance(value, ModuleType) and instruction.opname in (
            "LOAD_ATTR",
            "LOAD_METHOD",
        ):
            value = vars(value).get(name)
        else:
            value = None
        if is_graph(value):
            yield value
        elif isinstance(name, CodeType):
            yield from _graphs_in(name, known)


def _outcome_result(outcome: Outcome) -> Any:
    if isinstance(outcome, Returned):
        return outcome.writes[0][1]
    raise outcome.error if isinstance(outcome, Raised) else GraphInterrupt
