"""The tasks of a thread's last run, read from a saver's checkpoints.

::

    checkpoint -1 (input) --> checkpoint 0 --> checkpoint 1 --> ...
      tasks of superstep 0      of superstep 1   of superstep 2

The writes, questions, errors and attempts of a superstep's tasks are stored with the
checkpoint from which the tasks started. These records name all tasks that have ended.
To find the other tasks that are due, the graph is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flowpregel._core.ids import caller_of
from flowpregel._core.program import Program
from flowpregel._core.records import Address, Saved
from flowpregel._inspection.open_checkpoint import open_checkpoint
from flowpregel._inspection.run_table import TaskRecord, TaskStatus
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.labels import INPUT
from flowpregel.checkpoint.work import Work, work_of

_ATTEMPT_FIELDS = ("seconds", "began", "executor", "pid")


class InspectedGraph(Protocol):
    """A graph whose runs are read."""

    @property
    def program(self) -> Program:
        """The compiled program."""

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The graph's own saver, or None if it uses the outer graph's saver."""

    def namespace_at(self, namespace: str) -> str:
        """Return the namespace of the graph's checkpoints when it runs as the task with
        this *namespace*.
        """


def last_run(
    saver: BaseCheckpointSaver,
    address: Address,
    limit: int | None = None,
    *,
    parent: Saved | None = None,
) -> list[Saved]:
    """Return the checkpoints of a thread's last run, oldest first.

    The first checkpoint of the run is the checkpoint of the input. The last is the
    newest checkpoint, or the checkpoint that *address* names.

    Args:
        saver: The saver of the checkpoints.
        address: The thread, the namespace and, optionally, the last checkpoint.
        limit: The number of checkpoints, counted from the newest, or None for all.
        parent: For a nested run, the checkpoint of the outer graph from which the task
            of the nested run started.
    """
    history: list[Saved] = []
    next_id = address.checkpoint_id
    for saved in saver.outline(replace(address, checkpoint_id=None)):
        checkpoint = saved.checkpoint
        if limit is not None and len(history) >= limit:
            break
        if next_id not in (None, checkpoint.id):
            continue
        if parent is not None and not _is_nested_in(saved, parent):
            continue
        history.append(saved)
        if checkpoint.source == "input" or checkpoint.parent_id is None:
            break
        next_id = checkpoint.parent_id
    history.reverse()
    return history


def _is_nested_in(
    saved: Saved,
    parent: Saved,
) -> bool:
    """Return whether a nested graph reached a checkpoint during a superstep of the
    outer graph.

    Args:
        saved: The checkpoint of the nested graph.
        parent: The checkpoint of the outer graph from which the superstep started.
    """
    parents = saved.checkpoint.metadata.get("parents") or {}
    return bool(parents.get(parent.address.namespace) == parent.checkpoint.id)


def work_of_last_run(
    saver: BaseCheckpointSaver,
    thread_id: str,
    limit: int | None = None,
) -> list[Work]:
    """Return the tasks of a thread's last run, in order.

    Args:
        saver: The saver of the thread.
        thread_id: The id of the thread.
        limit: The number of supersteps, counted from the newest, or None for all.
    """
    tasks: list[Work] = []
    history = last_run(saver, Address(thread_id), limit)
    for saved in history:
        is_over = saved is not history[-1]
        # After the end of the superstep, a failed call that was not made again when its
        # caller ran again is not a part of the run.
        tasks += [work for work in work_of(saved) if not (is_over and work.needs_retry)]
    return tasks


@dataclass(frozen=True, slots=True)
class RunTaskReader:
    """A reader of a run's tasks from the checkpoints.

    Args:
        graph: The graph of the run. If it is None, tasks without records are left out.
        saver: The saver of the checkpoints.
    """

    graph: InspectedGraph | None
    saver: BaseCheckpointSaver

    def tasks(
        self,
        history: Sequence[Saved],
        depth: int,
        prefix: str = "",
    ) -> list[TaskRecord]:
        """Return the tasks of the supersteps that started from the checkpoints in
        *history*.

        Args:
            history: The checkpoints, as `last_run` returns them.
            depth: The number of levels of nested graphs to read.
            prefix: The prefix of the node ids, if the graph is nested.
        """
        tasks: list[TaskRecord] = []
        for index, saved in enumerate(history):
            is_last = index + 1 == len(history)
            is_over = not is_last and history[index + 1].checkpoint.source == "loop"
            works = {
                work.id: work
                for work in work_of(saved)
                if not (is_over and work.needs_retry)
            }
            if is_last or (is_over and not works):
                self._add_due(saved, works)
            superstep = _SuperstepReader(
                reader=self,
                saved=saved,
                works=list(works.values()),
                is_over=is_over,
                depth=depth,
            )
            tasks += superstep.tasks(prefix)
        return tasks

    def _add_due(
        self,
        saved: Saved,
        works: dict[str, Work],
    ) -> None:
        """Add the tasks that are due after a checkpoint to *works*."""
        if self.graph is None:
            return
        loaded = self.saver.load(saved.address)
        if loaded is None:
            return
        for task in open_checkpoint(self.graph.program, loaded).tasks:
            work = works.get(task.id)
            if work is None:
                work = Work(
                    id=task.id,
                    name=None,
                    address=saved.address,
                    step=0,
                )
            works[task.id] = replace(work, name=task.name, path=task.path)


class _SuperstepReader:
    """A reader of one superstep's tasks, in which calls are inside their callers.

    Args:
        reader: The reader of the run.
        saved: The checkpoint from which the tasks started.
        works: The tasks of the superstep.
        is_over: True if the superstep has ended.
        depth: The number of levels of nested graphs to read.
    """

    def __init__(
        self,
        *,
        reader: RunTaskReader,
        saved: Saved,
        works: Sequence[Work],
        is_over: bool,
        depth: int,
    ) -> None:
        self._graph = reader.graph
        self._saver = reader.saver
        self._saved = saved
        self._is_over = is_over
        self._depth = depth
        self._by_caller = _by_caller(works)

    def tasks(self, prefix: str) -> list[TaskRecord]:
        """Return the tasks that no other task called.

        Args:
            prefix: The prefix of the node ids.
        """
        works = self._by_caller.get(None, ())
        return [self._record(work, prefix) for work in works if work.name != INPUT]

    def _record(
        self,
        work: Work,
        prefix: str,
        caller: Work | None = None,
    ) -> TaskRecord:
        name = _work_name(work)
        node = prefix + name
        calls = self._by_caller.get(work.id, ())
        inner = [self._record(call, f"{node}/", work) for call in calls]
        if self._depth > 0:
            inner += self._nested_tasks(work, node, caller)
        status, detail = _status(work, is_over=self._is_over)
        call = work.name if work.is_call else None
        attempt: Mapping[str, Any] = {}
        if work.ran is not None:
            attempt = {key: getattr(work.ran, key) for key in _ATTEMPT_FIELDS}
        return TaskRecord(
            step=self._saved.checkpoint.step + 1,
            node=node,
            name=name,
            id=work.id,
            status=status,
            detail=detail,
            is_call=caller is not None,
            call=call or "",
            inner=tuple(inner),
            attempt=1 if work.ran is None else work.ran.attempts,
            **attempt,
        )

    def _nested_tasks(
        self,
        work: Work,
        node: str,
        caller: Work | None,
    ) -> list[TaskRecord]:
        """Return the tasks of the nested graph that a task ran, or no tasks if the task
        is not a graph.
        """
        graph: InspectedGraph | None = None
        if caller is None:
            graph = self._graph_of(work)
            if graph is None:
                return []
            namespace = graph.namespace_at(self._namespace(work))
        elif _is_graph(work):
            namespace = self._namespace_of_call(work, caller)
        else:
            return []
        saver = self._saver
        if graph is not None and graph.saver is not None:
            saver = graph.saver
        address = Address(self._saved.address.thread_id, namespace)
        history = last_run(saver, address, parent=self._saved)
        reader = RunTaskReader(graph, saver)
        return reader.tasks(history, self._depth - 1, f"{node}:")

    def _graph_of(self, work: Work) -> InspectedGraph | None:
        """Return the graph that is the node of a task, or None if the node is a
        function or is unknown.
        """
        if self._graph is None:
            return None
        node = self._graph.program.nodes.get(_work_name(work))
        return None if node is None else node.graph

    def _namespace_of_call(
        self,
        work: Work,
        caller: Work,
    ) -> str:
        """Return the namespace of a graph that a task called.

        The first graph that a task calls uses the namespace of the task. The namespaces
        of later graphs end with a number.
        """
        siblings = self._by_caller[caller.id]
        graphs = [sibling.id for sibling in siblings if _is_graph(sibling)]
        index = graphs.index(work.id)
        namespace = self._namespace(caller)
        return f"{namespace}|{index}" if index else namespace

    def _namespace(self, work: Work) -> str:
        """Return the namespace of a task."""
        name = f"{_work_name(work)}:{work.id}"
        outer = self._saved.address.namespace
        return f"{outer}|{name}" if outer else name


def _by_caller(works: Iterable[Work]) -> dict[str | None, list[Work]]:
    """Return tasks by the id of their caller, which is None if no task called them."""
    by_path = {work.path: work for work in works if work.path}
    by_caller: dict[str | None, list[Work]] = {}
    for work in sorted(works, key=lambda work: (work.path, work.id)):
        caller = by_path.get(caller_of(work.path))
        caller_id = None if caller is None else caller.id
        by_caller.setdefault(caller_id, []).append(work)
    return by_caller


def _work_name(work: Work) -> str:
    """Return the name of a task's node, or of the called task."""
    named = work.ran or work.call_key or work
    return named.name or f"(task {work.id[:8]})"


def _is_graph(work: Work) -> bool:
    """Return whether a task ran a graph."""
    return work.ran is not None and work.ran.executor == "graph"


def _status(
    work: Work,
    *,
    is_over: bool,
) -> tuple[TaskStatus, str]:
    """Return the outcome of a task, and its error or questions.

    Args:
        work: The task.
        is_over: True if the superstep of the task has ended.
    """
    match work.state:
        case "done":
            return "done", ""
        case "failed":
            error = work.ran.error if work.ran else ""
            return "failed", error or f"{type(work.error).__name__}: {work.error}"
        case "waiting":
            questions = [repr(interrupt.value) for interrupt in work.interrupts]
            return "waiting", "; ".join(questions)
    return ("done" if is_over else "open"), ""
