"""The parts of a `StateGraph` before it is compiled: schemas, nodes, edges, branches.

Schemas are read from annotations: the channels of a state, the input of a node, and the
destinations of a node or a branch.
"""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from flowpregel._annotations import hints_of, signature_of, without
from flowpregel._code.values import target_of_partial
from flowpregel._core.commands import Command, call_target_of, name_of
from flowpregel.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from flowpregel.channels.base import BaseChannel
from flowpregel.errors import ConfigurationError
from flowpregel.managed import ManagedValue, managed_value
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.node import PregelNode

ROOT: Final = "__root__"
"""The name of the channel for a state that is one plain value, and not a dict or object
with keys.
"""
_IN_DICTS: Final = (typing.Required, typing.NotRequired)
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The channels that the class of a state, or its plain type, declares."""

    typ: Any
    channels: Mapping[str, BaseChannel[Any, Any]]
    managed: Mapping[str, type[ManagedValue[Any]]]
    keys: tuple[str, ...]
    """The names of the channels and managed values."""
    mapper: Callable[[Mapping[str, Any]], Any] | None
    """A function that converts a dict of values to an object, or None if the dict is
    used unchanged.
    """

    @property
    def selection(self) -> str | tuple[str, ...]:
        """The channels that the state is read from: one name if the state is a plain
        value, or else its keys.
        """
        return ROOT if self.keys == (ROOT,) else self.keys

    @property
    def required(self) -> frozenset[str]:
        """The keys without defaults. An object of the state's class cannot be made
        without them.
        """
        if is_model(self.typ):
            model_fields = self.typ.model_fields
            return frozenset(
                key for key, field in model_fields.items() if field.is_required()
            )
        if not is_dataclass(self.typ):
            return frozenset()
        make: Any = self.typ
        parameters = signature_of(make).parameters.values()
        return frozenset(
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
        )

    @property
    def name(self) -> str:
        """The name of the class or type, for messages."""
        return getattr(self.typ, "__name__", str(self.typ))


def _state_object(typ: Any, values: Mapping[str, Any]) -> Any:
    """Return an object of the dataclass or pydantic model *typ* with *values*."""
    return typ(**values)


def schema_of(typ: Any) -> Schema:
    """Return the schema of a TypedDict, dataclass, pydantic model or any other type.

    Raises:
        ConfigurationError: The annotation of a key cannot be a channel. The message
            names the key.
    """
    if not isinstance(typ, type) or not hasattr(typ, "__annotations__"):
        return _schema_of_value(typ)
    hints = typing.get_type_hints(typ, include_extras=True)
    channels: dict[str, BaseChannel[Any, Any]] = {}
    managed: dict[str, type[ManagedValue[Any]]] = {}
    for key in _keys_of(typ, hints):
        value = managed_value(without(_IN_DICTS, hints[key]))
        if value is not None:
            managed[key] = value
        elif key != "__slots__":
            channels[key] = _channel_of(key, hints[key])
    mapper = None
    if is_dataclass(typ) or is_model(typ):
        mapper = partial(_state_object, typ)
    return Schema(
        typ=typ,
        channels=channels,
        managed=managed,
        keys=(*channels, *managed),
        mapper=mapper,
    )


def _schema_of_value(typ: Any) -> Schema:
    """Return the schema of a state that is one plain value of type *typ*."""
    channel = _channel_of(ROOT, typ)
    return Schema(
        typ=typ,
        channels={ROOT: channel},
        managed={},
        keys=(ROOT,),
        mapper=None,
    )


def _keys_of(typ: Any, hints: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields of a class."""
    if is_model(typ):
        return list(typ.model_fields)
    if is_dataclass(typ):
        return [field.name for field in fields(typ)]
    return [
        key for key, hint in hints.items() if typing.get_origin(hint) is not ClassVar
    ]


def is_model(typ: Any) -> bool:
    """Return whether *typ* is a pydantic model."""
    if not isinstance(typ, type):
        return False
    return hasattr(typ, "model_fields") and hasattr(typ, "model_validate")


def _channel_of(key: str, annotation: Any) -> BaseChannel[Any, Any]:
    annotation = without(_IN_DICTS, annotation)
    channel = _declared(key, annotation) or LastValue(annotation)
    channel.key = key
    return channel


def _declared(key: str, annotation: Any) -> BaseChannel[Any, Any] | None:
    """Return the channel that ``Annotated[type, ...]`` declares, or None if there is no
    such declaration.
    """
    if typing.get_origin(annotation) is not Annotated:
        return None
    typ, *extras = typing.get_args(annotation)
    for extra in extras:
        if isinstance(extra, DeltaChannel):
            make: Any = type(extra)
            value_type = without(_IN_DICTS, typ)
            delta_channel: BaseChannel[Any, Any] = make(
                extra.reducer,
                value_type,
                snapshot_frequency=extra.snapshot_frequency,
            )
            return delta_channel
        if isinstance(extra, BaseChannel):
            return copy.copy(extra)
        if isinstance(extra, type) and issubclass(extra, BaseChannel):
            return extra(typ)
    reducer = extras[-1]
    if not callable(reducer):
        return None
    _check_reducer(key, reducer)
    return BinaryOperatorAggregate(typ, reducer)


def _check_reducer(key: str, reducer: Callable[..., Any]) -> None:
    """Raise an error if *reducer* does not take two positional arguments."""
    try:
        signature = signature_of(reducer)
    except (TypeError, ValueError):
        # Some built-in functions have no signature, so they cannot be checked.
        return
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in _POSITIONAL
    ]
    if len(positional) != 2:
        raise ConfigurationError(
            f"Invalid reducer signature of state key {key!r}. Expected (a, b) -> c. "
            f"Got {signature}"
        )


def conflict(first: BaseChannel[Any, Any], second: BaseChannel[Any, Any]) -> bool:
    """Return whether two declarations of one state key contradict each other.

    A declaration without a channel does not contradict another: the state key then gets
    the channel of the other schema.
    """
    if isinstance(second, LastValue):
        return False
    if type(first) is not type(second):
        return True
    # The first item, the type of the value, is not compared, because annotations may
    # spell the same type in several ways.
    return first.identity()[1:] != second.identity()[1:]


# ---------------------------------------------------------------- functions


def _annotated_function(target: Any) -> Callable[..., Any] | None:
    """Return the function or method whose annotations describe *target*, or None."""
    target = target_of_partial(target)
    if inspect.isfunction(target) or inspect.ismethod(target):
        return target
    if isinstance(target, type):
        return None
    call = getattr(target, "__call__", None)  # noqa: B004 - the method is needed
    return call if inspect.ismethod(call) else None


def input_schema_of(target: Any) -> type[Any] | None:
    """Return the annotation of the first parameter of *target*, if it is a class with
    fields.
    """
    function = _annotated_function(target)
    if function is None:
        return None
    first = next(iter(signature_of(function).parameters), "")
    hint = hints_of(function).get(first)
    has_fields = isinstance(hint, type) and bool(hints_of(hint))
    return hint if has_fields else None


def destinations_of(action: Any) -> dict[str, str | None]:
    """Return the node names in the annotation ``-> Command[Literal["a", "b"]]`` of
    *action*. Each has the label None.
    """
    returned = hints_of(_annotated_function(action)).get("return")
    options: tuple[Any, ...] = (returned,)
    if typing.get_origin(returned) in (typing.Union, UnionType):
        options = typing.get_args(returned)
    for option in options:
        if typing.get_origin(option) is not Command:
            continue
        (nodes,) = typing.get_args(option)
        if typing.get_origin(nodes) is Literal:
            names = typing.get_args(nodes)
            return dict.fromkeys(names)
    return {}


def literals_of(path: Any) -> tuple[Any, ...]:
    """Return the values in the annotation ``-> Literal["a", "b"]`` of *path*."""
    returned = hints_of(_annotated_function(path)).get("return")
    if typing.get_origin(returned) is not Literal:
        return ()
    return typing.get_args(returned)


# ---------------------------------------------------------------- parts


@dataclass(kw_only=True, eq=False, repr=False)
class NodeSpec(PregelNode):
    """A node of a graph, before `compile` adds the channels that the node reads and
    writes.
    """

    channels: str | Sequence[str] = ()
    triggers: Sequence[str] = ()
    schema: Schema
    """The part of the state that the node gets."""
    defer: bool = False
    """True if the node waits until no other node is left to run."""
    ends: Mapping[str, str | None] = field(default_factory=dict)
    """The nodes that a `Command` of this node may go to, with labels for drawings."""
    is_handler: bool = False
    """True if the node handles errors of other nodes."""

    @property
    def runnable(self) -> Any:
        """The action of the node, with ``invoke`` and ``ainvoke``.

        It is the action itself if that has these methods, as a compiled graph has.
        Otherwise it is a `NodeRunnable`.
        """
        if hasattr(self.bound, "invoke"):
            return self.bound
        return NodeRunnable(self)

    @property
    def input_schema(self) -> Any:
        """The class, or plain type, of the state that the node gets."""
        return self.schema.typ


@dataclass(frozen=True, slots=True)
class NodeRunnable:
    """The function of a node, in the form that programs written for LangGraph use.

    Args:
        node: The node whose function is shown.

    Example:
        >>> from flowpregel.graph import StateGraph
        >>> graph = StateGraph(dict).add_node("load", lambda state: {"size": 2})
        >>> graph.nodes["load"].runnable.invoke({})
        {'size': 2}
    """

    node: NodeSpec

    @property
    def name(self) -> str:
        """The name of the function."""
        return name_of(self.node.bound)

    @property
    def func(self) -> Callable[..., Any] | None:
        """The function, or None if it is async."""
        return call_target_of(self.node.bound).func

    @property
    def afunc(self) -> Callable[..., Any] | None:
        """The async function, or None if the function is not async."""
        return call_target_of(self.node.bound).coroutine

    def invoke(self, input: Any, config: Mapping[str, Any] | None = None) -> Any:
        """Return the output of the node, as `PregelNode.invoke` does."""
        return self.node.invoke(input, config)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None) -> Any:
        """`invoke`, with the async form of the function."""
        return await self.node.ainvoke(input, config)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchSpec:
    """A conditional edge of a graph."""

    path: Any
    ends: Mapping[Any, str] | None
    """The node for each result of *path*, or None if a result is itself a node name."""
    schema: Schema | None = None
    """The part of the state that *path* gets, or None for the part that the
    node gets.
    """


class GraphSpec:
    """The nodes, edges and schemas of a graph, before compilation.

    Args:
        state_schema, context_schema, input_schema, output_schema: See `StateGraph`.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """Support for annotations such as ``StateGraph[State]``, as LangGraph has."""

    def __init__(
        self,
        state_schema: Any,
        context_schema: type[Any] | None = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
    ) -> None:
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: dict[tuple[str, str], None] = {}
        """The edges, as (start, end)."""
        self.waiting_edges: dict[tuple[tuple[str, ...], str], None] = {}
        """The edges that wait for several nodes, as (starts, end)."""
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        """The conditional edges by the node that they leave, and by name."""
        self.declarations: dict[Any, Schema] = {}
        """The parsed form of each schema, by its class or plain type."""
        self.channels: dict[str, BaseChannel[Any, Any]] = {}
        self.managed: dict[str, type[ManagedValue[Any]]] = {}
        self.context_schema = context_schema
        self.state_schema = state_schema
        self.input_schema: Any = state_schema
        if input_schema is not None:
            self.input_schema = input_schema
        self.output_schema: Any = state_schema
        if output_schema is not None:
            self.output_schema = output_schema
        self.defaults: dict[str, Any] = {}
        """The defaults for the fields of `NodeSpec`, by name. The default of
        ``error_handler`` is a function.
        """
        self._add_schema(self.state_schema)
        self._add_schema(self.input_schema, "input")
        self._add_schema(self.output_schema, "output")

    @property
    def schemas(self) -> dict[Any, dict[str, Any]]:
        """The channels and managed values that each schema declares, by key."""
        return {
            typ: {**schema.channels, **schema.managed}
            for typ, schema in self.declarations.items()
        }

    def _add_schema(self, typ: Any, role: str = "") -> Schema:
        """Add the channels of *typ*, and return its schema.

        Args:
            typ: The class, or plain type.
            role: ``input`` or ``output``, if *typ* is only the schema of the input or
                output.

        Raises:
            ConfigurationError: Another schema declares a key differently, or the schema
                of an input or output has a managed value.
        """
        if typ in self.declarations:
            return self.declarations[typ]
        schema = schema_of(typ)
        if role and schema.managed:
            raise ConfigurationError(
                f"Invalid managed channels detected in {role} schema {schema.name}: "
                f"{', '.join(schema.managed)}. Managed values are computed, so they "
                f"cannot be the {role} of a run"
            )
        for key, channel in schema.channels.items():
            declared = self.channels.setdefault(key, channel)
            if conflict(declared, channel):
                raise ConfigurationError(
                    f"Channel {key!r} already exists with a different type: "
                    f"{declared!r}, and {channel!r} in {schema.name}"
                )
        for key, value in schema.managed.items():
            declared_value = self.managed.setdefault(key, value)
            if declared_value is not value:
                raise ConfigurationError(
                    f"Managed value {key!r} already exists with a different type"
                )
        self.declarations[typ] = schema
        return schema

    def validate(self, interrupt: Sequence[str] | None = None) -> Self:
        """Check that edges and breakpoints name nodes, and return the graph.

        Args:
            interrupt: The names of the nodes that have breakpoints.

        Raises:
            ConfigurationError: An edge begins or ends at an unknown node, no edge
                leaves the start, or a breakpoint names an unknown node. The message
                gives the name.

        Example:
            >>> from flowpregel.graph import START, StateGraph
            >>> graph = StateGraph(dict).add_node("load", dict).add_edge(START, "load")
            >>> graph.validate() is graph
            True
            >>> graph.add_edge("load", "rank").validate()
            Traceback (most recent call last):
            flowpregel.errors.ConfigurationError: ...
        """
        names = [name for name, spec in self.nodes.items() if not spec.is_handler]
        known = f"the nodes are: {', '.join(names) or 'none'}"
        links = list(self._links())
        sources = {source for source, _, _ in links}
        for source in sorted(sources):
            if source not in self.nodes and source != START:
                raise ConfigurationError(
                    f"Found edge starting at unknown node {source!r}; {known}"
                )
        if START not in sources:
            raise ConfigurationError(
                "Graph must have an entrypoint: add at least one edge from START to "
                "another node"
            )
        for _, target, description in links:
            if target not in self.nodes and target != END:
                raise ConfigurationError(
                    f"{description} unknown node {target!r}; {known}"
                )
        self._check_breakpoints(interrupt, known)
        return self

    def _check_breakpoints(self, interrupt: Sequence[str] | None, known: str) -> None:
        """Raise an error if a breakpoint does not name a node. *known* is the list of
        the nodes as text.
        """
        for name in interrupt or ():
            if name not in self.nodes:
                raise ConfigurationError(f"Interrupt node {name!r} not found; {known}")

    def _links(self) -> Iterator[tuple[str, str, str]]:
        """Yield the start and the end of each edge, and a description for errors."""
        for start, end in self.edges:
            yield start, end, f"Found edge from {start!r} ending at"
        for starts, end in self.waiting_edges:
            names = ", ".join(map(repr, starts))
            for start in starts:
                yield start, end, f"Found edge from {names} ending at"
        yield from self._branch_links()
        for name, spec in self.nodes.items():
            for end in spec.ends:
                yield name, end, f"The destinations of node {name!r} name"

    def _branch_links(self) -> Iterator[tuple[str, str, str]]:
        """Yield a start and an end for each destination of a conditional edge, as
        `_links` does. If an edge declares no destinations, the end of the graph is its
        only one.
        """
        for start, branches in self.branches.items():
            for name, branch in branches.items():
                for end in (branch.ends or {END: END}).values():
                    yield start, end, f"At {start!r} node, {name!r} branch found"
