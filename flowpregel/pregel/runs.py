"""What a thread's last run did: the tasks of its supersteps, by what its saver keeps.

::

    checkpoint -1 (input) --> checkpoint 0 --> checkpoint 1 --> ...
      left by superstep 0       by superstep 1     by superstep 2

What a superstep's tasks wrote, asked or failed with, and how they ran, is kept
on the checkpoint they started from. That names all tasks that have ended; which
others are due, the program says (`Planned`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flowpregel._core.records import (
    CALLED,
    ERROR,
    INTERRUPT,
    RUN_TASK_ID,
    Address,
    Checkpoint,
    Ran,
    Saved,
    Write,
)
from flowpregel._core.stream_events import outputs
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.pregel.drawing import START, TaskRecord
from flowpregel.pregel.snapshot import PregelTask

Planned: TypeAlias = Callable[[Saved], Iterable[PregelTask]]
"""Returns the tasks that are due on a checkpoint."""

_CALL = "~__pregel_push, "
_INDEX = len(", 0000000000")


@dataclass(slots=True, eq=False)
class _Found:
    """What is known of a task."""

    id: str
    path: str = ""
    name: str = ""
    writes: list[Write] = field(default_factory=list)
    ran: Ran | None = None


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
    everything = replace(address, checkpoint_id=None)
    for saved in saver.outline(everything):
        checkpoint = saved.checkpoint
        if limit is not None and len(found) >= limit:
            break
        if wanted not in (None, checkpoint.id) or not _is_in(around, checkpoint):
            continue
        found.append(saved)
        if checkpoint.source == "input" or checkpoint.parent_id is None:
            break
        wanted = checkpoint.parent_id
    return found[::-1]


def _is_in(around: Saved | None, checkpoint: Checkpoint) -> bool:
    """Return whether *checkpoint* is of a nested run that began at *around*."""
    if around is None:
        return True
    parents = checkpoint.metadata.get("parents") or {}
    return parents.get(around.address.namespace) == around.checkpoint.id


def tasks_of(
    history: Sequence[Saved], planned: Planned | None = None, inside: Inside | None = None
) -> list[TaskRecord]:
    """Return the tasks of the supersteps that started from these checkpoints.

    Args:
        history: A run's checkpoints, oldest first.
        planned: Tells of tasks that have left nothing; None: they are not shown.
        inside: Tells of the tasks of graphs that are tasks.
    """
    tasks: list[TaskRecord] = []
    for index, saved in enumerate(history):
        after = history[index + 1] if index + 1 < len(history) else None
        is_over = after is not None and after.checkpoint.source == "loop"
        found = _found_on(saved)
        if planned is not None and (after is None or (is_over and not found)):
            _add(found, planned(saved))
        tasks += _tree(saved, found, is_over, inside)
    return tasks


def _found_on(saved: Saved) -> dict[str, _Found]:
    """Return what is kept on a checkpoint of tasks, by their ids."""
    found: dict[str, _Found] = {}
    for task_id, path, ran in saved.ran:
        found[task_id] = _Found(task_id, path, ran.name, ran=ran)
    for write in saved.writes:
        if write.task_id != RUN_TASK_ID:
            task = found.setdefault(write.task_id, _Found(write.task_id))
            task.writes.append((write.channel, write.value))
            if write.channel == CALLED and not task.name and write.value is not None:
                task.name = str(write.value[1]).partition("(")[0]
    return found


def _add(found: dict[str, _Found], planned: Iterable[PregelTask]) -> None:
    """Add what a program knows of the tasks that are due."""
    for task in planned:
        known = found.setdefault(task.id, _Found(task.id))
        known.path, known.name = task.path, task.name


def _tree(
    saved: Saved, found: dict[str, _Found], is_over: bool, inside: Inside | None
) -> list[TaskRecord]:
    """Return the tasks of one superstep, calls inside the tasks that made them."""
    by_path = {task.path: task for task in found.values() if task.path}
    below: dict[str, list[_Found]] = {}
    tops: list[_Found] = []
    step = saved.checkpoint.step + 1
    for task in sorted(found.values(), key=lambda task: (task.path, task.id)):
        caller = by_path.get(_caller_of(task.path))
        if caller is None:
            tops.append(task)
        else:
            below.setdefault(caller.id, []).append(task)

    def record(task: _Found, prefix: str, caller: _Found | None) -> TaskRecord:
        name = task.name or f"(task {task.id[:8]})"
        made = _record(task, step, is_over)
        node = prefix + name
        inner = [record(each, f"{node}/", task) for each in below.get(task.id, ())]
        if inside is not None and caller is None:
            inner += inside(saved, (task.id, None), name, node)
        elif inside is not None and caller is not None and _is_graph(task):
            number = [*filter(_is_graph, below[caller.id])].index(task)
            inner += inside(saved, (caller.id, number), name, node)
        is_call = caller is not None
        return replace(made, node=node, name=name, is_call=is_call, inner=tuple(inner))

    # What takes in the input is no node of the user's.
    return [record(task, "", None) for task in tops if task.name != START]


Which: TypeAlias = tuple[str, int | None]
"""The id of a task that is a graph; or of one that calls graphs, and the how-manieth of them."""
Inside: TypeAlias = Callable[[Saved, Which, str, str], Iterable[TaskRecord]]
"""Returns the tasks of a nested graph: given the checkpoint it started from, which it is,
its name, and the id of its node in the drawing."""


def _is_graph(task: _Found) -> bool:
    return task.ran is not None and task.ran.executor == "graph"


def _caller_of(path: str) -> str:
    """Return the path of the task whose body made the call at *path*; empty: it is no call."""
    return path[len(_CALL) : -_INDEX] if path.startswith(_CALL) else ""


def _record(task: _Found, step: int, is_over: bool) -> TaskRecord:
    ran = task.ran
    # A control write of None takes an earlier one back.
    kept = dict(task.writes)
    error, asked = kept.get(ERROR), kept.get(INTERRUPT) or ()
    made = TaskRecord(step=step, node=task.name, id=task.id, status="done" if is_over else "open")
    if ran is not None:
        made = replace(
            made,
            seconds=ran.seconds,
            attempt=ran.attempts,
            began=ran.began,
            executor=ran.executor,
            pid=ran.pid,
        )
    if outputs(task.writes):
        return replace(made, status="done")
    if error is not None or (ran is not None and ran.error):
        told = ran.error if ran is not None and ran.error else f"{type(error).__name__}: {error}"
        return replace(made, status="failed", detail=told)
    if asked:
        questions = "; ".join(repr(item.value) for item in asked)
        return replace(made, status="waiting", detail=questions)
    return made


def prefixed(task: TaskRecord, prefix: str) -> TaskRecord:
    """Return *task* as it is called in the graph around its own."""
    inner = tuple(prefixed(each, prefix) for each in task.inner)
    return replace(task, node=prefix + task.node, inner=inner)


class Nests:
    """Where the graphs keep their checkpoints that are tasks of a thread, or are called by them.

    Args:
        saver: Keeps them.
        thread_id: Of which thread.
    """

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str) -> None:
        self._by_task: dict[Which, Address] = {}
        for address in saver.namespaces(thread_id):
            head, _, last = address.namespace.rpartition("|")
            # The second graph that a task calls, and those after it, have a number.
            place, number = (head, int(last)) if last.isdigit() else (address.namespace, 0)
            self._by_task[place.rpartition(":")[2], number] = address

    def of(self, which: Which) -> Address | None:
        """Return where one of them keeps its own, if it is known."""
        return self._by_task.get(which)
