"""How a thread stands, by what its newest checkpoint keeps; no flow is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    PendingWrite,
    Ran,
    Saved,
)

Status = Literal["running", "interrupted", "failed", "stopped", "idle"]
STATUSES: tuple[Status, ...] = ("running", "interrupted", "failed", "stopped", "idle")
_ENGINES = ("branch:to:", "join:", TASKS)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, by what it has left on the checkpoint it started from."""

    id: str
    name: str | None
    """The call it is, or the node; None if only its flow knows."""
    step: int
    """Its superstep."""
    state: Literal["done", "failed", "waiting", "unfinished"]
    error: Any = None
    interrupts: tuple[Any, ...] = ()
    result: Any = None
    ran: Ran | None = None
    """When, where and how often it ran, if that was kept."""


def work_of(saved: Saved) -> list[Work]:
    """Return the tasks that have left something on a checkpoint, in order."""
    of_task: dict[str, list[PendingWrite]] = {}
    for write in saved.writes:
        if write.task_id != RUN_TASK_ID:
            of_task.setdefault(write.task_id, []).append(write)
    ran = {task_id: ran for task_id, _, ran in saved.ran}
    step = saved.checkpoint.step + 1
    made = [_work(task_id, writes, step, ran.get(task_id)) for task_id, writes in of_task.items()]
    # What takes in the input is no node of the user's.
    return [work for work in made if work.name != "__start__"]


def _work(task_id: str, writes: list[PendingWrite], step: int, ran: Ran | None) -> Work:
    # A control write of None takes an earlier one back.
    control = {w.channel: w.value for w in writes if w.channel in CONTROL_WRITES}
    done = [write for write in writes if write.channel not in CONTROL_WRITES]
    called = control.get(CALLED)
    name = str(called[3]) if isinstance(called, tuple) else ran and ran.name
    work = Work(id=task_id, name=name, step=step, state="unfinished", ran=ran)
    if done:
        values = {write.channel: write.value for write in done if write.channel != NO_WRITES}
        return replace(work, state="done", result=values.get(RETURN, values))
    # An error that is to be tried again is taken back, but for its text.
    error = control.get(ERROR) or (ran.error if ran is not None else None)
    if error:
        return replace(work, state="failed", error=error)
    asked = control.get(INTERRUPT) or ()
    if isinstance(asked, Sequence) and asked:
        return replace(work, state="waiting", interrupts=tuple(asked))
    return work


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
    # Only the flow knows how to fold deltas.
    deltas = {
        name: {"seed": history.seed, "deltas": (*history.writes,)}
        for name, history in saved.deltas.items()
    }
    held = {**saved.checkpoint.values, **deltas}
    return {k: v for k, v in sorted(held.items()) if show_all or not is_engines(k)}


def is_engines(channel: str) -> bool:
    """Return whether *channel* is one the engine made for itself."""
    return channel.startswith(_ENGINES)
