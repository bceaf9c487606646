"""The parts of a compiled graph: nodes, channels, and defaults for runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy as shallow_copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from flowpregel._core.ids import without_ids
from flowpregel._core.program import Keys, Program, compile_program, names
from flowpregel._core.records import INPUT, SILENT_WRITES, TASKS, Node
from flowpregel._pickling.digest import SharedSpace
from flowpregel.cache.base import BaseCache
from flowpregel.channels import Topic
from flowpregel.channels.base import BaseChannel
from flowpregel.channels.context import Context
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.executors.by_name import check_executor
from flowpregel.managed import managed_value
from flowpregel.policies import CachePolicy, RetryPolicy
from flowpregel.pregel.naming import (
    RunIdentity,
    as_cache,
    as_checkpointer,
    as_store,
)
from flowpregel.pregel.node import (
    NodeBuilder,
    PregelNode,
    checked_cache_policy,
    policies_of,
)
from flowpregel.pregel.result_caches import cache_of_saver

if TYPE_CHECKING:
    from flowpregel.pregel.graph_picture import Edge

Where: TypeAlias = Literal["*"] | Sequence[str]
START: Final = "__start__"
"""The name of the first node of a graph, which takes the input."""
END: Final = "__end__"
"""The name of the end of a graph, after which nothing runs."""
RESERVED = SILENT_WRITES | {INPUT}
"""The reserved names of writes that do not go to a channel."""


def keys_of(keys: str | Sequence[str]) -> Keys:
    """Return a single channel name unchanged, or several names as a tuple."""
    return keys if isinstance(keys, str) else tuple(keys)


@dataclass(
    frozen=True,
    kw_only=True,
    eq=False,
    repr=False,
)
class GraphDefinition:
    """Nodes, channels and defaults; `Pregel` documents the arguments.

    A definition is immutable: if you set an attribute of a `Pregel`, the graph gets a
    new definition. Only the dict of nodes may be changed in place; call `validate`
    afterwards.
    """

    nodes: Mapping[str, PregelNode]
    channels: Mapping[str, Any]
    stream_mode: str | Sequence[str] = "values"
    output_channels: str | Sequence[str]
    stream_channels: str | Sequence[str] | None = None
    interrupt_after_nodes: Where = ()
    interrupt_before_nodes: Where = ()
    input_channels: str | Sequence[str]
    step_timeout: float | None = None
    debug: bool = False
    checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None = None
    store: Any = None
    cache: Any = None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] = ()
    cache_policy: CachePolicy | None = None
    context_schema: type[Any] | None = None
    config: Mapping[str, Any] | None = None
    name: str = "LangGraph"
    executor: Any = None
    migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    stream_transformers: Sequence[Callable[..., Any]] = ()
    """The functions that make the transformers of `Pregel.stream_events`."""
    run_options: Mapping[str, Any] = field(default_factory=dict)
    """The default options of runs, such as ``durability``."""
    once: RunIdentity | None = None
    """The identity of a workflow's runs, or None if the graph is not a workflow."""
    input_type: Any = None
    """The type of a run's input. None means the type of the input channel."""
    output_type: Any = None
    """The type of a run's output. None means the type of the output channel."""
    shape_output: Callable[[Any], Any] | None = None
    """A function that converts the values of the output channels to an object of the
    output type, or None if the values are returned unchanged.
    """
    drawn_parts: Callable[[], tuple[Iterable[str], list[Edge]]] | None = None
    """A function that returns the node names and the edges to draw. If it is None, the
    drawing has an edge wherever a channel leads from one node to another.
    """

    def __post_init__(self) -> None:
        self._set({name: getattr(self, name) for name in _FORMS})

    def changed(self, **changes: Any) -> GraphDefinition:
        """Return a copy with some attributes changed. The copy compiles its own program
        on first use.
        """
        # `dataclasses.replace` is not used, because it would check and normalize all
        # attributes again, including the saver and the store, which are only
        # placeholders in a worker process.
        clone = shallow_copy(self)
        clone.forget_compiled()
        clone._set(changes)  # noqa: SLF001 - of the same class
        return clone

    def _set(self, attributes: Mapping[str, Any]) -> None:
        """Check, normalize and set attributes."""
        for name, value in attributes.items():
            form = _FORMS.get(name)
            normalized = value if form is None else form(value)
            object.__setattr__(self, name, normalized)

    def forget_compiled(self) -> None:
        """Drop the compiled program, because the definition has changed. The next use
        compiles it again.
        """
        self.__dict__.pop("program", None)
        self.__dict__.pop("_spaces", None)

    def shaped(self, values: Any) -> Any:
        """Return the values of the output channels as an object of the output type."""
        if self.shape_output is None:
            return values
        return self.shape_output(values)

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The graph's own checkpointer, or None if the graph has none."""
        checkpointer: Any = self.checkpointer
        return None if isinstance(checkpointer, bool) else checkpointer

    # ------------------------------------------------------------ checks

    def validate(self) -> None:
        """Check that nodes and channels fit together.

        Raises:
            ConfigurationError: Nodes and channels do not fit together. The message
                names the wrong part.
        """
        _check_channels(self.channels)
        _check_nodes(self.nodes, self.channels)
        self._check_channel_names()
        self._check_breakpoints()
        # The program is compiled again, because nodes may have been added in place.
        self.forget_compiled()

    def _check_channel_names(self) -> None:
        """Refuse a channel name that the graph does not have."""
        for key, role in self._named_channels():
            if key not in self.channels:
                known = ", ".join(repr(name) for name in self.channels if name != TASKS)
                raise ConfigurationError(
                    f"{role} {key!r}, which is not in known channels: {known}"
                )
        inputs = names(self.input_channels)
        triggers = {key for node in self.nodes.values() for key in node.triggers}
        if triggers.isdisjoint(inputs):
            raise ConfigurationError(
                f"Input channel {', '.join(map(repr, inputs))} is not subscribed to by "
                "any node, so nothing could ever run"
            )

    def _named_channels(self) -> Iterator[tuple[str, str]]:
        """Yield each channel name that the definition refers to, and a description of
        the part that refers to the channel.
        """
        for name, node in self.nodes.items():
            for key in names(node.channels):
                yield key, f"node {name!r} reads channel"
            for key in node.triggers:
                yield key, f"node {name!r} subscribes to channel"
            for key in node.written:
                yield key, f"node {name!r} writes to channel"
        for key in names(self.input_channels):
            yield key, "the input channel"
        for keys in (self.output_channels, self.stream_channels or ()):
            for key in names(keys):
                yield key, "the output channel"

    def _check_breakpoints(self) -> None:
        """Refuse a breakpoint at a node that the graph does not have."""
        for breakpoints in (self.interrupt_after_nodes, self.interrupt_before_nodes):
            if breakpoints == "*":
                continue
            for name in breakpoints:
                if name not in self.nodes:
                    raise ConfigurationError(
                        f"a breakpoint names node {name!r}, which does not exist; the "
                        f"nodes are: {', '.join(self.nodes)}"
                    )

    # ------------------------------------------------------------ the program

    @cached_property
    def program(self) -> Program:
        """The program that `flowpregel._core` runs, compiled at first use."""
        contexts = [
            key
            for key, channel in self.channels.items()
            if isinstance(channel, Context)
        ]
        retry = policies_of(self.retry_policy)
        nodes = {
            name: node.compile(
                name,
                retry=retry,
                cache=self.cache_policy,
                contexts=contexts,
            )
            for name, node in self.nodes.items()
        }
        program = compile_program(
            name=self.name,
            nodes=nodes,
            channels=self.channels,
            input_channels=keys_of(self.input_channels),
            output_channels=keys_of(self.output_channels),
            stream_channels=self.stream_channels_asis,
        )
        return replace(program, migrate=self.migrate)

    def program_now(self) -> Program:
        """Return the program, whose cache namespaces match the present code of the
        nodes.

        Raises:
            ConfigurationError: A node with a cache policy refers to code of which no
                digest can be computed.
        """
        program = self.program
        changed: dict[str, Node] = {}
        for name, node in program.nodes.items():
            if node.cache is None:
                continue
            if name not in self._spaces:
                self._spaces[name] = self.nodes[name].shared_space(name)
            space = self._spaces[name].now()
            if space != node.space:
                changed[name] = replace(node, space=space)
        if changed:
            program = replace(program, nodes={**program.nodes, **changed})
            self.__dict__["program"] = program
        return program

    @cached_property
    def _spaces(self) -> dict[str, SharedSpace]:
        """The cache namespace of each node, by the node's name."""
        return {}

    @property
    def stream_channels_asis(self) -> Keys:
        """The names of the streamed channels: one name or several, or by default all
        channels.
        """
        if self.stream_channels is not None:
            return keys_of(self.stream_channels)
        return tuple(
            key
            for key, channel in self.channels.items()
            if key != TASKS
            and isinstance(channel, BaseChannel)
            and not isinstance(channel, Context)
        )

    # ------------------------------------------------------------ nested graphs

    def subgraphs(
        self,
        *,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> Iterator[tuple[str, Any]]:
        """Yield the path and the graph of each nested graph.

        Args:
            namespace: The path, such as ``"outer|inner"``, of the only graph to yield.
            recurse: Whether to yield the graphs nested in those graphs too.
        """
        is_deep = recurse or namespace is not None
        for path, graph in _nested_in(self, (self,), deep=is_deep):
            if namespace in (None, path):
                yield path, graph

    def namespace_at(self, namespace: str) -> str:
        """Return the namespace of the graph's checkpoints.

        With ``checkpointer=True`` all tasks of a node share one namespace.

        Args:
            namespace: The namespace of the task that runs the graph.
        """
        return without_ids(namespace) if self.checkpointer is True else namespace

    # ------------------------------------------------------------ shared results

    def open_cache(self, resources: ExitStack) -> BaseCache | None:
        """Return the graph's cache. If it has none, return the cache in the store of
        the graph's runs.

        Args:
            resources: The exit stack that closes a cache opened by this call.
        """
        cache: BaseCache | None = self.cache
        if cache is not None or self.saver is None:
            return cache
        return cache_of_saver(self.saver, resources)

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Delete the shared results of *nodes*, or of all nodes.

        Raises:
            ConfigurationError: The graph has no cache, or no such node.
        """
        for name in nodes or ():
            if name not in self.nodes:
                raise ConfigurationError(f"graph {self.name!r} has no node {name!r}")
        with ExitStack() as resources:
            cache = self.open_cache(resources)
            if cache is None:
                raise ConfigurationError(f"graph {self.name!r} has no cache to clear")
            program = self.program_now()
            spaces = [program.nodes[name].space for name in nodes or self.nodes]
            cache.clear(spaces)


class CompiledGraph(Protocol):
    """The interface of `Pregel`, for modules that the module of `Pregel` imports."""

    definition: GraphDefinition
    """The parts of the graph."""


def _built_nodes(nodes: Mapping[str, Any]) -> Any:
    """Return *nodes* with each `NodeBuilder` replaced by the node that it builds."""
    return {
        name: node.build() if isinstance(node, NodeBuilder) else node
        for name, node in nodes.items()
    }


def _with_tasks_channel(channels: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return *channels*, and in addition the channel to which `Send` objects are
    written.
    """
    channels = dict(channels or {})
    tasks = channels.pop(TASKS, None)
    channels[TASKS] = Topic(object) if tasks is None else tasks
    return channels


def _as_dict(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of *config*."""
    return dict(config or {})


_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "nodes": _built_nodes,
    "channels": _with_tasks_channel,
    "config": _as_dict,
    "output_channels": keys_of,
    "input_channels": keys_of,
    "checkpointer": as_checkpointer,
    "cache": as_cache,
    "store": as_store,
    "retry_policy": policies_of,
    "cache_policy": checked_cache_policy,
    "executor": check_executor,
    "stream_transformers": tuple,
}
"""The functions that check and normalize attributes, by their names."""


def _nested_in(
    definition: GraphDefinition,
    outer: tuple[GraphDefinition, ...],
    *,
    deep: bool,
) -> Iterator[tuple[str, Any]]:
    """Yield the path and the graph of each graph nested in *definition*.

    The *outer* graphs are not yielded again, because graphs may call each other without
    end.
    """
    for name, node in definition.nodes.items():
        graph = node.subgraph
        if graph is None or graph.definition in outer:
            continue
        yield name, graph
        if not deep:
            continue
        inner = graph.definition
        for path, nested in _nested_in(inner, (*outer, inner), deep=True):
            yield f"{name}|{path}", nested


def _check_channels(channels: Mapping[str, Any]) -> None:
    """Refuse a reserved name, and a value that is not a channel."""
    if not isinstance(channels[TASKS], Topic):
        raise ConfigurationError(f"channel {TASKS!r} is reserved and must be a Topic")
    for key, channel in channels.items():
        if key in RESERVED:
            raise ConfigurationError(f"Channel name {key!r} is reserved")
        if not isinstance(channel, BaseChannel) and managed_value(channel) is None:
            raise ConfigurationError(
                f"channel {key!r} is {channel!r}, which is neither a channel nor a "
                "managed value"
            )


def _check_nodes(
    nodes: Mapping[str, Any],
    channels: Mapping[str, Any],
) -> None:
    """Refuse a reserved name, a value that is not a node, and a trigger that is not a
    channel.
    """
    for name, node in nodes.items():
        if name in RESERVED:
            raise ConfigurationError(f"Node name {name!r} is reserved")
        if not isinstance(node, PregelNode):
            raise ConfigurationError(
                f"node {name!r} is {node!r}; use a PregelNode, a NodeBuilder or a "
                "Channel pipe"
            )
        check_executor(node.executor)
        for key in node.triggers:
            if key in channels and not isinstance(channels[key], BaseChannel):
                raise ConfigurationError(
                    f"node {name!r} cannot be triggered by {key!r}: not a channel"
                )
