"""What a run did: which tasks ran in which superstep, for how long, and what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from unicodedata import east_asian_width

from flowpregel._text import in_one_line, printable
from flowpregel.pregel.drawing import Charset, Edge, Graph, NodeShape

Status: TypeAlias = Literal["done", "failed", "waiting", "open"]
_Row: TypeAlias = tuple[str, str, str, str, str]

_MARKS: dict[Status, str] = {"done": "✓", "open": "…", "waiting": "?", "failed": "✗"}
"""The signs of how a task ended, from good to bad."""
_ASCII = str.maketrans({"✓": "+", "✗": "x", "…": "~", "█": "#"})
_BAR = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of a run, as it is drawn."""

    step: int
    """The superstep it ran in."""
    node: str
    """The id of its node."""
    name: str = ""
    """What it is called in a table; by default the id of its node."""
    seconds: float | None = None
    """How long its last attempt took; None if that is not known."""
    status: Status = "done"
    """How it ended; that it waits for an answer; or that it is open: not ended yet."""
    detail: str = ""
    """What failed, or what it asks."""
    attempt: int = 1
    """Which attempt this was; 0: none, its result was shared by another run."""
    id: str = ""
    """The id of the task."""
    began: int | None = None
    """Wall-clock nanoseconds at which its last attempt began; None if that is not known."""
    executor: str = ""
    """Where it ran, such as ``"processes"``; empty if that is not known."""
    pid: int = 0
    """In which process; 0 if that is not known."""
    is_call: bool = False
    """Whether it is a call that the body of another task made."""
    call: str = ""
    """The call with short arguments, such as ``parse('c.txt')``, if that is known."""
    inner: tuple[TaskRecord, ...] = ()
    """The calls it made, and the tasks of the graph that it is."""

    @property
    def label(self) -> str:
        """What it is called in a table."""
        return self.name or self.node

    def to_json(self) -> dict[str, Any]:
        """Return what is known of it as values that ``json.dumps`` takes."""
        began = self.began and datetime.fromtimestamp(self.began / 1e9, UTC).isoformat()
        plain = ("step", "status", "seconds", "executor", "pid", "detail", "is_call", "call")
        return {
            "id": self.id,
            "name": self.label,
            **{name: getattr(self, name) for name in plain},
            "began": began,
            "attempts": self.attempt,
            "tasks": [each.to_json() for each in self.inner],
        }


@dataclass(frozen=True)
class RunDrawing(Graph):
    """A graph in the colours of the tasks that a run made of it, with the calls of its nodes.

    Args:
        nodes, edges: As a `Graph` has them.
        tasks: The run's tasks.
    """

    tasks: tuple[TaskRecord, ...] = ()

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return a table of the supersteps: each task's outcome, time and trouble.

        Args:
            charset: With signs and bars, or with nothing but ASCII.
        """
        if not self.tasks:
            return "(no tasks)"
        everything = [*_all(self.tasks)]
        longest = max((task.seconds or 0 for task in everything), default=0)
        lines = _aligned([*_rows(self.tasks, "", longest)])
        ran = {task.node for task in everything}
        leaves = self.leaves().items()
        idle = [node.name for id_, node in leaves if node.kind == "node" and id_ not in ran]
        text = "\n".join([*lines, in_one_line(f"not run: {', '.join(idle)}")] if idle else lines)
        return text.translate(_ASCII) if charset == "ascii" else text

    __str__ = draw_ascii

    def to_json(self) -> dict[str, Any]:
        """Return the tasks as values that ``json.dumps`` takes."""
        return {"tasks": [task.to_json() for task in self.tasks]}


def draw_run(graph: Graph, tasks: Iterable[TaskRecord]) -> RunDrawing:
    """Return a drawing of what a run did.

    Args:
        graph: The program's graph; its nodes that made no task are named too.
        tasks: The run's tasks, in any order of their supersteps.

    Example:
        >>> graph = Graph({"load": NodeShape("load"), "rank": NodeShape("rank")})
        >>> print(draw_run(graph, [TaskRecord(step=0, node="load", seconds=0.5)]))
        step 0  ✓ load  ████████████████████  0.500 s
        not run: rank
    """
    tasks = tuple(tasks)
    by_node: dict[str, list[TaskRecord]] = {}
    for task in _all(tasks):
        by_node.setdefault(task.node, []).append(task)
    drawn = _coloured(graph, "", by_node)
    return RunDrawing(drawn.nodes, drawn.edges, tasks)


# ---------------------------------------------------------------- the table


def _rows(tasks: Iterable[TaskRecord], indent: str, longest: float) -> Iterator[_Row]:
    """Yield the rows of *tasks* by superstep, each followed by those of what is in it."""
    tasks = tuple(tasks)
    for step in sorted({task.step for task in tasks}):
        head = "" if tasks[0].is_call else f"{indent}step {step}"
        groups: dict[tuple[str, int], list[TaskRecord]] = {}
        for number, task in enumerate(tasks, 1):
            # A task of which something is to be told has a row of its own.
            alone = task.status != "done" or task.detail or task.inner or task.attempt != 1
            if task.step == step:
                groups.setdefault((task.node, number if alone else 0), []).append(task)
        for group in groups.values():
            first = group[0]
            most = max(task.seconds or 0 for task in group)
            bar = "█" * max(1, round(_BAR * most / longest)) if most else ""
            label = (first.status == "failed" and first.call) or first.label
            name = f"{indent}{_MARKS[first.status]} {label}{_times(group)}"
            # An error's first line says what; the rest would break the table.
            story = [first.detail.strip().partition("\n")[0]]
            if first.attempt != 1:
                tried = f"attempt {first.attempt}" if first.attempt else "shared by another run"
                story.insert(0, tried)
            told = printable(", ".join(filter(None, story)))
            yield head, in_one_line(name), bar, _seconds(group), told
            head = ""
            if first.inner:
                yield from _rows(first.inner, f"{indent}  ", longest)


def _aligned(rows: list[_Row]) -> list[str]:
    sizes = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell + " " * (size - _width(cell)) for cell, size in zip(row, sizes, strict=True)]
        cells[3] = row[3].rjust(sizes[3])  # times are numbers
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Return how many columns *text* takes in a terminal."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _all(tasks: Iterable[TaskRecord]) -> Iterator[TaskRecord]:
    """Yield *tasks* and all that is in them."""
    for task in tasks:
        yield task
        yield from _all(task.inner)


def _times(tasks: list[TaskRecord]) -> str:
    return f" x{len(tasks)}" if len(tasks) > 1 else ""


def _seconds(tasks: list[TaskRecord]) -> str:
    """Return the time of the slowest of *tasks*."""
    most = max((task.seconds for task in tasks if task.seconds is not None), default=None)
    if most is None:
        return ""
    return f"{most:.3f} s" if most < 10 else f"{most:.1f} s"


# ---------------------------------------------------------------- the graph


def _coloured(graph: Graph, prefix: str, by_node: Mapping[str, list[TaskRecord]]) -> Graph:
    """Return *graph* with times, in the style of each node's worst task, with a node for each call.

    Args:
        graph: The graph, which may be nested.
        prefix: What the ids of its nodes begin with in the outermost graph.
        by_node: All tasks of the run, by the ids of their nodes.
    """
    nodes, edges, waiting = {}, [*graph.edges], [*graph.nodes.items()]
    severity = [*_MARKS]
    for id_, node in waiting:
        if id_ in nodes:
            continue
        own, inner = by_node.get(prefix + id_, []), node.subgraph
        worst = max((task.status for task in own), key=severity.index, default="idle")
        nodes[id_] = replace(
            node,
            note=f"{_times(own)} {_seconds(own)}".strip(),
            style=worst if node.kind == "node" else "",
            subgraph=inner and _coloured(inner, f"{prefix}{id_}:", by_node),
        )
        calls = {each.node: each.label for task in own for each in task.inner if each.is_call}
        for call, label in calls.items():
            called = call.removeprefix(prefix)
            edges.append(Edge(id_, called, conditional=True))
            waiting.append((called, NodeShape(label)))
    return Graph(nodes, edges)
