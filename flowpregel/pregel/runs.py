"""What a thread's last run did: the tasks of its supersteps, by what its saver keeps.

::

    checkpoint -1 (input) --> checkpoint 0 --> checkpoint 1 --> ...
      left by superstep 0       by superstep 1     by superstep 2

What a superstep's tasks wrote, asked or failed with, and how they ran, is kept
on the checkpoint they started from. That names all tasks that have ended; which
others are due, only the graph knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias
from unicodedata import east_asian_width

from flowpregel._core.ids import caller_of
from flowpregel._core.records import Address, Saved
from flowpregel._text import in_one_line, printable
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.work import Work, work_of
from flowpregel.pregel.definition import START, GraphDefinition
from flowpregel.pregel.drawing import Charset
from flowpregel.pregel.resume import open_checkpoint

Status: TypeAlias = Literal["done", "failed", "waiting", "open"]
_Row: TypeAlias = tuple[str, str, str, str, str]

_MARKS: dict[Status, str] = {"done": "✓", "open": "…", "waiting": "?", "failed": "✗"}
"""The signs of how a task ended."""
_ASCII = str.maketrans({"✓": "+", "✗": "x", "…": "~", "█": "#"})
_BAR = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of a run, as it is drawn."""

    step: int
    """The superstep it ran in."""
    node: str
    """The id of its node."""
    name: str
    """What it is called: the name of its node, or of the task that it calls."""
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
    """Wall-clock nanoseconds at which its last attempt began; None if that is not
    known.
    """
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


@dataclass(frozen=True, repr=False)
class RunDrawing:
    """What a run did; it shows itself as a table, in a notebook too.

    Args:
        tasks: The run's tasks, in any order of their supersteps.
        nodes: The program's nodes by their ids, with their full names: those are named
            too that made no task.

    Example:
        >>> tasks = (TaskRecord(step=0, node="load", name="load", seconds=0.5),)
        >>> RunDrawing(tasks, {"load": "load", "rank": "rank"})
        step 0  ✓ load  ████████████████████  0.500 s
        not run: rank
    """

    tasks: tuple[TaskRecord, ...]
    nodes: Mapping[str, str]

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
        if idle := [name for id_, name in self.nodes.items() if id_ not in ran]:
            lines.append(in_one_line(f"not run: {', '.join(idle)}"))
        text = "\n".join(lines)
        return text.translate(_ASCII) if charset == "ascii" else text

    __repr__ = draw_ascii

    def to_json(self) -> dict[str, Any]:
        """Return the tasks as values that ``json.dumps`` takes: their fields."""
        return {"tasks": [asdict(task) for task in self.tasks]}


# ---------------------------------------------------------------- the table


def _rows(tasks: Iterable[TaskRecord], indent: str, longest: float) -> Iterator[_Row]:
    """Yield the rows of *tasks* by superstep, each followed by those of what is in
    it.
    """
    tasks = tuple(tasks)
    for step in sorted({task.step for task in tasks}):
        head = "" if tasks[0].is_call else f"{indent}step {step}"
        groups: dict[tuple[str, int], list[TaskRecord]] = {}
        for number, task in enumerate(tasks, 1):
            # A task of which something is to be told has a row of its own.
            alone = (
                task.status != "done" or task.detail or task.inner or task.attempt != 1
            )
            if task.step == step:
                groups.setdefault((task.node, number if alone else 0), []).append(task)
        for group in groups.values():
            first = group[0]
            most = max(
                (task.seconds for task in group if task.seconds is not None),
                default=None,
            )
            bar = "█" * max(1, round(_BAR * most / longest)) if most else ""
            label = (first.status == "failed" and first.call) or first.name
            times = f" x{len(group)}" if len(group) > 1 else ""
            name = f"{indent}{_MARKS[first.status]} {label}{times}"
            # An error's first line says what; the rest would break the table.
            story = [first.detail.strip().partition("\n")[0]]
            if first.attempt != 1:
                tried = (
                    f"attempt {first.attempt}"
                    if first.attempt
                    else "shared by another run"
                )
                story.insert(0, tried)
            told = printable(", ".join(filter(None, story)))
            yield head, in_one_line(name), bar, _duration_text(most), told
            head = ""
            if first.inner:
                yield from _rows(first.inner, f"{indent}  ", longest)


def _aligned(rows: list[_Row]) -> list[str]:
    sizes = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell + " " * (size - _width(cell))
            for cell, size in zip(row, sizes, strict=True)
        ]
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


def _duration_text(time: float | None) -> str:
    if time is None:
        return ""
    return f"{time:.3f} s" if time < 10 else f"{time:.1f} s"


# ---------------------------------------------------------------- reading


def last_run(
    saver: BaseCheckpointSaver,
    address: Address,
    limit: int | None = None,
    *,
    around: Saved | None = None,
) -> list[Saved]:
    """Return the checkpoints of a thread's last run, oldest first.

    It goes from the newest checkpoint, or the one that *address* names, back to
    the one of the input that it began with.

    Args:
        saver: Keeps them.
        address: Whose.
        limit: At most this many, the newest.
        around: The checkpoint that started the task which the run is, if it is nested.
    """
    found: list[Saved] = []
    wanted = address.checkpoint_id
    for saved in saver.outline(replace(address, checkpoint_id=None)):
        checkpoint = saved.checkpoint
        if limit is not None and len(found) >= limit:
            break
        if wanted not in (None, checkpoint.id):
            continue
        parents = checkpoint.metadata.get("parents") or {}
        if around and parents.get(around.address.namespace) != around.checkpoint.id:
            continue
        found.append(saved)
        if checkpoint.source == "input" or checkpoint.parent_id is None:
            break
        wanted = checkpoint.parent_id
    return found[::-1]


@dataclass(frozen=True, slots=True)
class RunReader:
    """Reads the tasks of a run from its checkpoints.

    Args:
        graph: What was run, if that is known: it tells of tasks that have left nothing.
        saver: Keeps the checkpoints.
    """

    graph: GraphDefinition | None
    saver: BaseCheckpointSaver

    def tasks(
        self, history: Sequence[Saved], depth: int, prefix: str = ""
    ) -> list[TaskRecord]:
        """Return the tasks of the supersteps that started from these checkpoints.

        Args:
            history: The result of `last_run`.
            depth: How deep to look into graphs that are tasks.
            prefix: What the ids of its nodes begin with in the graph around.
        """
        tasks: list[TaskRecord] = []
        for index, saved in enumerate(history):
            after = history[index + 1] if index + 1 < len(history) else None
            is_over = after is not None and after.checkpoint.source == "loop"
            found = {work.id: work for work in work_of(saved)}
            is_due = after is None or (is_over and not found)
            if (
                is_due
                and self.graph is not None
                and (whole := self.saver.load(saved.address))
            ):
                for due in open_checkpoint(self.graph.program, whole).tasks:
                    left = Work(id=due.id, name=None, address=saved.address, step=0)
                    known = found.get(due.id, left)
                    found[due.id] = replace(known, name=due.name, path=due.path)
            tasks += self._tree(saved, found.values(), is_over, depth, prefix)
        return tasks

    def _tree(
        self, saved: Saved, found: Iterable[Work], is_over: bool, depth: int, outer: str
    ) -> list[TaskRecord]:
        """Return the tasks of one superstep, calls inside the tasks that made them."""
        by_path = {task.path: task for task in found if task.path}
        below: dict[str | None, list[Work]] = {}
        for task in sorted(found, key=lambda task: (task.path, task.id)):
            caller = by_path.get(caller_of(task.path))
            below.setdefault(None if caller is None else caller.id, []).append(task)

        def place_of(task: Work) -> str:
            """Return the namespace of a graph that *task* is, or calls first."""
            return "|".join(
                filter(None, (saved.address.namespace, f"{_work_name(task)}:{task.id}"))
            )

        def record(task: Work, prefix: str, caller: Work | None) -> TaskRecord:
            name, graph, place = _work_name(task), None, None
            node = prefix + name
            inner = [record(each, f"{node}/", task) for each in below.get(task.id, ())]
            if caller is None and self.graph is not None and name in self.graph.nodes:
                bound = self.graph.nodes[name].bound
                if isinstance(bound, GraphDefinition):
                    graph, place = bound, bound.namespace_at(place_of(task))
            elif caller is not None and _is_graph(task):
                index = [*filter(_is_graph, below[caller.id])].index(task)
                place = place_of(caller) + f"|{index}" * (index > 0)
            if place is not None and depth > 0:
                saver = (graph and graph.saver) or self.saver
                address = Address(saved.address.thread_id, place)
                history = last_run(saver, address, around=saved)
                inner += RunReader(graph, saver).tasks(history, depth - 1, f"{node}:")
            status, detail = _status(task, is_over)
            ran = {} if task.ran is None else task.ran._asdict()
            return TaskRecord(
                step=saved.checkpoint.step + 1,
                node=node,
                name=name,
                id=task.id,
                status=status,
                detail=detail,
                is_call=caller is not None,
                call=str(task.name) if task.is_call else "",
                inner=tuple(inner),
                attempt=ran.get("attempts", 1),
                **{
                    key: ran[key]
                    for key in ("seconds", "began", "executor", "pid")
                    if ran
                },
            )

        # The task that takes in the input is no node of the user's.
        return [
            record(task, outer, None)
            for task in below.get(None, ())
            if task.name != START
        ]


def _work_name(work: Work) -> str:
    return (work.ran or work.asked or work).name or f"(task {work.id[:8]})"


def _is_graph(work: Work) -> bool:
    return work.ran is not None and work.ran.executor == "graph"


def _status(work: Work, is_over: bool) -> tuple[Status, str]:
    """Return how a task ended, and what it failed with or asks."""
    match work.state:
        case "done":
            return "done", ""
        case "failed":
            told = work.ran.error if work.ran else ""
            return "failed", told or f"{type(work.error).__name__}: {work.error}"
        case "waiting":
            return "waiting", "; ".join(repr(item.value) for item in work.interrupts)
    return "done" if is_over else "open", ""
