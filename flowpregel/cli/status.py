"""How a thread stands, by what its newest checkpoint keeps; no flow is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowpregel._core.records import (
    CALLED,
    CONTROL_WRITES,
    ERROR,
    INTERRUPT,
    NO_WRITES,
    RETURN,
    RUN_TASK_ID,
    TASKS,
    DeltaHistory,
    PendingWrite,
    Saved,
)

Status = Literal["running", "interrupted", "failed", "stopped", "idle"]
_ENGINES = ("branch:to:", "join:", TASKS)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task of the superstep that is not over."""

    id: str
    name: str | None
    """The call it is; None for a node's task, whose name only its flow knows."""
    state: Literal["done", "failed", "waiting", "unfinished"]
    error: Any = None
    interrupts: tuple[Any, ...] = ()
    result: Any = None


def work_of(saved: Saved) -> list[Work]:
    """Return the tasks that have left something on a checkpoint, in order."""
    of_task: dict[str, list[PendingWrite]] = {}
    for write in saved.writes:
        if write.task_id != RUN_TASK_ID:
            of_task.setdefault(write.task_id, []).append(write)
    return [_work(task_id, writes) for task_id, writes in of_task.items()]


def _work(task_id: str, writes: list[PendingWrite]) -> Work:
    # A control write of None takes an earlier one back.
    control = {w.channel: w.value for w in writes if w.channel in CONTROL_WRITES}
    done = [write for write in writes if write.channel not in CONTROL_WRITES]
    called = control.get(CALLED)
    name = str(called[1]) if isinstance(called, tuple) else None
    if done:
        return Work(id=task_id, name=name, state="done", result=_result(done))
    if control.get(ERROR) is not None:
        return Work(id=task_id, name=name, state="failed", error=control[ERROR])
    asked = control.get(INTERRUPT) or ()
    if isinstance(asked, Sequence) and asked:
        return Work(id=task_id, name=name, state="waiting", interrupts=tuple(asked))
    return Work(id=task_id, name=name, state="unfinished")


def _result(done: list[PendingWrite]) -> Any:
    written = [write for write in done if write.channel != NO_WRITES]
    returned = next((write.value for write in written if write.channel == RETURN), None)
    if returned is not None or any(write.channel == RETURN for write in written):
        return returned
    return {write.channel: write.value for write in written}


def status_of(saved: Saved, *, running: bool) -> Status:
    """Return how the thread stands whose newest checkpoint is *saved*.

    *stopped* means that its superstep had begun and was not ended; *idle*, that
    nothing is in flight.
    """
    states = {work.state for work in work_of(saved)}
    if running:
        return "running"
    if "waiting" in states:
        return "interrupted"
    if "failed" in states:
        return "failed"
    return "stopped" if states or saved.checkpoint.source == "input" else "idle"


def values_of(saved: Saved, *, show_all: bool = False) -> dict[str, Any]:
    """Return what the channels hold, without those that are the engine's own."""
    deltas = {name: _of_deltas(history) for name, history in saved.deltas.items()}
    held = {**saved.checkpoint.values, **deltas}
    return {k: v for k, v in sorted(held.items()) if show_all or not is_engines(k)}


def is_engines(channel: str) -> bool:
    """Return whether *channel* is one the engine made for itself."""
    return channel.startswith(_ENGINES)


def _of_deltas(history: DeltaHistory) -> Any:
    # Only the flow knows how to fold them.
    return {"seed": history.seed, "deltas": history.writes}
