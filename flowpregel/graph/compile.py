"""Lowers a `StateGraph` to nodes and channels.

===========================  ==================================================
in the graph                 in the program
===========================  ==================================================
a key of the state           a channel of its name
the input                    node ``__start__``, triggered by ``__start__``
a node ``n``                 a node, triggered by ``branch:to:n``, which is
                             deferred if the node is
an edge to ``n``             a write of None to ``branch:to:n``
an edge from ``a`` and ``b``  channel ``join:a+b:n``, which also triggers ``n``
a conditional edge           a writer that asks its path function
===========================  ==================================================
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeAlias

from flowpregel._core.commands import call_target_of, name_of
from flowpregel._core.program import names
from flowpregel._core.records import Write
from flowpregel._engine.drivers import elsewhere
from flowpregel.channels import (
    EphemeralValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
)
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.graph.spec import ROOT, GraphSpec, NodeSpec, Schema, is_model
from flowpregel.graph.writes import TRIGGER, BranchWriter, NodeWriter, check_input
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.drawing import Edge, Graph, graph_of
from flowpregel.pregel.node import TAG_HIDDEN, PregelNode, is_graph
from flowpregel.pregel.pregel import Pregel

Checkpointer: TypeAlias = BaseCheckpointSaver | str | os.PathLike[str] | bool | None
"""A saver, or the path of an LMDB folder. In another graph: None is that graph's,
True the same with one history per thread, False none."""
_DEFAULT_HANDLER = "__default_error_handler__"


class CompiledStateGraph(Pregel):
    """A `StateGraph` that can be run; made by `StateGraph.compile`.

    Args:
        builder: The graph it is compiled from.
        pregel: As `Pregel` takes them.

    Raises:
        ConfigurationError: Its parts do not fit together.
    """

    def __init__(self, *, builder: GraphSpec, **pregel: Any) -> None:
        self.builder = builder
        lowering = _Lowering(builder)
        output = tuple(builder.schemas[builder.output_schema].channels)
        streamed = tuple(builder.channels)
        super().__init__(
            nodes=lowering.nodes,
            channels={**lowering.channels, **builder.managed},
            input_channels=START,
            output_channels=ROOT if output == (ROOT,) else output,
            stream_channels=ROOT if streamed == (ROOT,) else streamed,
            stream_mode="updates",
            context_schema=builder.context_schema,
            **pregel,
        )

    @property
    def InputType(self) -> Any:
        """The schema of a run's input."""
        return self.builder.input_schema

    @property
    def OutputType(self) -> Any:
        """The schema of what a run returns."""
        return self.builder.output_schema

    def shaped(self, values: Any) -> Any:
        """Return *values* as an object of the output schema, if that makes objects.

        A dict that lacks what the class requires stays one: a run has just begun.
        """
        schema = self.builder.schemas[self.builder.output_schema]
        if schema.mapper is None or not isinstance(values, dict):
            return values
        given = {key: values[key] for key in schema.keys if key in values}
        return schema.mapper(given) if schema.required <= given.keys() else values

    def get_graph(self, config: Any = None, *, xray: bool | int = False) -> Graph:
        """Return a drawing of the graph: its nodes, its edges, and where branches may
        lead.

        Args:
            config: Not used; LangGraph's programs pass it.
            xray: Whether to draw the graphs that are nodes too; a number is how deep.
        """
        specs = _with_defaults(self.builder)
        edges = list(dict.fromkeys(_drawn_edges(self.builder, specs)))
        leads_on = {edge.source for edge in edges}
        # Where nothing leads on, the run can end.
        edges += [
            Edge(name, END)
            for name, spec in specs.items()
            if name not in leads_on and not spec.is_handler
        ]
        return graph_of(specs, edges, self._subgraph_drawings(xray))


class _Lowering:
    """Makes the nodes and channels of one graph."""

    def __init__(self, builder: GraphSpec) -> None:
        self.builder = builder
        self.channels: dict[str, Any] = {
            **builder.channels,
            START: EphemeralValue(builder.input_schema),
        }
        self.specs = _with_defaults(builder)
        self._writable = dict.fromkeys((*builder.channels, *builder.managed))
        self._triggers: dict[str, list[str]] = defaultdict(list)
        self._edges: dict[str, list[Write]] = defaultdict(list)
        for name, spec in self.specs.items():
            if not spec.is_handler:
                channel = TRIGGER + name
                self._triggers[name].append(channel)
                self.channels[channel] = (
                    LastValueAfterFinish(object)
                    if spec.defer
                    else EphemeralValue(object, guard=False)
                )
        for start, end in builder.edges:
            if end != END:
                self._edges[start].append((TRIGGER + end, None))
        for starts, end in builder.waiting_edges:
            if end != END:
                self._add_join(starts, end)
        nodes = {name: self._node(name, spec) for name, spec in self.specs.items()}
        self.nodes = {START: self._start(), **nodes}

    def _add_join(self, starts: tuple[str, ...], end: str) -> None:
        channel = f"join:{'+'.join(starts)}:{end}"
        is_deferred = self.specs[end].defer
        kind = NamedBarrierValueAfterFinish if is_deferred else NamedBarrierValue
        self.channels[channel] = kind(str, set(starts))
        self._triggers[end].append(channel)
        for start in starts:
            self._edges[start].append((channel, start))

    # ------------------------------------------------------------ nodes

    def _start(self) -> PregelNode:
        schema = self.builder.schemas[self.builder.input_schema]
        keys = dict.fromkeys(schema.channels)
        writers: list[Any] = [NodeWriter(START, keys, tuple(self._edges[START]))]
        if is_model(schema.typ):
            writers.append(partial(check_input, schema.typ, schema.keys))
        branches = self._branches(
            START, self.builder.schemas[self.builder.state_schema]
        )
        return PregelNode(
            channels=START,
            triggers=[START],
            tags=[TAG_HIDDEN],
            writers=[*writers, *branches],
            bound=_node_target(None, branches),
            reads=_reads(branches, schema.keys if len(writers) > 1 else ()),
            executor="inline",
        )

    def _node(self, name: str, spec: NodeSpec) -> PregelNode:
        branches = self._branches(name, spec.schema)
        return spec.changed(
            channels=spec.schema.selection,
            triggers=self._triggers[name],
            mapper=spec.schema.mapper,
            writers=[
                NodeWriter(name, self._writable, tuple(self._edges[name])),
                *branches,
            ],
            bound=_node_target(spec.bound, branches),
            reads=_reads(branches),
        )

    def _branches(self, node: str, own: Schema) -> list[BranchWriter]:
        """Return the writers of the branches that leave *node*, whose schema is
        *own*.
        """
        return [
            BranchWriter(
                node=node,
                name=name,
                path=call_target_of(branch.path),
                ends=branch.ends,
                selection=(branch.schema or own).selection,
                mapper=(branch.schema or own).mapper,
                passes_on=branch.schema is None,
            )
            for name, branch in self.builder.branches.get(node, {}).items()
        ]


def _with_defaults(builder: GraphSpec) -> dict[str, NodeSpec]:
    """Return the graph's nodes with its defaults filled in, and its default handler."""
    specs, defaults = dict(builder.nodes), dict(builder.defaults)
    if "error_handler" in defaults:
        if _DEFAULT_HANDLER in specs:
            raise ConfigurationError(
                f"node name {_DEFAULT_HANDLER!r} is taken by the default error handler"
            )
        action, schema = (
            defaults["error_handler"],
            builder.schemas[builder.state_schema],
        )
        specs[_DEFAULT_HANDLER] = NodeSpec(bound=action, schema=schema, is_handler=True)
        defaults["error_handler"] = _DEFAULT_HANDLER
    for name, spec in specs.items():
        # A handler of failures is neither cached nor handled itself.
        given = defaults.keys() - (
            {"cache_policy", "error_handler"} if spec.is_handler else ()
        )
        left_open = {key: defaults[key] for key in given if not getattr(spec, key)}
        specs[name] = replace(spec, **left_open)
    return specs


def _reads(branches: list[BranchWriter], more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the channels that a node's writers read."""
    found = [*more]
    for branch in branches:
        found += names(branch.selection)
    return tuple(dict.fromkeys(found))


# ---------------------------------------------------------------- async branches


class _WithAsyncForm:
    """A sync function that an async run calls on an OS thread, and awaits.

    Its node then runs on the event loop, where its async branch is awaited too.
    """

    def __init__(self, action: Callable[..., Any]) -> None:
        self.invoke = action
        self.ainvoke = wraps(action)(partial(elsewhere, action))
        self.name = name_of(action)


def _node_target(action: Any, branches: list[BranchWriter]) -> Any:
    """Return what a node calls, with an async form if one of its branches has no
    other.
    """
    if is_graph(action) or not any(branch.path.func is None for branch in branches):
        return action
    callee = call_target_of(_identity if action is None else action)
    if callee.func is None or callee.coroutine is not None:
        return action
    return _WithAsyncForm(callee.func)


def _identity(value: Any) -> Any:
    return value


# ---------------------------------------------------------------- drawings


def _drawn_edges(builder: GraphSpec, specs: Mapping[str, NodeSpec]) -> Iterator[Edge]:
    for start, end in builder.edges:
        yield Edge(start, end)
    for starts, end in builder.waiting_edges:
        for start in starts:
            yield Edge(start, end)
    for source, branches in builder.branches.items():
        # Where nothing is known of the answers, it may lead anywhere.
        others = [
            name for name in specs if name != source and not specs[name].is_handler
        ]
        anywhere = {name: name for name in (*others, END)}
        for branch in branches.values():
            for answer, end in (
                anywhere if branch.ends is None else branch.ends
            ).items():
                yield Edge(
                    source,
                    end,
                    str(answer) if answer != end else None,
                    conditional=True,
                )
    for name, spec in specs.items():
        for end, label in spec.ends.items():
            yield Edge(name, end, label, conditional=True)
        if spec.error_handler is not None:
            yield Edge(name, spec.error_handler, "error", conditional=True)
