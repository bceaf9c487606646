"""The graph of a run: a node for each task, with its calls counted by state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from flowpregel._core.ids import without_ids
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import STATES

Edge: TypeAlias = tuple[str, str]
"""The ids of two nodes."""
_Key: TypeAlias = tuple[str, str]
"""A namespace, and the name or the path of a task."""
_StepKey: TypeAlias = tuple[str, int]
"""A namespace and the number of a superstep."""
_NodeIds: TypeAlias = dict[str, None]
"""The ids of nodes, each once and in order."""
_UNNAMED: Final = "(unnamed)"


@dataclass(slots=True)
class GraphNode:
    """A task of a graph, with the number of calls."""

    id: str
    """The namespace without ids, a bar, and the name of the task."""
    name: str
    """The name of the task."""
    states: Counter[str] = field(default_factory=Counter)
    """The number of calls in each state."""


class CallGraph(NamedTuple):
    """The tasks of a run, and what leads to them. Edges have the ids of nodes."""

    nodes: list[GraphNode]
    """The tasks."""
    calls: list[Edge]
    """Edges from a task to a task that it called."""
    steps: list[Edge]
    """Edges from the tasks of a superstep to those of the next superstep, in nested
    graphs.
    """
    outer_steps: list[Edge]
    """The same edges in the outermost graph."""


def call_graph(index: CallIndex) -> CallGraph:
    """Return the graph of a run.

    Args:
        index: The calls of the run.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import CallIndex, StoreReader, call_graph
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def double(number: int) -> int:
        ...         return 2 * number
        ...     double.run(4, id="1")
        ...     reader = StoreReader(saver)
        ...     index = CallIndex()
        ...     index.update(reader.calls("1"))
        ...     print([(node.name, node.states) for node in call_graph(index).nodes])
        ...     reader.close()
        8
        [('double', Counter({'done': 1}))]
    """
    nodes: dict[_Key, GraphNode] = {}
    callers: defaultdict[_Key, _NodeIds] = defaultdict(dict)
    steps: defaultdict[_StepKey, _NodeIds] = defaultdict(dict)
    columns = index.table.columns
    rows = zip(
        columns["namespace"],
        columns["name"],
        columns["caller"],
        columns["step"],
        index.table.urgency,
        strict=True,
    )
    # Almost all calls differ only in columns that are not read here.
    counted_rows = Counter(rows)
    for row, count in counted_rows.items():
        namespace, name, caller, step, urgency = row
        if urgency < 0:
            continue
        key = (namespace, name)
        node = nodes.get(key)
        if node is None:
            outer = without_ids(namespace)
            node = GraphNode(
                id=f"{outer}|{name}",
                name=name or _UNNAMED,
            )
            nodes[key] = node
        state = STATES[urgency]
        node.states[state] += count
        if caller:
            callers[namespace, caller][node.id] = None
        elif step >= 0:
            steps[namespace, step][node.id] = None
    nested_steps, outer_steps = _steps(steps)
    return CallGraph(
        nodes=_merged(nodes),
        calls=_calls(columns, callers, nodes),
        steps=nested_steps,
        outer_steps=outer_steps,
    )


def _calls(
    columns: Any,
    callers: Mapping[_Key, _NodeIds],
    nodes: Mapping[_Key, GraphNode],
) -> list[Edge]:
    """Return the edges from callers, which are known by their paths."""
    edges: dict[Edge, None] = {}
    rows = zip(
        columns["namespace"],
        columns["path"],
        columns["name"],
        strict=True,
    )
    for namespace, path, name in rows:
        caller_key = (namespace, path)
        targets = callers.get(caller_key)
        if not targets:
            continue
        key = (namespace, name)
        node = nodes.get(key)
        if node is None:
            continue
        for target in targets:
            edge = (node.id, target)
            edges[edge] = None
    return list(edges)


def _steps(
    steps: Mapping[_StepKey, _NodeIds],
) -> tuple[list[Edge], list[Edge]]:
    """Return the edges between supersteps, of nested graphs and of the outermost."""
    nested: dict[Edge, None] = {}
    outer: dict[Edge, None] = {}
    for (namespace, step), targets in steps.items():
        edges = nested if namespace else outer
        former_key = (namespace, step - 1)
        sources = steps.get(former_key, {})
        for source in sources:
            for target in targets:
                edge = (source, target)
                edges[edge] = None
    return list(nested), list(outer)


def _merged(nodes: Mapping[_Key, GraphNode]) -> list[GraphNode]:
    """Return the nodes, of which nodes with the same id are one."""
    merged: dict[str, GraphNode] = {}
    for node in nodes.values():
        empty_node = GraphNode(
            id=node.id,
            name=node.name,
        )
        known_node = merged.setdefault(node.id, empty_node)
        known_node.states.update(node.states)
    return list(merged.values())
