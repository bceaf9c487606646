"""What a `StateGraph` consists of until it is compiled, and whether its parts fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, ClassVar, Self

from flowpregel.channels.base import BaseChannel
from flowpregel.errors import ConfigurationError
from flowpregel.graph.schema import Schema, conflict, schema_of
from flowpregel.managed import ManagedValue
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.node import PregelNode


@dataclass(kw_only=True, eq=False, repr=False)
class NodeSpec(PregelNode):
    """A node, as it was added: what it reads and writes is known when the graph is compiled."""

    channels: str | Sequence[str] = ()
    triggers: Sequence[str] = ()
    schema: Schema
    """What of the state it is given."""
    defer: bool = False
    """Whether it waits until nothing else is left to run."""
    ends: Mapping[str, str | None] = field(default_factory=dict)
    """The nodes that its `Command` may lead to, with labels: for drawing and checking."""
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
    """Nodes, edges and schemas, as they were added; `StateGraph` documents the arguments."""

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
        """Fields of a `NodeSpec`, for nodes that leave them open; ``error_handler``: the action."""
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
        """Check that edges and breakpoints (*interrupt*) fit the nodes, and return the graph.

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
                raise ConfigurationError(f"Found edge starting at unknown node {source!r}; {known}")
        if START not in sources:
            raise ConfigurationError(
                "Graph must have an entrypoint: add at least one edge from START to another node"
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
                yield start, end, f"Found edge from {', '.join(map(repr, starts))} ending at"
        for start, branches in self.branches.items():
            for name, branch in branches.items():
                for end in (branch.ends or {END: END}).values():
                    yield start, end, f"At {start!r} node, {name!r} branch found"
        for name, spec in self.nodes.items():
            for end in spec.ends:
                yield name, end, f"The destinations of node {name!r} name"
