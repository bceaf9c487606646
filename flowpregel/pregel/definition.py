"""What a compiled graph consists of: nodes, channels, and how it is run by default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy as shallow_copy
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from types import GenericAlias
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypedDict
from weakref import WeakKeyDictionary

from flowpregel._core.digest import SharedSpace
from flowpregel._core.ids import without_ids
from flowpregel._core.program import Keys, Program, compile_program, names
from flowpregel._core.records import INPUT, SILENT_WRITES, TASKS, Node
from flowpregel.cache.base import BaseCache
from flowpregel.cache.memory import InMemoryCache
from flowpregel.channels import Topic
from flowpregel.channels.base import BaseChannel
from flowpregel.channels.context import Context
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.executors.by_name import check_executor
from flowpregel.managed import managed_value
from flowpregel.policies import CachePolicy, RetryPolicy
from flowpregel.pregel.jsonschema import json_schema_of, model_of
from flowpregel.pregel.naming import (
    RunIdentity,
    as_cache,
    as_checkpointer,
    as_store,
    cache_at,
)
from flowpregel.pregel.node import (
    NodeBuilder,
    PregelNode,
    checked_cache_policy,
    policies_of,
)

Where: TypeAlias = Literal["*"] | Sequence[str]
START: Final = "__start__"
"""Where a graph begins: the node that takes the input in."""
END: Final = "__end__"
"""Where a graph ends: nothing runs after it."""
RESERVED = SILENT_WRITES | {INPUT}
"""The names of writes that are not to channels."""


@dataclass(kw_only=True, eq=False, repr=False)
class GraphDefinition:
    """Nodes, channels and defaults; `Pregel` documents the arguments."""

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """LangGraph's programs write ``CompiledStateGraph[State]`` in annotations."""

    nodes: Mapping[str, PregelNode]
    channels: Mapping[str, Any]
    auto_validate: InitVar[bool] = True
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
    run_options: Mapping[str, Any] = field(default_factory=dict, init=False)
    """The options that a run has which is not given its own, such as ``durability``."""
    once: RunIdentity | None = field(default=None, init=False)
    """What the command asks for when it runs a workflow; None: it is a graph."""

    def __post_init__(self, auto_validate: bool) -> None:
        self.nodes = {
            key: node.build() if isinstance(node, NodeBuilder) else node
            for key, node in self.nodes.items()
        }
        channels = self.channels or {}
        self.channels = {**channels, TASKS: channels.get(TASKS, Topic(object))}
        self.config = dict(self.config or {})
        if auto_validate:
            self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        form = _FORMS.get(name)
        object.__setattr__(self, name, value if form is None else form(value))

    def completed(self, given: Any) -> Any:
        """Return *given*, which is the input of a run, with defaults for what it leaves
        out.
        """
        return given

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The saver of its own that it keeps threads with."""
        own: Any = self.checkpointer
        return None if isinstance(own, bool) else own

    def validate(self) -> Self:
        """Check that nodes and channels fit together, and return the graph.

        Raises:
            ConfigurationError: They do not; the message names which, and what is there.
        """
        _check_parts(self.channels, self.nodes)
        for key, what in self._named_channels():
            if key not in self.channels:
                known = ", ".join(repr(name) for name in self.channels if name != TASKS)
                raise ConfigurationError(
                    f"{what} {key!r}, which is not in known channels: {known}"
                )
        inputs = names(self.input_channels)
        if not any(
            key in node.triggers for key in inputs for node in self.nodes.values()
        ):
            raise ConfigurationError(
                f"Input channel {', '.join(map(repr, inputs))} is not subscribed to by "
                "any node, "
                "so nothing could ever run"
            )
        for where in (self.interrupt_after_nodes, self.interrupt_before_nodes):
            for name in () if where == "*" else where:
                if name not in self.nodes:
                    raise ConfigurationError(
                        f"a breakpoint names node {name!r}, which does not exist; the "
                        "nodes are: "
                        f"{', '.join(self.nodes)}"
                    )
        self.forget_compiled()
        return self

    def forget_compiled(self) -> None:
        """Forget what was made of its parts, which have changed."""
        self.__dict__.pop("program", None)
        self.__dict__.pop("_spaces", None)

    def _named_channels(self) -> Iterator[tuple[str, str]]:
        """Yield the channels that something names, and what names them."""
        for name, node in self.nodes.items():
            yield from (
                (key, f"node {name!r} reads channel") for key in names(node.channels)
            )
            yield from (
                (key, f"node {name!r} subscribes to channel") for key in node.triggers
            )
            yield from (
                (key, f"node {name!r} writes to channel") for key in node.written
            )
        yield from ((key, "the input channel") for key in names(self.input_channels))
        for keys in (self.output_channels, self.stream_channels or ()):
            yield from ((key, "the output channel") for key in names(keys))

    @cached_property
    def program(self) -> Program:
        """What the core runs; compiled when first asked for."""
        contexts = [
            key for key, item in self.channels.items() if isinstance(item, Context)
        ]
        retry, cache = policies_of(self.retry_policy), self.cache_policy
        program = compile_program(
            name=self.name,
            nodes={
                key: node.compile(key, retry=retry, cache=cache, contexts=contexts)
                for key, node in self.nodes.items()
            },
            channels=self.channels,
            input_channels=keys_of(self.input_channels),
            output_channels=keys_of(self.output_channels),
            stream_channels=self.stream_channels_asis,
        )
        return replace(program, migrate=self.migrate)

    def program_now(self) -> Program:
        """Return the program for a run that begins now: results are shared by the code
        of now.

        Raises:
            ConfigurationError: The code of a node with a cache refers to what cannot be
                seen.
        """
        program, changed = self.program, dict[str, Node]()
        for name, node in program.nodes.items():
            if node.cache is not None:
                space = self._spaces.setdefault(
                    name, self.nodes[name].shared_space(name)
                ).now()
                if space != node.space:
                    changed[name] = replace(node, space=space)
        if changed:
            program = replace(program, nodes={**program.nodes, **changed})
            self.__dict__["program"] = program
        return program

    @cached_property
    def _spaces(self) -> dict[str, SharedSpace]:
        """Where the results of its nodes are shared, by their names."""
        return {}

    @property
    def stream_channels_list(self) -> list[str]:
        """The channels that ``tasks`` and ``checkpoints`` show."""
        return list(names(self.stream_channels_asis))

    @property
    def stream_channels_asis(self) -> Keys:
        """The same, one name or several; by default all channels."""
        if self.stream_channels is not None:
            return keys_of(self.stream_channels)
        return tuple(
            key
            for key, item in self.channels.items()
            if key != TASKS
            and isinstance(item, BaseChannel)
            and not isinstance(item, Context)
        )

    def shaped(self, values: Any) -> Any:
        """Return what the output channels hold in the form of its schema, if it is a
        class.
        """
        return values

    # graphs in it, and around it -------------------------------------------

    def get_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Yield (namespace, graph) of the graphs that are nodes of this one, or that
        nodes call.

        A function calls a graph if its code names one; of several, the first counts.
        Graphs with ``checkpointer=False`` are left out.

        Args:
            namespace: Only the one of this namespace, such as ``"outer|inner"``.
            recurse: Those nested in them too.
        """
        for path, graph in _nested_in(
            self, (self,), deep=recurse or namespace is not None
        ):
            if namespace in (None, path):
                yield path, graph

    def namespace_at(self, place: str) -> str:
        """Return where it keeps its checkpoints as a task whose own namespace is
        *place*.

        With ``checkpointer=True`` that is the same for each of its tasks.
        """
        return without_ids(place) if self.checkpointer is True else place

    # what it takes and gives -----------------------------------------------

    @property
    def InputType(self) -> Any:
        """The type of a run's input; None if it has several channels."""
        keys = self.input_channels
        return self.channels[keys].UpdateType if isinstance(keys, str) else None

    @property
    def OutputType(self) -> Any:
        """The type of what a run returns; None if it has several channels."""
        keys = self.output_channels
        return self.channels[keys].ValueType if isinstance(keys, str) else None

    def get_input_jsonschema(
        self, config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the JSON Schema of a run's input.

        Args:
            config: Not used; LangGraph's programs pass it.

        Example:
            >>> app.get_input_jsonschema()  # doctest: +SKIP
            {'title': 'LangGraphInput', 'type': 'string'}
        """
        return json_schema_of(self._input(), f"{self.name}Input")

    def get_output_jsonschema(
        self, config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the JSON Schema of what a run returns."""
        return json_schema_of(self._output(), f"{self.name}Output")

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of a run's context; None if it has none."""
        typ = self.context_schema
        return (
            None
            if typ is None
            else json_schema_of(typ, getattr(typ, "__name__", self.name))
        )

    def get_input_schema(self, config: Mapping[str, Any] | None = None) -> Any:
        """Return a pydantic model of a run's input; without pydantic, its type."""
        return model_of(self._input(), f"{self.name}Input")

    def get_output_schema(self, config: Mapping[str, Any] | None = None) -> Any:
        """Return a pydantic model of what a run returns; without pydantic, its type."""
        return model_of(self._output(), f"{self.name}Output")

    input_schema = property(get_input_schema)
    output_schema = property(get_output_schema)

    def _input(self) -> Any:
        return self.InputType or self._typed_dict(self.input_channels, "UpdateType")

    def _output(self) -> Any:
        return self.OutputType or self._typed_dict(self.output_channels, "ValueType")

    def _typed_dict(self, keys: Sequence[str], kind: str) -> Any:
        """Return a class with these keys, of which none has to be there."""
        types = {key: getattr(self.channels[key], kind) for key in keys}
        return TypedDict("Values", types, total=False)  # type: ignore[operator]

    # copies, shared results ------------------------------------------------

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a graph of its own with the attributes of *update* changed."""
        clone = shallow_copy(self)
        clone.forget_compiled()
        for name, value in (update or {}).items():
            if name not in clone.__dict__:
                raise ConfigurationError(f"a graph has no attribute {name!r} to change")
            setattr(clone, name, value)
        return clone

    def open_cache(self, resources: ExitStack) -> BaseCache | None:
        """Return where results are shared: its cache, or else the store that keeps its
        runs.

        Args:
            resources: What closes the cache that is opened for the moment.
        """
        given: BaseCache | None = self.cache
        if given is not None or self.saver is None:
            return given
        if isinstance(self.saver, InMemorySaver):
            return _CACHES.setdefault(self.saver, InMemoryCache())
        from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415 - imports lmdb

        if not isinstance(self.saver, DurableSaver):
            return None
        cache = cache_at(self.saver.location, self.saver.options)
        if isinstance(cache, AbstractContextManager):
            resources.enter_context(cache)
        return cache

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Forget shared results: of *nodes*, or of all.

        Raises:
            ConfigurationError: The graph has no cache.
        """
        for name in nodes or ():
            if name not in self.nodes:
                raise ConfigurationError(f"graph {self.name!r} has no node {name!r}")
        with ExitStack() as resources:
            cache = self.open_cache(resources)
            if cache is None:
                raise ConfigurationError(f"graph {self.name!r} has no cache to clear")
            shared = self.program_now().nodes
            cache.clear([shared[name].space for name in nodes or self.nodes])


def keys_of(keys: str | Sequence[str]) -> Keys:
    """Return one channel name, or several as a tuple."""
    return keys if isinstance(keys, str) else tuple(keys)


_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "output_channels": keys_of,
    "input_channels": keys_of,
    "checkpointer": as_checkpointer,
    "cache": as_cache,
    "store": as_store,
    "retry_policy": policies_of,
    "cache_policy": checked_cache_policy,
    "executor": check_executor,
}
"""What is made of what a user sets, in the constructor or later."""


def _nested_in(
    graph: GraphDefinition, around: tuple[Any, ...], *, deep: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the graphs in *graph*, but none of those *around*: graphs may call each
    other.
    """
    for name, node in graph.nodes.items():
        inner = node.subgraph
        if inner is None or inner in around:
            continue
        yield name, inner
        for path, found in (
            _nested_in(inner, (*around, inner), deep=True) if deep else ()
        ):
            yield f"{name}|{path}", found


_CACHES: WeakKeyDictionary[InMemorySaver, InMemoryCache] = WeakKeyDictionary()
"""Where results are shared by the runs that a saver keeps in memory."""


def _check_parts(channels: Mapping[str, Any], nodes: Mapping[str, Any]) -> None:
    if not isinstance(channels[TASKS], Topic):
        raise ConfigurationError(f"channel {TASKS!r} is reserved and must be a Topic")
    for key, item in channels.items():
        if key in RESERVED:
            raise ConfigurationError(f"Channel name {key!r} is reserved")
        if not isinstance(item, BaseChannel) and managed_value(item) is None:
            raise ConfigurationError(
                f"channel {key!r} is {item!r}, which is neither a channel nor a "
                "managed value"
            )
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
