"""The tasks that have left something on a checkpoint, and how its thread stands by
that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from flowpregel._core import records
from flowpregel._core.ids import AttemptRecord, CallKey
from flowpregel._core.records import Address, Saved

Status: TypeAlias = Literal["done", "running", "failed", "stopped", "waiting"]
"""How a thread stands: *running*, a run holds its lease; *waiting*, a task waits for an
answer, or a person must let the run go on (a breakpoint, an edit); *failed*, a task
raised, or the run has used up its supersteps; *stopped*, tasks are due and no run holds
the lease; *done*, nothing is due.
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, by what it has left on the checkpoint it started from."""

    id: str
    name: str | None
    """The call it is, or the node; None if only its flow knows."""
    address: Address
    """The checkpoint that it left something on."""
    step: int
    """Its superstep."""
    path: str = ""
    """That of its task, if it was kept: by it a call is found below what made it."""
    state: str = "unfinished"
    """``done``, ``failed``, ``waiting`` or ``unfinished``."""
    error: Any = None
    interrupts: tuple[Any, ...] = ()
    result: Any = None
    """Of a call."""
    writes: Mapping[str, Any] | None = None
    """What a node wrote, by channel."""
    ran: AttemptRecord | None = None
    """When, where and how often it ran, if that was kept."""
    is_call: bool = False
    """Whether it is a recorded call of a task."""
    asked: CallKey | None = None
    """What it asks for, if that is kept: not of a call that is to be tried again."""


def work_of(saved: Saved) -> list[Work]:
    """Return the tasks that have left something on a checkpoint, in order."""
    of_task: dict[str, dict[str, Any]] = {}
    for write in saved.writes:
        if write.task_id != records.RUN_TASK_ID:
            # A control write of None takes an earlier one back.
            of_task.setdefault(write.task_id, {})[write.channel] = write.value
    ran = {task_id: (path, ran) for task_id, path, ran in saved.ran}
    place, step, made = saved.address, saved.checkpoint.step + 1, list[Work]()
    for task_id, kept in of_task.items():
        path, how = ran.get(task_id, ("", None))
        made.append(replace(work_from(place, step, task_id, kept, how), path=path))
    # What takes in the input is no node of the user's.
    return [work for work in made if work.name != "__start__"]


def work_from(
    address: Address,
    step: int,
    task_id: str,
    kept: Mapping[str, Any],
    ran: AttemptRecord | None,
) -> Work:
    """Return a task by what it has left: its newest write to each name in *kept*."""
    called = kept.get(records.CALLED)
    # A store may be from elsewhere: anything else than texts may be a value without a
    # bound.
    asked = None
    if isinstance(called, tuple) and all(isinstance(part, str) for part in called[:4]):
        asked = CallKey(*called[:4])
    call = asked.text if asked else ran.call if ran else ""
    ended: dict[str, Any] = {}
    values = {k: value for k, value in kept.items() if k not in records.CONTROL_WRITES}
    if records.RETURN in values:
        ended = {"state": "done", "result": values[records.RETURN]}
    elif values:
        values.pop(records.NO_WRITES, None)
        ended = {"state": "done", "writes": values}
    # An error that is to be tried again is taken back, but for its text.
    elif error := kept.get(records.ERROR) or (ran and ran.error):
        ended = {"state": "failed", "error": error}
    elif questions := kept.get(records.INTERRUPT):
        interrupts = tuple(questions) if isinstance(questions, list | tuple) else ()
        ended = {"state": "waiting", "interrupts": interrupts}
    return Work(
        id=task_id,
        name=call or (ran and ran.name),
        address=address,
        step=step,
        ran=ran,
        is_call=bool(call),
        asked=asked,
        **ended,
    )


def status_of(saved: Saved, *, running: bool) -> Status:
    """Return how the thread stands whose newest checkpoint is *saved*."""
    states = {work.state for work in work_of(saved)}
    newest = saved.checkpoint
    return status_from(states, newest.source, newest.follows, running=running)


def status_from(
    states: Collection[str], source: str, follows: int, *, running: bool
) -> Status:
    """Return how a thread stands.

    Args:
        states: Those of the tasks that have left something on its newest checkpoint.
        source: The cause of that checkpoint.
        follows: What follows it.
        running: Whether a run holds the thread's lease.
    """
    if running:
        return "running"
    if "waiting" in states:
        return "waiting"
    if "failed" in states:
        return "failed"
    if states:
        return "stopped"
    is_due = follows == records.TASKS_DUE or source == "input"
    without_tasks: dict[int, Status] = {
        records.PAUSED: "waiting",
        records.LIMIT_REACHED: "failed",
    }
    return without_tasks.get(follows, "stopped" if is_due else "done")


def is_paused(saved: Saved) -> bool:
    """Return whether the run at *saved* goes on only if a person lets it: no task has
    begun.
    """
    return saved.checkpoint.follows == records.PAUSED and not work_of(saved)
