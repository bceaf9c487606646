"""Tells the user's stream what happens, in LangGraph's shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flowpregel._core import ids
from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import Emit, Emitted, Report
from flowpregel._core.program import Keys
from flowpregel._core.records import (
    CONTROL_WRITES,
    ERROR,
    INTERRUPT,
    NO_WRITES,
    RETURN,
    Kind,
    Task,
    Write,
)
from flowpregel._core.state import names


class Narrator:
    """Makes the events of one run, for the modes that somebody reads.

    Args:
        modes: The stream modes that are read.
        output_channels: What ``values`` and ``updates`` show.
        stream_channels: What ``tasks`` and ``checkpoints`` show.
    """

    def __init__(self, modes: frozenset[str], output_channels: Keys, stream_channels: Keys) -> None:
        debug = "debug" in modes
        self.modes = modes
        self.wants_values = "values" in modes
        self.wants_updates = "updates" in modes
        self.wants_tasks = debug or "tasks" in modes
        self.wants_checkpoints = debug or "checkpoints" in modes
        self.follows_tasks = self.wants_tasks or self.wants_updates
        """Whether anybody hears how single tasks end."""
        self.outputs = frozenset(names(output_channels))
        self._output = output_channels
        self._streams = frozenset(names(stream_channels))

    def updates(self, task: Task, *, cached: bool = False) -> Iterable[Emit]:
        """Tell what *task* wrote."""
        if self.wants_updates and not task.node.hidden:
            payload: dict[str, Any] = {task.name: self._update_of(task.writes)}
            if cached:
                payload["__metadata__"] = {"cached": True}
            yield Emit("updates", payload)

    def _update_of(self, writes: Sequence[Write]) -> Any:
        for channel, value in writes:
            if channel == RETURN:
                return value
        found = [write for write in writes if write[0] in self.outputs]
        if isinstance(self._output, str):
            values = [value for _, value in found]
        elif max(Counter(channel for channel, _ in found).values(), default=0) > 1:
            values = [{channel: value} for channel, value in found]
        else:
            values = [dict(found)] if found else []
        if not values:
            return None
        return values[0] if len(values) == 1 else values

    def emitted(self, task: Task, event: Emitted) -> Iterable[Emit]:
        """Tell what *task* gives the stream while it runs."""
        report = event.payload
        if not isinstance(report, Report):
            if "custom" in self.modes:
                yield Emit("custom", report, event.namespace)
        elif "progress" in self.modes:
            yield Emit("progress", {"id": task.id, "name": task.name, **asdict(report)})

    def interrupted(self, interrupts: tuple[Any, ...], current: Any) -> Iterable[Emit]:
        """Tell what a task asks; *current* is what the output channels hold."""
        if self.wants_updates:
            yield Emit("updates", {INTERRUPT: interrupts})
        if self.wants_values:
            shown = {**current, INTERRUPT: interrupts} if isinstance(current, dict) else None
            yield Emit("values", shown or {INTERRUPT: interrupts})

    def planned(self, tasks: Sequence[Task], step: int, at: int) -> Iterable[Emit]:
        """Tell which tasks there are, and which had been done before."""
        for task in tasks:
            yield from self.started(task, step, at)
        for task in tasks:
            if task.writes:
                yield from self.updates(task, cached=True)

    def started(self, task: Task, step: int, at: int) -> Iterable[Emit]:
        """Tell that *task* starts."""
        if not self.wants_tasks or task.node.hidden:
            return ()
        return self._started(task, step, at)

    def _started(self, task: Task, step: int, at: int) -> Iterable[Emit]:
        given = task.input
        if task.kind is Kind.CALL:
            given = (given.args, dict(given.kwargs))
        payload = {
            "id": task.id,
            "name": task.name,
            "input": given,
            "triggers": list(task.triggers),
        }
        if task.node.metadata:
            payload["metadata"] = dict(task.node.metadata)
        yield from self._wrapped("tasks", "task", payload, step, at)

    def ended(self, task: Task, step: int, at: int, end: Any = None) -> Iterable[Emit]:
        """Tell how *task* ended: *end* is an exception, interrupts, or None."""
        if not self.wants_tasks or task.node.hidden:
            return
        payload = {
            "id": task.id,
            "name": task.name,
            "error": end if isinstance(end, BaseException) else None,
            "result": self.result_of(task.writes),
            "interrupts": [asdict(item) for item in end] if isinstance(end, tuple) else [],
        }
        yield from self._wrapped("tasks", "task_result", payload, step, at)

    def result_of(self, writes: Sequence[Write]) -> dict[str, Any]:
        """Return a task's writes by channel; several to one are a list under ``$writes``."""
        result: dict[str, Any] = {}
        for channel, value in writes:
            if channel not in self._streams and channel != RETURN:
                continue
            if channel not in result:
                result[channel] = value
            elif isinstance(result[channel], dict) and "$writes" in result[channel]:
                result[channel]["$writes"].append(value)
            else:
                result[channel] = {"$writes": [result[channel], value]}
        return result

    def checkpoint(self, payload: Mapping[str, Any], step: int, at: int) -> Iterable[Emit]:
        """Tell that a checkpoint was saved."""
        yield from self._wrapped("checkpoints", "checkpoint", payload, step - 1, at)

    def _wrapped(
        self, mode: str, kind: str, payload: Mapping[str, Any], step: int, at: int
    ) -> Iterable[Emit]:
        if mode in self.modes:
            yield Emit(mode, payload)
        if "debug" in self.modes:
            stamp = ids.timestamp(at)
            event = {"step": step, "timestamp": stamp, "type": kind, "payload": payload}
            yield Emit("debug", event)


def outputs(writes: Iterable[Write]) -> list[Write]:
    """Return the writes that show that a task has finished."""
    return [write for write in writes if write[0] not in CONTROL_WRITES]


def task_entry(
    task: Task, pending: Sequence[Write], narrator: Narrator, *, live: bool = False
) -> dict[str, Any]:
    """Return how a checkpoint's event lists *task*, given its *pending* writes."""
    entry: dict[str, Any] = {"id": task.id, "name": task.name}
    error = next((value for channel, value in pending if channel == ERROR), None)
    done = outputs(pending)
    if error is not None:
        entry["error"] = error
        return entry | {"state": None}
    if done:
        entry["result"] = narrator.result_of([w for w in done if w[0] != NO_WRITES])
    entry["interrupts"] = [asdict(item) for item in interrupts_of(pending, live=live)]
    return entry | {"state": None}


def interrupts_of(pending: Iterable[Write], *, live: bool) -> tuple[Interrupt, ...]:
    """Return the interrupts among *pending* writes; *live*: none if the task finished."""
    found: tuple[Interrupt, ...] = ()
    for channel, value in pending:
        if channel == INTERRUPT:
            found = tuple(value)
        elif live and channel not in CONTROL_WRITES:
            return ()
    return found
