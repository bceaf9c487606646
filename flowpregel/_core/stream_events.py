"""The events of a run's stream, in LangGraph's shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from flowpregel._core import ids, records
from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import (
    Emit,
    Emitted,
    ModelMessage,
    Report,
    ToolEvent,
    labels_of,
)
from flowpregel._core.metric_series import MetricSeries, MetricValues
from flowpregel._core.program import Keys, names
from flowpregel._core.records import RETURN, Address, Arguments, Node, Task, Write


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A node's task that has ended, for the stream of mode ``messages``."""

    input: Any
    """The input of the task."""
    writes: Sequence[tuple[str | None, Any]]
    """The channel and the value of each write. The value that the function returned has
    the channel None.
    """
    metadata: Mapping[str, Any]
    """The step, the node and the triggers, as ``langgraph_step`` and so on."""


def ended_task(task: Task, step: int) -> EndedTask:
    """Return the public record of a *task* of superstep *step*, which has ended."""
    writes = [
        (None if channel == RETURN else channel, value)
        for channel, value in task.attempt.writes
    ]
    return EndedTask(task.input, writes, labels_of(task, step))


class StreamEvents:
    """A maker of stream events for one run, in the stream modes that are read.

    Args:
        modes: The stream modes that are read.
        output_channels: The channels in ``values`` and ``updates``.
        stream_channels: The channels in ``tasks`` and ``checkpoints``.
        messages: The object that makes the items of the mode ``messages``, or None if
            neither that mode nor ``tools`` is read.
        task_labels: The metadata of every task in ``tasks``.
    """

    def __init__(
        self,
        modes: frozenset[str],
        output_channels: Keys,
        stream_channels: Keys,
        messages: Any = None,
        task_labels: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._modes = modes
        self._task_labels = task_labels
        self._messages = messages
        self._output = output_channels
        self.outputs = frozenset(names(output_channels))
        self._streams = frozenset(names(stream_channels))
        self._wants_tasks = bool(modes & {"tasks", "debug"})
        self.shows_tasks = self._wants_tasks or bool(modes & {"updates", "messages"})
        """True if the start or end of a task causes an event in any of the modes that
        are read.
        """
        self.wants_checkpoints = bool(modes & {"checkpoints", "debug"})

    def updates(
        self,
        node: Node,
        writes: Sequence[Write],
        mode: str = "updates",
        *,
        cached: bool = False,
    ) -> Iterable[Emit]:
        """Yield the event for the writes of a task. In the *mode* ``recorded``, the
        writes are those of an earlier run.
        """
        if mode in self._modes and not node.hidden:
            payload: dict[str, Any] = {node.name: self.update_of(writes)}
            if cached:
                payload["__metadata__"] = {"cached": True}
            yield Emit(mode, payload)

    def update_of(self, writes: Sequence[Write]) -> Any:
        """Return the update that a task's writes make: the returned value if there is
        one, or else the writes to output channels. It is None without such writes, and
        a list if there are several updates.
        """
        for channel, value in writes:
            if channel == records.RETURN:
                return value
        updates = self._updates_of(writes)
        if len(updates) > 1:
            return updates
        return updates[0] if updates else None

    def _updates_of(self, writes: Sequence[Write]) -> list[Any]:
        """Return the updates of the output channels. If there is a single output
        channel, each update is the value of one write. Otherwise there is one dict, or
        a dict for each write if a channel has several writes.
        """
        outputs = [write for write in writes if write[0] in self.outputs]
        if isinstance(self._output, str):
            return [value for _, value in outputs]
        update = dict(outputs)
        if len(update) < len(outputs):
            return [{channel: value} for channel, value in outputs]
        return [update] if update else []

    def emitted(self, task: Task, event: Emitted) -> Iterable[Emit]:
        """Yield the event for an item that *task* emits while it runs."""
        payload = event.payload
        if isinstance(payload, ModelMessage):
            yield from self._messages_of(payload, event.namespace)
            return
        namespace = event.namespace
        if isinstance(payload, MetricValues):
            activity_of(task).add(payload)
            return
        if isinstance(payload, Report):
            activity_of(task).report = payload
            namespace = None
        mode, item = _mode_and_item(task, payload)
        if mode in self._modes:
            yield Emit(mode, item, namespace)

    def _messages_of(
        self,
        event: ModelMessage | EndedTask,
        namespace: tuple[str, ...] | None = None,
    ) -> Iterable[Emit]:
        if "messages" in self._modes:
            for item in self._messages.items(event):
                yield Emit("messages", item, namespace)

    def interrupted(self, interrupts: tuple[Any, ...], current: Any) -> Iterable[Emit]:
        """Yield the events of a task's questions, with the *current* output values."""
        yield from self.breakpoint(interrupts)
        if "values" in self._modes:
            values = current if isinstance(current, dict) else {}
            yield Emit("values", {**values, records.INTERRUPT: interrupts})

    def breakpoint(self, interrupts: tuple[Any, ...] = ()) -> Iterable[Emit]:
        """Yield the event of a run that stops, with the questions in *interrupts* if
        there are any.
        """
        if "updates" in self._modes:
            yield Emit("updates", {records.INTERRUPT: interrupts})

    def planned(
        self,
        tasks: Sequence[Task],
        step: int,
        at: int,
    ) -> Iterable[Emit]:
        """Yield the events for the starts of *tasks*, and for the writes of the tasks
        that have finished.
        """
        for task in tasks:
            yield from self.started(task, step, at)
        for task in tasks:
            if task.attempt.writes:
                yield from self.updates(task.node, task.attempt.writes, cached=True)

    def started(
        self,
        task: Task,
        step: int,
        at: int,
    ) -> Iterable[Emit]:
        """Yield the events that show the start of *task*."""
        if not self._wants_tasks or task.node.hidden:
            return
        task_input = task.input
        if isinstance(task_input, Arguments):
            task_input = (task_input.args, dict(task_input.kwargs))
        payload = {
            "id": task.id,
            "name": task.name,
            "input": task_input,
            "triggers": task.triggers,
        }
        metadata = {**self._task_labels, **task.node.metadata}
        if metadata:
            payload["metadata"] = metadata
        yield from self.wrapped("tasks", "task", payload, step, at)

    def returned(
        self,
        task: Task,
        step: int,
        at: int,
    ) -> Iterable[Emit]:
        """Yield the events for the writes of *task* and for its end.

        If another run shared the result of the task, there is no event for the end.
        """
        span = task.attempt.span
        is_shared = span is not None and span.executor == "cache"
        if "messages" in self._modes and not (is_shared or task.node.hidden):
            yield from self._messages_of(ended_task(task, step))
        yield from self.updates(task.node, task.attempt.writes, cached=is_shared)
        if not is_shared:
            yield from self.ended(task, step, at)

    def ended(
        self,
        task: Task,
        step: int,
        at: int,
        end: Any = None,
    ) -> Iterable[Emit]:
        """Yield the events for the end of *task*. *end* is an exception, interrupts, or
        None.
        """
        if not self._wants_tasks or task.node.hidden:
            return
        error = end if isinstance(end, BaseException) else None
        interrupts = end if isinstance(end, tuple) else ()
        payload = {
            "id": task.id,
            "name": task.name,
            "error": error,
            "result": self.result_of(task.attempt.writes),
            "interrupts": [asdict(item) for item in interrupts],
        }
        if error is not None and task.node.is_task:
            payload["call"] = task.call
        yield from self.wrapped("tasks", "task_result", payload, step, at)

    def result_of(self, writes: Sequence[Write]) -> dict[str, Any]:
        """Return a task's writes by channel. Several writes to one channel are a list
        under ``$writes``.
        """
        by_channel: dict[str, list[Any]] = {}
        for channel, value in writes:
            if channel in self._streams or channel == records.RETURN:
                by_channel.setdefault(channel, []).append(value)
        return {
            channel: values[0] if len(values) == 1 else {"$writes": values}
            for channel, values in by_channel.items()
        }

    def wrapped(
        self,
        mode: str,
        kind: str,
        payload: Mapping[str, Any],
        step: int,
        at: int,
    ) -> Iterable[Emit]:
        """Yield the events that show *payload*, in *mode* and in the mode ``debug``."""
        if mode in self._modes:
            yield Emit(mode, payload)
        if "debug" in self._modes:
            stamp = ids.timestamp(at)
            event = {"step": step, "timestamp": stamp, "type": kind, "payload": payload}
            yield Emit("debug", event)

    def task_entry(
        self,
        task: Task,
        pending: Sequence[Write],
        thread_id: str,
    ) -> dict[str, Any]:
        """Return the entry of *task* in the event of a checkpoint, made from the task's
        *pending* writes.
        """
        entry: dict[str, Any] = {"id": task.id, "name": task.name}
        state = None
        graph = task.node.subgraph
        if graph is not None:
            config = {
                "thread_id": thread_id,
                "checkpoint_ns": graph.namespace_at(task.namespace),
            }
            state = {"configurable": config}
        error = dict(pending).get(records.ERROR)
        if error is not None:
            return entry | {"error": error, "state": state}
        writes = finished_writes(pending)
        if writes:
            entry["result"] = self.result_of(writes)
        interrupts = interrupts_of(pending, live=False)
        return entry | {
            "interrupts": tuple(asdict(item) for item in interrupts),
            "state": state,
        }


@dataclass(slots=True, eq=False)
class TaskActivity:
    """The progress and the metrics that a running task has reported."""

    attempt: int
    """The number of the attempt that reported the progress and the metrics."""
    report: Report | None = None
    """The last report of the task's progress."""
    series: dict[str, MetricSeries] = field(default_factory=dict)
    """The reported values over time, by the names of the metrics."""

    def add(self, values: MetricValues) -> None:
        """Add the latest values of the task's metrics."""
        for name, points in values.points.items():
            series = self.series.get(name)
            if series is None:
                series = MetricSeries()
                self.series[name] = series
            for point in points:
                series.add(*point)


def activity_of(task: Task) -> TaskActivity:
    """Return the progress and metrics that the current attempt of *task* has reported
    so far.
    """
    attempt = task.attempt
    activity: TaskActivity | None = attempt.activity
    if activity is None or activity.attempt != attempt.number:
        activity = TaskActivity(attempt.number)
        attempt.activity = activity
    return activity


def _mode_and_item(task: Task, payload: Any) -> tuple[str, Any]:
    """Return the mode and the item that show *payload*, which *task* has emitted."""
    if isinstance(payload, Report):
        return "progress", {"id": task.id, "name": task.name, **asdict(payload)}
    if isinstance(payload, ToolEvent):
        return "tools", payload.payload
    return "custom", payload


def finished_writes(writes: Iterable[Write]) -> list[Write]:
    """Return the writes that a task has only if it has finished."""
    return [write for write in writes if write[0] not in records.CONTROL_WRITES]


def interrupts_of(pending: Iterable[Write], *, live: bool) -> tuple[Interrupt, ...]:
    """Return the interrupts among a task's *pending* writes.

    If *live*, the result is empty for a task that has finished, since all its
    interrupts are answered.
    """
    interrupts: tuple[Interrupt, ...] = ()
    for channel, value in pending:
        if channel == records.INTERRUPT:
            interrupts = tuple(value)
        elif live and channel not in records.CONTROL_WRITES:
            return ()
    return interrupts


def checkpoint_config(
    address: Address,
    parents: Mapping[str, str | None],
) -> dict[str, Any]:
    """Return the config that addresses a checkpoint.

    Args:
        address: The address of the checkpoint.
        parents: The checkpoints of the outer graphs, by namespace. The mapping is empty
            if they are unknown.
    """
    configurable: dict[str, Any] = {
        "thread_id": address.thread_id,
        "checkpoint_ns": address.namespace,
        "checkpoint_id": address.checkpoint_id,
    }
    if parents:
        configurable["checkpoint_map"] = {
            **parents,
            address.namespace: address.checkpoint_id,
        }
    return {"configurable": configurable}
