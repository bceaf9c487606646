"""What a thread's last run did: the tasks of its supersteps, by what its saver keeps.

::

    checkpoint -1 (input) --> checkpoint 0 --> checkpoint 1 --> ...
      left by superstep 0       by superstep 1     by superstep 2

What a superstep's tasks wrote, asked or failed with, and how they ran, is kept
on the checkpoint they started from. That names all tasks that have ended; which
others are due, only the graph knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from flowpregel._core.ids import caller_of
from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.work import Work, work_of
from flowpregel.pregel.definition import START, GraphDefinition
from flowpregel.pregel.run_drawing import Status, TaskRecord
from flowpregel.pregel.snapshot import open_checkpoint

NestedKey: TypeAlias = tuple[str, int]
"""The id of a task that is a graph, or that calls graphs, and the index of that call."""


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


def tasks_of_run(
    graph: GraphDefinition,
    saver: BaseCheckpointSaver,
    address: Address,
    *,
    depth: int,
    limit: int | None = None,
) -> list[TaskRecord]:
    """Return the tasks of a thread's last run.

    Args:
        graph: What was run: it tells of tasks that have left nothing.
        saver: Keeps the checkpoints.
        address: Whose.
        depth: How deep to look into graphs that are tasks.
        limit: Those of at most this many supersteps, the newest.
    """
    nested: dict[NestedKey, Address] = {}
    for inner in saver.namespaces(address.thread_id) if hasattr(saver, "namespaces") else ():
        head, _, last = inner.namespace.rpartition("|")
        # The second graph that a task calls, and those after it, have a number.
        place, number = (head, int(last)) if last.isdigit() else (inner.namespace, 0)
        nested[place.rpartition(":")[2], number] = inner
    return _RunReader(graph, saver, nested).tasks(last_run(saver, address, limit), depth)


@dataclass(frozen=True, slots=True)
class _RunReader:
    """Reads the tasks of a run from its checkpoints.

    Args:
        graph: What was run, if that is known: it tells of tasks that have left nothing.
        saver: Keeps the checkpoints.
        nested: Where the graphs that tasks of the thread are, or call, keep their checkpoints.
    """

    graph: GraphDefinition | None
    saver: BaseCheckpointSaver
    nested: Mapping[NestedKey, Address]

    def tasks(self, history: Sequence[Saved], depth: int, prefix: str = "") -> list[TaskRecord]:
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
            if is_due and self.graph is not None and (whole := self.saver.load(saved.address)):
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

        def record(task: Work, prefix: str, caller: Work | None) -> TaskRecord:
            name = (task.ran or task.asked or task).name or f"(task {task.id[:8]})"
            node = prefix + name
            inner = [record(each, f"{node}/", task) for each in below.get(task.id, ())]
            graph, address = None, None
            if caller is None and self.graph is not None and name in self.graph.nodes:
                bound = self.graph.nodes[name].bound
                if isinstance(bound, GraphDefinition):
                    outer_names = saved.address.namespace
                    place = "|".join(filter(None, (outer_names, f"{name}:{task.id}")))
                    address = Address(saved.address.thread_id, bound.namespace_at(place))
                    graph = bound
            elif caller is not None and _is_graph(task):
                graphs = [*filter(_is_graph, below[caller.id])]
                address = self.nested.get((caller.id, graphs.index(task)))
            if address is not None and depth > 0:
                saver = (graph and graph.saver) or self.saver
                history = last_run(saver, address, around=saved)
                reader = _RunReader(graph, saver, self.nested)
                inner += reader.tasks(history, 0 if graph is None else depth - 1, f"{node}:")
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
                **{key: ran[key] for key in ("seconds", "began", "executor", "pid") if ran},
            )

        # The task that takes in the input is no node of the user's.
        return [record(task, outer, None) for task in below.get(None, ()) if task.name != START]


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
