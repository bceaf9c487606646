"""The tasks that have writes on a checkpoint, and the status of a thread, which is
derived from its tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from flowpregel._core import records
from flowpregel._core.files import FileContent
from flowpregel._core.ids import AttemptRecord, CallKey, CallRecord, caller_of
from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.labels import INPUT
from flowpregel.checkpoint.queue import QueuePosition

_FILES: Final = CallRecord._fields.index("files")
Status: TypeAlias = Literal[
    "done", "running", "failed", "stopped", "waiting", "enqueued"
]
"""The status of a thread.

* *running*: A run holds the thread's lease.
* *waiting*: A node or a body waits for an answer, or a person must let the run continue
  (after a breakpoint or an edit).
* *failed*: A node or a body raised an error, or the run has used up its supersteps.
* *stopped*: Tasks are due, and no run holds the lease. A call that has failed, or that
  waits for an answer, does not end a run alone: its body may catch the error, or do
  something else.
* *enqueued*: The run was enqueued, and has not begun.
* *done*: Nothing is due.
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, described by its writes on the checkpoint from which it started."""

    id: str
    name: str | None
    """The call as text, such as ``parse('a.txt')``, or the name of the node. None if
    neither is stored.
    """
    address: Address
    """The checkpoint with which the writes are stored."""
    step: int
    """The superstep of the task."""
    path: str = ""
    """The path of the task, from which the caller of a call can be found. Empty if the
    path is not stored.
    """
    state: str = "unfinished"
    """The state of the task: ``done``, ``failed``, ``waiting`` or ``unfinished``."""
    error: Any = None
    is_final: bool = False
    """True if the task has ended the run, unless the task is a call. It has ended the
    run if it waits for an answer, or if its error is followed neither by another
    attempt nor by an error handler.
    """
    interrupts: tuple[Any, ...] = ()
    result: Any = None
    """The result of a call that has succeeded."""
    writes: Mapping[str, Any] | None = None
    """The writes of a node, by channel."""
    ran: AttemptRecord | None = None
    """The record of the task's newest attempt, if it is stored."""
    is_call: bool = False
    """True for a recorded call of a task."""
    call_key: CallKey | None = None
    """The identity of a call, if it is stored. It is not stored for a call that will be
    retried.
    """

    @property
    def has_ended_run(self) -> bool:
        """True if the run has ended with the error or the question of this task."""
        return self.is_final and not self.is_call and not caller_of(self.path)

    @property
    def needs_retry(self) -> bool:
        """True for a failed call that its body must make again, because the body did
        not catch the error. If the superstep has ended all the same, the body has not
        made the call again, for example because its input was changed.
        """
        return self.is_call and self.state == "failed" and not self.is_final


def work_of(saved: Saved) -> list[Work]:
    """Return the tasks with writes on a checkpoint, in order."""
    of_task: dict[str, dict[str, Any]] = {}
    for write in saved.writes:
        if write.task_id != records.RUN_TASK_ID:
            # A later write replaces an earlier one to the same channel. A write of None
            # revokes a control write in this way.
            of_task.setdefault(write.task_id, {})[write.channel] = write.value
    ran = {task_id: (path, ran) for task_id, path, ran in saved.ran}
    step = saved.checkpoint.step + 1
    tasks: list[Work] = []
    for task_id, writes in of_task.items():
        path, attempt = ran.get(task_id, ("", None))
        work = work_from(saved.address, step, task_id, writes, attempt)
        tasks.append(replace(work, path=path))
    # The node that receives the run's input is left out, because it is not one of the
    # user's nodes.
    return [work for work in tasks if work.name != INPUT]


def work_from(
    address: Address,
    step: int,
    task_id: str,
    writes: Mapping[str, Any],
    ran: AttemptRecord | None,
) -> Work:
    """Return a task, given its newest write to each channel."""
    called = writes.get(records.CALLED)
    # The store may come from another program, so a part of a call key that is not a str
    # may be a value of any type and size.
    call_key = None
    if isinstance(called, tuple) and all(isinstance(part, str) for part in called[:4]):
        call_key = CallKey(*called[:4])._replace(files=_files_in(called))
    text = ""
    node_name = None
    if ran is not None:
        text = ran.call
        node_name = ran.name
    if call_key is not None:
        text = call_key.text
    is_call = bool(text)
    return Work(
        id=task_id,
        name=text or node_name,
        address=address,
        step=step,
        ran=ran,
        is_call=is_call,
        call_key=call_key,
        **_outcome(writes, ran),
    )


def _files_in(called: tuple[Any, ...]) -> tuple[FileContent, ...]:
    """Return the files in the record of a call, which may come from another program."""
    files = called[_FILES] if len(called) > _FILES else ()
    if not isinstance(files, tuple):
        return ()
    return tuple(file for file in files if _has_file_types(file))


def _has_file_types(file: Any) -> bool:
    """Return whether a value has the form of a `FileContent`."""
    types = (str, str, int)
    return isinstance(file, tuple) and tuple(map(type, file)) == types


def _outcome(writes: Mapping[str, Any], ran: AttemptRecord | None) -> dict[str, Any]:
    """Return the fields of `Work` that describe the outcome of a task.

    The dict is empty if the task has not ended.
    """
    values = {
        channel: value
        for channel, value in writes.items()
        if channel not in records.CONTROL_WRITES
    }
    if records.RETURN in values:
        return {"state": "done", "result": values[records.RETURN]}
    if values:
        values.pop(records.NO_WRITES, None)
        return {"state": "done", "writes": values}
    # If an attempt failed and will be repeated, only the text of the error is stored,
    # in *ran*.
    if error := writes.get(records.ERROR) or (ran and ran.error):
        is_final = _has_final_error(writes)
        return {"state": "failed", "error": error, "is_final": is_final}
    if questions := writes.get(records.INTERRUPT):
        interrupts = tuple(questions) if isinstance(questions, list | tuple) else ()
        return {"state": "waiting", "interrupts": interrupts, "is_final": True}
    return {}


def _has_final_error(writes: Mapping[str, Any]) -> bool:
    """Return whether a task has an error that is followed neither by another attempt
    nor by an error handler.
    """
    # The error of an attempt that will be repeated is only in the attempt's record, not
    # among these writes.
    is_handled = writes.get(records.ERROR_SOURCE) is not None
    return writes.get(records.ERROR) is not None and not is_handled


def status_of(saved: Saved, *, running: bool) -> Status:
    """Return the status of the thread whose newest checkpoint is *saved*."""
    tasks = work_of(saved)
    states = {work.state for work in tasks}
    run_ends = {work.state for work in tasks if work.has_ended_run}
    newest = saved.checkpoint
    position = QueuePosition.of(newest.metadata)
    return status_from(
        states,
        newest.source,
        newest.follows,
        running=running,
        run_ends=run_ends,
        is_enqueued=position is not None,
    )


def status_from(
    states: Collection[str],
    source: str,
    follows: int,
    *,
    running: bool,
    run_ends: Collection[str],
    is_enqueued: bool = False,
) -> Status:
    """Return the status of a thread.

    Args:
        states: The states of the tasks with writes on the thread's newest checkpoint.
        source: The ``source`` of that checkpoint.
        follows: The ``follows`` of that checkpoint.
        running: True if a run holds the thread's lease.
        run_ends: The states of those tasks with which the run has ended.
        is_enqueued: True if that checkpoint has a position in the queue.
    """
    if running:
        return "running"
    if "waiting" in run_ends:
        return "waiting"
    if "failed" in run_ends:
        return "failed"
    if states:
        return "stopped"
    if follows == records.PAUSED:
        return "waiting"
    if follows == records.LIMIT_REACHED:
        return "failed"
    if is_enqueued and source == "input":
        return "enqueued"
    is_due = follows == records.TASKS_DUE or source == "input"
    return "stopped" if is_due else "done"


def is_paused(saved: Saved) -> bool:
    """Return whether a run at a checkpoint waits for a person to let it continue, and
    no task has begun.
    """
    return saved.checkpoint.follows == records.PAUSED and not work_of(saved)
