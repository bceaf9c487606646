"""The graph of a run: a node for each task, with the number of calls in each state.

::

    a call made by the body of `train`      ──► a node in the box of `train`
    a task of the nested graph of `train`   ──► a node in the box of `train`
    an argument is a result of `load`       ──► a data edge from `load`
    a superstep follows on another          ──► a step edge

The body of a functional flow is the box around everything, and is not drawn. A task
whose arguments come from no other task, as far as is known, has edges from the tasks
that had ended when it was called first.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from flowpregel._core.ids import caller_of, without_ids
from flowpregel._core.records import PULLED
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import STATES
from flowpregel._inspection.call_times import CallInterval, former_tasks

Edge: TypeAlias = tuple[str, str]
"""The ids of two nodes."""
_Key: TypeAlias = tuple[str, str]
"""The namespace of a graph, and the path of a task in it (the position in the
superstep).
"""
_StepKey: TypeAlias = tuple[str, int]
"""A namespace and the number of a superstep."""
_NodeIds: TypeAlias = dict[str, None]
"""The ids of nodes, each once and in order."""
_UNNAMED: Final = "(unnamed)"
_COLUMNS: Final = ("namespace", "name", "caller", "step")
_INTERVAL_COLUMNS: Final = (
    "namespace",
    "name",
    "caller",
    "planned",
    "began",
    "seconds",
)


@dataclass(slots=True)
class GraphNode:
    """A task of a graph, with the number of calls."""

    id: str
    """The id of the enclosing node, a vertical bar (``|``), and the name of the
    task.
    """
    name: str
    """The name of the task."""
    parent: str = ""
    """The id of the enclosing node: the task that called this task, or that ran the
    nested graph. It is empty for a task of the outermost graph.
    """
    states: Counter[str] = field(default_factory=Counter)
    """The number of calls in each state."""


class CallGraph(NamedTuple):
    """The tasks of a run, and the edges between them. An edge names the ids of two
    nodes.
    """

    nodes: list[GraphNode]
    """The tasks of the run."""
    body: str
    """The id of the node that made all calls of a functional flow; otherwise empty."""
    data: list[tuple[str, str, int]]
    """Edges from a task to a task that received its results, with the number of calls
    that received them.
    """
    after: list[Edge]
    """Edges from the tasks that had ended when a task was called first, if no data edge
    leads to that task.
    """
    steps: list[Edge]
    """Edges from the tasks of a superstep to those of the next superstep."""
    first: list[str]
    """The ids of the tasks of the first superstep of the outermost graph."""
    last: list[str]
    """The ids of the tasks of the last superstep of the outermost graph."""


def call_graph(index: CallIndex) -> CallGraph:
    """Return the graph of a run.

    Args:
        index: The calls of the run.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint, task
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import CallIndex, StoreReader, call_graph
        >>> @task(executor="inline")
        ... def load(number: int) -> list[int]:
        ...     return list(range(number))
        >>> @task(executor="inline")
        ... def total(numbers: list[int]) -> int:
        ...     return sum(numbers)
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def flow(number: int) -> int:
        ...         return total(load(number)).result()
        ...     flow.run(4, id="1")
        ...     reader = StoreReader(saver)
        ...     index = CallIndex()
        ...     index.update(reader.calls("1"))
        ...     graph = call_graph(index)
        ...     print(graph.data)
        ...     reader.close()
        6
        [('|flow|load', '|flow|total', 1)]
    """
    builder = _GraphBuilder(index)
    builder.add_rows()
    data: list[tuple[str, str, int]] = []
    for (source, target), count in builder.data.items():
        data.append((source, target, count))
    outer_steps: dict[int, _NodeIds] = {}
    for (namespace, step), node_ids in builder.steps.items():
        if not namespace:
            outer_steps[step] = node_ids
    first_step = min(outer_steps, default=0)
    last_step = max(outer_steps, default=0)
    return CallGraph(
        nodes=list(builder.nodes.values()),
        body=_body_of(builder),
        data=data,
        after=_later_calls(builder),
        steps=_following_steps(builder.steps),
        first=list(outer_steps.get(first_step, ())),
        last=list(outer_steps.get(last_step, ())),
    )


class _GraphBuilder:
    """The nodes of a graph, and the data from which their order is derived.

    Args:
        index: The calls of the run.
    """

    def __init__(
        self,
        index: CallIndex,
    ) -> None:
        self.table = index.table
        self.nodes: dict[str, GraphNode] = {}
        self.data: Counter[Edge] = Counter()
        """The number of calls that received a result, by the ids of two nodes: that of
        the task that returned the result, and that of the calls.
        """
        self.steps: defaultdict[_StepKey, _NodeIds] = defaultdict(dict)
        """The nodes of each superstep."""
        self.called: set[str] = set()
        """The ids of the nodes whose tasks other tasks have called."""
        self._callers = self._find_callers()
        """The name of each task that made calls, and the path of the task's caller (if
        it has one), by the task's namespace and path (the position in the superstep).
        """
        self._enclosing: dict[_Key, str] = {}
        """The id of the node around the calls of a task, by the task's namespace and
        path (the position in the superstep).
        """

    def _find_callers(self) -> dict[_Key, tuple[str, str]]:
        columns = self.table.columns
        keys = zip(
            columns["namespace"],
            columns["caller"],
            strict=True,
        )
        caller_keys = set(keys)
        rows = zip(
            columns["namespace"],
            columns["path"],
            columns["name"],
            columns["caller"],
            strict=True,
        )
        callers: dict[_Key, tuple[str, str]] = {}
        for namespace, path, name, caller in rows:
            key = (namespace, path)
            if key in caller_keys:
                callers[key] = (name, caller)
        return callers

    def add_rows(self) -> None:
        """Add all calls of the run to the graph."""
        columns = [self.table.columns[name] for name in _COLUMNS]
        rows = zip(
            *columns,
            self.table.urgency,
            self.table.sources,
            strict=True,
        )
        # Equal rows are counted first, and the loop below processes each of them once.
        # Almost all calls have the same values in the columns that are read here.
        counted_rows = Counter(rows)
        received: list[tuple[GraphNode, str, int]] = []
        for row, count in counted_rows.items():
            namespace, name, caller, step, urgency, sources = row
            if urgency < 0:
                continue
            parent = self.enclosing(namespace, caller)
            node = self._node(parent, name)
            state = STATES[urgency]
            node.states[state] += count
            if caller:
                self.called.add(node.id)
            elif step >= 0:
                self.steps[namespace, step][node.id] = None
            received.append((node, sources, count))
        for node, sources, count in received:
            self._add_data(node, sources, count)

    def _add_data(
        self,
        node: GraphNode,
        sources: str,
        count: int,
    ) -> None:
        """Add data edges to *node* from tasks in the same box. The string *sources* has
        their names, one on each line.
        """
        for name in sources.splitlines():
            source_id = f"{node.parent}|{name}"
            if source_id in self.nodes:
                edge = (source_id, node.id)
                self.data[edge] += count

    def intervals(self) -> Iterator[CallInterval]:
        """Yield each call that the body of a task made, with its times."""
        columns = [self.table.columns[name] for name in _INTERVAL_COLUMNS]
        rows = zip(
            *columns,
            self.table.urgency,
            strict=True,
        )
        for row in rows:
            namespace, name, caller, planned, began, seconds, urgency = row
            is_gone = urgency < 0
            is_call = caller and planned
            if is_gone or not is_call:
                continue
            box = self.enclosing(namespace, caller)
            node = self._node(box, name)
            ended = began + seconds * 1e9
            if STATES[urgency] == "running":
                ended = math.inf
            yield CallInterval(
                box=node.parent,
                node=node.id,
                began=planned,
                ended=ended,
            )

    def _node(
        self,
        parent: str,
        name: str,
    ) -> GraphNode:
        """Return the node of the task *name* in the box of the node *parent*, that is,
        among the calls and nested tasks of *parent*.

        A task that calls itself is one node, however deep its calls are.
        """
        boxes = parent.split("|")
        if name in boxes[2:]:
            depth = boxes.index(name, 2)
            return self.nodes["|".join(boxes[: depth + 1])]
        node_id = f"{parent}|{name}"
        node = self.nodes.get(node_id)
        if node is None:
            node = GraphNode(
                id=node_id,
                name=name or _UNNAMED,
                parent=parent,
            )
            self.nodes[node_id] = node
        return node

    def enclosing(
        self,
        namespace: str,
        caller: str,
    ) -> str:
        """Return the id of the node around a task.

        Args:
            namespace: The namespace of the task's graph.
            caller: The path of the task's caller (the position in the superstep), or an
                empty string if no task called the task.
        """
        key = (namespace, caller)
        node_id = self._enclosing.get(key)
        if node_id is None:
            node_id = self._find_enclosing(namespace, caller)
            self._enclosing[key] = node_id
        return node_id

    def _find_enclosing(
        self,
        namespace: str,
        caller: str,
    ) -> str:
        if not caller:
            return self._graph_node(namespace)
        key = (namespace, caller)
        # If the caller has no record, it is the body of a flow, which is recorded only
        # when it ends. The path of a body contains the name of the body.
        name = caller.removeprefix(PULLED)
        outer_caller = caller_of(caller)
        if key in self._callers:
            name, outer_caller = self._callers[key]
        elif not caller.startswith(PULLED):
            return self._graph_node(namespace)
        outer = self.enclosing(namespace, outer_caller)
        return self._node(outer, name).id

    def _graph_node(
        self,
        namespace: str,
    ) -> str:
        """Return the id of the node that ran the nested graph of a namespace."""
        node_id = ""
        names = without_ids(namespace)
        for name in names.split("|"):
            # A part of the namespace that is a number is skipped: it is not the name of
            # a node, but distinguishes the graphs that one task called.
            if name and not name.isdecimal():
                node_id = self._node(node_id, name).id
        return node_id


def _body_of(builder: _GraphBuilder) -> str:
    """Return the id of the workflow's body: the only node outside of all boxes, if it
    made calls. Return an empty string if there is no such node.
    """
    outermost: set[str] = set()
    for node in builder.nodes.values():
        if not node.parent:
            outermost.add(node.id)
    callers: set[str] = set()
    for node_id in builder.called:
        node = builder.nodes[node_id]
        callers.add(node.parent)
    bodies = outermost & callers
    if len(outermost) != 1 or not bodies:
        return ""
    (body,) = bodies
    return body


def _later_calls(builder: _GraphBuilder) -> list[Edge]:
    """Return edges to those called tasks that have no data edge, from the tasks that
    had ended when they were called first.
    """
    targets: set[str] = set()
    for source, target in builder.data:
        if source != target:
            targets.add(target)
    unexplained = builder.called - targets
    calls = list(builder.intervals()) if unexplained else []
    return former_tasks(calls, unexplained)


def _following_steps(steps: Mapping[_StepKey, Iterable[str]]) -> list[Edge]:
    """Return the edges between the nodes of a superstep and those of the next."""
    edges: dict[Edge, None] = {}
    for (namespace, step), targets in steps.items():
        former_key = (namespace, step - 1)
        sources = steps.get(former_key, ())
        for source in sources:
            for target in targets:
                edge = (source, target)
                edges[edge] = None
    return list(edges)
