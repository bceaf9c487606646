"""What a run did: which tasks ran in which superstep, for how long, and what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal, TypeAlias

from flowpregel.pregel.drawing import mermaid
from flowpregel.pregel.drawing.graph import Graph, NodeShape
from flowpregel.pregel.drawing.layers import width

Status: TypeAlias = Literal["done", "failed", "waiting", "cancelled"]

_MARKS: dict[Status, str] = {"done": "✓", "failed": "✗", "waiting": "?", "cancelled": "-"}
_SEVERITY: dict[Status, int] = {"cancelled": 0, "done": 1, "waiting": 2, "failed": 3}
_CLASSES: dict[Status, str] = {
    "done": "done", "failed": "failed", "waiting": "waiting", "cancelled": "idle",
}  # fmt: skip
_BAR = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of a run, as it is drawn."""

    step: int
    """The superstep it ran in."""
    node: str
    """The id of its node."""
    seconds: float | None = None
    """How long it took; None if that is not known."""
    status: Status = "done"
    """How it ended, or that it waits for an answer."""
    detail: str = ""
    """What failed, or what it asks."""
    attempt: int = 1
    """Which attempt this was."""


@dataclass(frozen=True)
class RunDrawing:
    """A graph and the tasks that a run made of it; in a notebook it shows itself.

    Args:
        graph: The program's graph.
        tasks: The run's tasks.
    """

    graph: Graph
    tasks: tuple[TaskRecord, ...]

    def draw_ascii(self) -> str:
        """Return a table of the supersteps: each task's outcome, time and trouble."""
        if not self.tasks:
            return "(no tasks)"
        rows = [row for step in sorted({t.step for t in self.tasks}) for row in self._step(step)]
        columns = list(zip(*rows, strict=True))
        sizes = [max(map(width, column)) for column in columns]
        lines = [
            "  ".join(
                " " * (size - width(cell)) + cell
                if index == 3
                else cell + " " * (size - width(cell))
                for index, (cell, size) in enumerate(zip(row, sizes, strict=True))
            ).rstrip()
            for row in rows
        ]
        ran = {task.node for task in self.tasks}
        idle = [
            node.name
            for id_, node in self.graph.flat().nodes.items()
            if node.kind == "node" and id_ not in ran
        ]
        return "\n".join([*lines, f"not run: {', '.join(idle)}"] if idle else lines)

    __str__ = draw_ascii

    def draw_mermaid(self, *, direction: Literal["TD", "LR", "BT", "RL"] = "TD") -> str:
        """Return the graph in Mermaid's language, its nodes coloured by how their tasks ended."""
        classes, notes = {}, {}
        for id_, tasks in _grouped(self.tasks).items():
            worst = max(tasks, key=lambda task: _SEVERITY[task.status])
            classes[id_] = _CLASSES[worst.status]
            notes[id_] = " ".join(filter(None, (_times(tasks), _seconds(tasks))))
        flat = self.graph.flat()
        for id_, node in flat.nodes.items():
            if node.kind == "node":
                classes.setdefault(id_, "idle")
        noted = _with_notes(self.graph, "", notes)
        return mermaid.draw(noted, direction=direction, classes=classes)

    def _step(self, step: int) -> Iterator[tuple[str, str, str, str, str]]:
        head = f"step {step}"
        longest = max((task.seconds or 0 for task in self.tasks), default=0)
        done = _grouped(t for t in self.tasks if t.step == step and not _has_story(t))
        groups = [*done.values()]
        groups += [[t] for t in self.tasks if t.step == step and _has_story(t)]
        for tasks in groups:
            first = tasks[0]
            most = max(task.seconds or 0 for task in tasks)
            bar = "█" * max(1, round(_BAR * most / longest)) if most else ""
            label = " ".join(filter(None, (first.node, _times(tasks))))
            yield head, f"{_MARKS[first.status]} {label}", bar, _seconds(tasks), _story(first)
            head = ""

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(self.draw_ascii())}</pre>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": self.draw_ascii(),
            "text/html": self._repr_html_(),
            "text/vnd.mermaid": self.draw_mermaid(),
        }


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
    return RunDrawing(graph, tuple(tasks))


def _grouped(tasks: Iterable[TaskRecord]) -> dict[str, list[TaskRecord]]:
    grouped: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        grouped.setdefault(task.node, []).append(task)
    return grouped


def _has_story(task: TaskRecord) -> bool:
    return task.status != "done" or bool(task.detail) or task.attempt > 1


def _story(task: TaskRecord) -> str:
    attempt = f"attempt {task.attempt}" if task.attempt > 1 else ""
    # An error's first line says what; the rest would break the table.
    detail = task.detail.strip().partition("\n")[0]
    return ", ".join(filter(None, (attempt, detail)))


def _times(tasks: list[TaskRecord]) -> str:
    return f"x{len(tasks)}" if len(tasks) > 1 else ""


def _seconds(tasks: list[TaskRecord]) -> str:
    """Return the time of the slowest of *tasks*."""
    known = [task.seconds for task in tasks if task.seconds is not None]
    if not known:
        return ""
    most = max(known)
    return f"{most:.3f} s" if most < 10 else f"{most:.1f} s"


def _with_notes(graph: Graph, prefix: str, notes: dict[str, str]) -> Graph:
    nodes: dict[str, NodeShape] = {}
    for id_, node in graph.nodes.items():
        note = notes.get(prefix + id_)
        inner = node.subgraph and _with_notes(node.subgraph, f"{prefix}{id_}:", notes)
        name = f"{node.name}\n{note}" if note else node.name
        nodes[id_] = replace(node, name=name, subgraph=inner)
    return Graph(nodes, graph.edges)
