"""What a `StateGraph` consists of until it is compiled, and whether its parts fit
together.

Its schemas are what annotations say: the channels of a state, a node's input, where it
leads.
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

from flowpregel._core.commands import Command, target_of_partial
from flowpregel.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from flowpregel.channels.base import BaseChannel
from flowpregel.errors import ConfigurationError
from flowpregel.managed import ManagedValue, managed_value
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.jsonschema import hints_of, without
from flowpregel.pregel.node import PregelNode

ROOT: Final = "__root__"
"""The channel of a state that is one plain value."""
_IN_DICTS: Final = (typing.Required, typing.NotRequired)
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """What a class, or a plain type, says about a state."""

    typ: Any
    channels: Mapping[str, BaseChannel[Any, Any]]
    managed: Mapping[str, type[ManagedValue[Any]]]
    keys: tuple[str, ...]
    """The names of both, in the order in which they are declared."""
    mapper: Callable[[Mapping[str, Any]], Any] | None
    """Turns a dict of values into what nodes get; None leaves the dict."""

    @property
    def selection(self) -> str | tuple[str, ...]:
        """What a node reads: the one channel of a plain value, or the keys of a
        dict.
        """
        return ROOT if self.keys == (ROOT,) else self.keys

    @property
    def required(self) -> frozenset[str]:
        """The keys that an object of the class cannot be made without."""
        if is_model(self.typ):
            model_fields = self.typ.model_fields.items()
            return frozenset(key for key, each in model_fields if each.is_required())
        has_fields = is_dataclass(self.typ)
        taken = inspect.signature(self.typ).parameters.items() if has_fields else ()
        return frozenset(key for key, each in taken if each.default is each.empty)

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return getattr(self.typ, "__name__", str(self.typ))


def _state_object(typ: Any, values: Mapping[str, Any]) -> Any:
    """Return an object of a dataclass or pydantic model."""
    return typ(**values)


def schema_of(typ: Any) -> Schema:
    """Look at *typ*: a TypedDict, a dataclass, a pydantic model, or any other type.

    Raises:
        ConfigurationError: A key's annotation cannot be a channel; the message
            names the key.
    """
    if not isinstance(typ, type) or not hasattr(typ, "__annotations__"):
        return Schema(typ, {ROOT: _channel_of(ROOT, typ)}, {}, (ROOT,), None)
    hints = typing.get_type_hints(typ, include_extras=True)
    is_object = is_dataclass(typ) or is_model(typ)
    if is_model(typ):
        names: Any = typ.model_fields  # type: ignore[attr-defined]
    elif is_dataclass(typ):
        names = [field.name for field in fields(typ)]
    else:
        names = [
            key
            for key, hint in hints.items()
            if typing.get_origin(hint) is not ClassVar
        ]
    channels: dict[str, BaseChannel[Any, Any]] = {}
    managed: dict[str, type[ManagedValue[Any]]] = {}
    for key in names:
        value = managed_value(without(_IN_DICTS, hints[key]))
        if value is not None:
            managed[key] = value
        elif key != "__slots__":
            channels[key] = _channel_of(key, hints[key])
    mapper = partial(_state_object, typ) if is_object else None
    return Schema(typ, channels, managed, (*channels, *managed), mapper)


def is_model(typ: Any) -> bool:
    """Return whether *typ* is a pydantic model."""
    return (
        isinstance(typ, type)
        and hasattr(typ, "model_fields")
        and hasattr(typ, "model_validate")
    )


def _channel_of(key: str, annotation: Any) -> BaseChannel[Any, Any]:
    annotation = without(_IN_DICTS, annotation)
    channel = _declared(key, annotation) or LastValue(annotation)
    channel.key = key
    return channel


def _declared(key: str, annotation: Any) -> BaseChannel[Any, Any] | None:
    """Return the channel that ``Annotated[type, ...]`` asks for, or None."""
    if typing.get_origin(annotation) is not Annotated:
        return None
    typ, *extras = typing.get_args(annotation)
    for extra in extras:
        if isinstance(extra, DeltaChannel):
            frequency = extra.snapshot_frequency
            return type(extra)(
                extra.reducer, without(_IN_DICTS, typ), snapshot_frequency=frequency
            )
        if isinstance(extra, BaseChannel):
            return copy.copy(extra)
        if isinstance(extra, type) and issubclass(extra, BaseChannel):
            return extra(typ)
    if callable(extras[-1]):
        _check_reducer(key, extras[-1])
        return BinaryOperatorAggregate(typ, extras[-1])
    return None


def _check_reducer(key: str, reducer: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(reducer)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return
    if sum(item.kind in _POSITIONAL for item in signature.parameters.values()) != 2:
        raise ConfigurationError(
            f"Invalid reducer signature of state key {key!r}. Expected (a, b) -> c. "
            f"Got {signature}"
        )


def conflict(first: BaseChannel[Any, Any], second: BaseChannel[Any, Any]) -> bool:
    """Return whether two declarations of one state key cannot both hold.

    A key that is declared plainly takes the channel that another schema gave it.
    """
    if isinstance(second, LastValue):
        return False
    # All but the type of the value, which an annotation may spell in several ways.
    return (
        type(first) is not type(second) or first.identity()[1:] != second.identity()[1:]
    )


# ---------------------------------------------------------------- of functions


def _annotated_function(target: Any) -> Callable[..., Any] | None:
    """Return the function or method whose annotations describe *target*, or None."""
    target = target_of_partial(target)
    if inspect.isfunction(target) or inspect.ismethod(target):
        return target
    call = getattr(target, "__call__", None)  # noqa: B004 - the method itself is looked at
    return call if inspect.ismethod(call) and not isinstance(target, type) else None


def input_schema_of(target: Any) -> type[Any] | None:
    """Return the annotated class of the first parameter, if it has keys of its own."""
    function = _annotated_function(target)
    if function is None:
        return None
    first = next(iter(inspect.signature(function).parameters), "")
    hint = hints_of(function).get(first)
    return hint if isinstance(hint, type) and hints_of(hint) else None


def destinations_of(action: Any) -> dict[str, str | None]:
    """Return the nodes of an annotation ``-> Command[Literal["a", "b"]]``, without
    labels.
    """
    returned = hints_of(_annotated_function(action)).get("return")
    is_union = typing.get_origin(returned) in (typing.Union, UnionType)
    for option in typing.get_args(returned) if is_union else (returned,):
        target = (
            typing.get_args(option)[0] if typing.get_origin(option) is Command else None
        )
        if typing.get_origin(target) is Literal:
            return dict.fromkeys(typing.get_args(target))
    return {}


def literals_of(path: Any) -> tuple[Any, ...]:
    """Return the values of an annotation ``-> Literal["a", "b"]``."""
    returned = hints_of(_annotated_function(path)).get("return")
    return typing.get_args(returned) if typing.get_origin(returned) is Literal else ()


# ---------------------------------------------------------------- the parts


@dataclass(kw_only=True, eq=False, repr=False)
class NodeSpec(PregelNode):
    """A node, as it was added: what it reads and writes is known when the graph is
    compiled.
    """

    channels: str | Sequence[str] = ()
    triggers: Sequence[str] = ()
    schema: Schema
    """What of the state it is given."""
    defer: bool = False
    """Whether it waits until nothing else is left to run."""
    ends: Mapping[str, str | None] = field(default_factory=dict)
    """The nodes that its `Command` may lead to, with labels: for drawing and
    checking.
    """
    is_handler: bool = False
    """Whether it handles failures of other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchSpec:
    """A conditional edge, as it was added."""

    path: Any
    ends: Mapping[Any, str] | None
    """Where each answer of *path* leads; None: an answer is a node's name."""
    schema: Schema | None = None
    """What of the state it is given; None: what its node is given."""


class GraphSpec:
    """Nodes, edges and schemas, as they were added; `StateGraph` documents the
    arguments.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """LangGraph's programs write ``StateGraph[State]`` in annotations."""

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
        """(start, end), in the order they were added."""
        self.waiting_edges: dict[tuple[tuple[str, ...], str], None] = {}
        """(starts, end): those that wait for several nodes."""
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        """By the node they leave, and by name."""
        self.schemas: dict[Any, Schema] = {}
        self.channels: dict[str, BaseChannel[Any, Any]] = {}
        self.managed: dict[str, type[ManagedValue[Any]]] = {}
        self.context_schema = context_schema
        self.state_schema = state_schema
        self.input_schema = state_schema if input_schema is None else input_schema
        self.output_schema = state_schema if output_schema is None else output_schema
        self.defaults: dict[str, Any] = {}
        """Fields of a `NodeSpec`, for nodes that leave them open; ``error_handler``:
        the action.
        """
        self._add_schema(self.state_schema)
        self._add_schema(self.input_schema, "input")
        self._add_schema(self.output_schema, "output")

    def _add_schema(self, typ: Any, role: str = "") -> Schema:
        """Take the channels of *typ* in, and return its schema.

        Args:
            typ: The class, or plain type.
            role: ``input`` or ``output``, if it is the schema of that alone.

        Raises:
            ConfigurationError: A key is declared in another way already, or is
                worked out and can be no input or output.
        """
        if typ in self.schemas:
            return self.schemas[typ]
        schema = schema_of(typ)
        if role and schema.managed:
            raise ConfigurationError(
                f"Invalid managed channels detected in {role} schema {schema.name}: "
                f"{', '.join(schema.managed)}. They are worked out, and no run's {role}"
            )
        for key, channel in schema.channels.items():
            if conflict(self.channels.setdefault(key, channel), channel):
                raise ConfigurationError(
                    f"Channel {key!r} already exists with a different type: "
                    f"{self.channels[key]!r}, and {channel!r} in {schema.name}"
                )
        for key, value in schema.managed.items():
            if self.managed.setdefault(key, value) is not value:
                raise ConfigurationError(
                    f"Managed value {key!r} already exists with a different type"
                )
        self.schemas[typ] = schema
        return schema

    def validate(self, interrupt: Sequence[str] | None = None) -> Self:
        """Check that edges and breakpoints (*interrupt*) fit the nodes, and return the
        graph.

        Raises:
            ConfigurationError: An edge begins or ends nowhere, nothing follows the
                start, or a breakpoint names no node; the message says which.
        """
        names = [name for name, spec in self.nodes.items() if not spec.is_handler]
        known = f"the nodes are: {', '.join(names) or 'none'}"
        links = [*self._links()]
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
        for _, target, what in links:
            if target not in self.nodes and target != END:
                raise ConfigurationError(f"{what} unknown node {target!r}; {known}")
        for name in interrupt or ():
            if name not in self.nodes:
                raise ConfigurationError(f"Interrupt node {name!r} not found; {known}")
        return self

    def _links(self) -> Iterator[tuple[str, str, str]]:
        """Yield where something begins, where it leads, and what it is."""
        for start, end in self.edges:
            yield start, end, f"Found edge from {start!r} ending at"
        for starts, end in self.waiting_edges:
            for start in starts:
                yield (
                    start,
                    end,
                    f"Found edge from {', '.join(map(repr, starts))} ending at",
                )
        for start, branches in self.branches.items():
            for name, branch in branches.items():
                for end in (branch.ends or {END: END}).values():
                    yield start, end, f"At {start!r} node, {name!r} branch found"
        for name, spec in self.nodes.items():
            for end in spec.ends:
                yield name, end, f"The destinations of node {name!r} name"
