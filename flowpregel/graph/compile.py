"""The compilation of a `StateGraph` to nodes and channels.

===========================  ==================================================
in the graph                 in the program
===========================  ==================================================
a key of the state           a channel with that name
the input                    node ``__start__``, triggered by ``__start__``
a node ``n``                 a node, triggered by channel ``branch:to:n``, which
                             is a deferred channel if the node has ``defer``
an edge to ``n``             a write of None to ``branch:to:n``
an edge from ``a`` and ``b``  channel ``join:a+b:n``, which also triggers ``n``
a conditional edge           a writer that calls the path function
===========================  ==================================================
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from flowpregel.channels.base import BaseChannel
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.graph.spec import (
    ROOT,
    BranchSpec,
    GraphSpec,
    NodeSpec,
    Schema,
    is_model,
)
from flowpregel.graph.writes import TRIGGER, BranchWriter, NodeWriter, check_input
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.graph_picture import Edge
from flowpregel.pregel.node import TAG_HIDDEN, PregelNode, is_graph
from flowpregel.pregel.pregel import Pregel

Checkpointer: TypeAlias = BaseCheckpointSaver | str | os.PathLike[str] | bool | None
"""A saver, or the path of an LMDB folder. For a nested graph, None means the saver of
the outer graph, True means the same saver with one history per thread, and False means
no saver.
"""
_DEFAULT_HANDLER = "__default_error_handler__"


class CompiledStateGraph(Pregel):
    """A `StateGraph` that can be run. `StateGraph.compile` returns it.

    Args:
        builder: The graph to compile.
        pregel: Further arguments of `Pregel`.

    Raises:
        ConfigurationError: The parts of the graph do not fit together.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import START, StateGraph
        >>> class State(TypedDict):
        ...     name: str
        >>> def upper(state: State) -> dict:
        ...     return {"name": state["name"].upper()}
        >>> graph = StateGraph(State).add_node(upper).add_edge(START, "upper")
        >>> app = graph.compile(executor="inline")
        >>> type(app).__name__, app.invoke({"name": "ada"})
        ('CompiledStateGraph', {'name': 'ADA'})
    """

    def __init__(self, *, builder: GraphSpec, **pregel: Any) -> None:
        self.builder = builder
        lowering = _Lowering(builder)
        output_schema = builder.declarations[builder.output_schema]
        super().__init__(
            nodes=lowering.nodes,
            channels={**lowering.channels, **builder.managed},
            input_channels=START,
            output_channels=_selection(output_schema.channels),
            stream_channels=_selection(builder.channels),
            stream_mode="updates",
            context_schema=builder.context_schema,
            **pregel,
        )
        definition = self.definition.changed(
            input_type=builder.input_schema,
            output_type=builder.output_schema,
            shape_output=partial(_shaped, output_schema),
            drawn_parts=partial(_drawn_parts, builder),
        )
        self.compose(definition)


def _shaped(schema: Schema, values: Any) -> Any:
    """Return *values* as an object of the output *schema*, if the schema is a class.

    A dict without all required fields is returned unchanged: at the beginning of a run
    not all keys have values.
    """
    if schema.mapper is None or not isinstance(values, dict):
        return values
    fields = {key: values[key] for key in schema.keys if key in values}
    if not schema.required <= fields.keys():
        return values
    return schema.mapper(fields)


def _selection(channels: Iterable[str]) -> str | tuple[str, ...]:
    """Return the names of *channels*, or `ROOT` alone if the state is a plain value."""
    names = tuple(channels)
    return ROOT if names == (ROOT,) else names


class _Lowering:
    """The compiler of one graph: it collects the nodes and channels to which the graph
    is compiled.

    Args:
        builder: The graph to compile.
    """

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
                self._add_trigger(name, is_deferred=spec.defer)
        for start, end in builder.edges:
            if end != END:
                self._edges[start].append((TRIGGER + end, None))
        for starts, end in builder.waiting_edges:
            if end != END:
                self._add_join(starts, end)
        self.nodes = {START: self._start()}
        for name, spec in self.specs.items():
            self.nodes[name] = self._node(name, spec)

    def _add_trigger(self, name: str, *, is_deferred: bool) -> None:
        """Add the channel that triggers the node *name*."""
        channel: BaseChannel[Any, Any] = EphemeralValue(object, guard=False)
        if is_deferred:
            channel = LastValueAfterFinish(object)
        self._triggers[name].append(TRIGGER + name)
        self.channels[TRIGGER + name] = channel

    def _add_join(self, starts: tuple[str, ...], end: str) -> None:
        """Add the channel that triggers *end* when all of the nodes *starts* have
        run.
        """
        channel = f"join:{'+'.join(starts)}:{end}"
        is_deferred = self.specs[end].defer
        kind = NamedBarrierValueAfterFinish if is_deferred else NamedBarrierValue
        self.channels[channel] = kind(str, set(starts))
        self._triggers[end].append(channel)
        for start in starts:
            self._edges[start].append((channel, start))

    # ------------------------------------------------------------ nodes

    def _start(self) -> PregelNode:
        """Return the node that writes the input of a run to the channels."""
        schema = self.builder.declarations[self.builder.input_schema]
        state_schema = self.builder.declarations[self.builder.state_schema]
        keys = dict.fromkeys(schema.channels)
        edges = tuple(self._edges[START])
        writers: list[Any] = [NodeWriter(START, keys, edges)]
        keys_checked: tuple[str, ...] = ()
        if is_model(schema.typ):
            keys_checked = schema.keys
            writers.append(partial(check_input, schema.typ, keys_checked))
        branches = self._branches(START, state_schema)
        return PregelNode(
            channels=START,
            triggers=[START],
            tags=[TAG_HIDDEN],
            writers=[*writers, *branches],
            bound=_node_target(None, branches),
            reads=_reads(branches, keys_checked),
            executor="inline",
        )

    def _node(self, name: str, spec: NodeSpec) -> PregelNode:
        """Return the node *name* with its channels and writers."""
        branches = self._branches(name, spec.schema)
        is_passed_on = any(branch.passes_on for branch in branches)
        writer = NodeWriter(
            node=name,
            keys=self._writable,
            edges=tuple(self._edges[name]),
            is_passed_on=is_passed_on,
        )
        return spec.changed(
            channels=spec.schema.selection,
            triggers=self._triggers[name],
            mapper=spec.schema.mapper,
            writers=[writer, *branches],
            bound=_node_target(spec.bound, branches),
            reads=_reads(branches),
        )

    def _branches(self, node: str, node_schema: Schema) -> list[BranchWriter]:
        """Return the writers of the branches (conditional edges) that leave a node.

        Args:
            node: The name of the node.
            node_schema: The schema of the node's input.
        """
        writers = []
        for name, branch in self.builder.branches.get(node, {}).items():
            schema = branch.schema or node_schema
            writer = BranchWriter(
                node=node,
                name=name,
                path=call_target_of(branch.path),
                ends=branch.ends,
                selection=schema.selection,
                mapper=schema.mapper,
                passes_on=branch.schema is None,
            )
            writers.append(writer)
        return writers


def _with_defaults(builder: GraphSpec) -> dict[str, NodeSpec]:
    """Return the nodes of a graph with the graph's defaults applied, including a node
    for the default error handler.
    """
    specs = dict(builder.nodes)
    defaults = dict(builder.defaults)
    if "error_handler" in defaults:
        if _DEFAULT_HANDLER in specs:
            raise ConfigurationError(
                f"node name {_DEFAULT_HANDLER!r} is taken by the default error handler"
            )
        specs[_DEFAULT_HANDLER] = NodeSpec(
            bound=defaults["error_handler"],
            schema=builder.declarations[builder.state_schema],
            is_handler=True,
        )
        defaults["error_handler"] = _DEFAULT_HANDLER
    return {name: _with_missing(spec, defaults) for name, spec in specs.items()}


def _with_missing(spec: NodeSpec, defaults: Mapping[str, Any]) -> NodeSpec:
    """Return *spec* with *defaults* for the options that it does not set."""
    changes = {}
    for key, default in defaults.items():
        # These two defaults do not apply to an error handler: its result is not cached,
        # and its failure is not handled by another handler.
        if spec.is_handler and key in {"cache_policy", "error_handler"}:
            continue
        if not getattr(spec, key):
            changes[key] = default
    return replace(spec, **changes)


def _reads(
    branches: list[BranchWriter], keys_checked: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the channels whose values a node's writers read.

    Args:
        branches: The writers of the branches that leave the node.
        keys_checked: The keys of the input that are checked against a model.
    """
    channels = list(keys_checked)
    for branch in branches:
        channels += names(branch.selection)
    return tuple(dict.fromkeys(channels))


# ---------------------------------------------------------------- async branches


class _WithAsyncForm:
    """A sync function with an async form, which calls the function on another OS
    thread.

    The async form is needed for a node with an async branch: such a node runs on the
    event loop, where the branch is awaited.
    """

    def __init__(self, action: Callable[..., Any]) -> None:
        self.invoke = action
        self.ainvoke = wraps(action)(partial(elsewhere, action))
        self.name = name_of(action)


def _node_target(action: Any, branches: list[BranchWriter]) -> Any:
    """Return the action of a node, with an async form if a conditional edge that leaves
    the node is async.
    """
    has_async_branch = any(branch.path.func is None for branch in branches)
    if is_graph(action) or not has_async_branch:
        return action
    function = _identity if action is None else action
    target = call_target_of(function)
    if target.func is None or target.coroutine is not None:
        return action
    return _WithAsyncForm(target.func)


def _identity(value: Any) -> Any:
    return value


# ---------------------------------------------------------------- drawings


def _drawn_parts(builder: GraphSpec) -> tuple[Iterable[str], list[Edge]]:
    """Return the names of the nodes, and the edges that a run may take."""
    specs = _with_defaults(builder)
    edges = list(dict.fromkeys(_drawn_edges(builder, specs)))
    sources = {edge.source for edge in edges}
    # An edge to the end is drawn for each node without an outgoing edge, because the
    # run can end after it.
    for name, spec in specs.items():
        if name not in sources and not spec.is_handler:
            edges.append(Edge(name, END))
    return specs, edges


def _drawn_edges(builder: GraphSpec, specs: Mapping[str, NodeSpec]) -> Iterator[Edge]:
    """Yield the edges of a graph, including conditional edges and edges to error
    handlers.
    """
    for start, end in builder.edges:
        yield Edge(start, end)
    for starts, end in builder.waiting_edges:
        for start in starts:
            yield Edge(start, end)
    for source, branches in builder.branches.items():
        for branch in branches.values():
            yield from _branch_edges(source, branch, specs)
    for name, spec in specs.items():
        for end, label in spec.ends.items():
            yield Edge(name, end, label, conditional=True)
        if spec.error_handler is not None:
            yield Edge(name, spec.error_handler, "error", conditional=True)


def _branch_edges(
    source: str, branch: BranchSpec, specs: Mapping[str, NodeSpec]
) -> Iterator[Edge]:
    """Yield the edges of a branch (conditional edge) that leaves the node *source*."""
    ends = branch.ends
    if ends is None:
        ends = _possible_ends(source, specs)
    for answer, end in ends.items():
        label = str(answer) if answer != end else None
        yield Edge(source, end, label, conditional=True)


def _possible_ends(source: str, specs: Mapping[str, NodeSpec]) -> dict[Any, str]:
    """Return the destinations of a branch whose path function declares none."""
    names = [
        name for name, spec in specs.items() if name != source and not spec.is_handler
    ]
    return {name: name for name in (*names, END)}
