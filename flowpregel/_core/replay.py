"""What was kept before this run started, handed back to the tasks it belongs to."""

from __future__ import annotations

from typing import Literal

from flowpregel._core import ids
from flowpregel._core.narrator import outputs
from flowpregel._core.progress import Run
from flowpregel._core.records import ERROR, ERROR_SOURCE, RESUME, Task


def restore(run: Run, task: Task) -> Literal["done", "failed", "due"]:
    """Give *task* back what it wrote, and say what is left to do for it.

    ``"failed"``: its error handler is to run. Any other failure is forgotten,
    and the task is due again.
    """
    writes = run.pending.get(task.id)
    if not writes or not run.hand_back:
        return "due"
    if done := outputs(writes):
        task.writes = tuple(done)
        return "done"
    kinds = {channel for channel, _ in writes}
    if task.node.handler is not None and {ERROR, ERROR_SOURCE} <= kinds:
        return "failed"
    return "due"


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* the answers it had, and the new one it waits for, which is kept."""
    for channel, value in run.pending.get(task.id, ()):
        if channel == RESUME:
            task.answers = tuple(value)
    if not run.answers or task.node.role == "graph":
        return
    expected = ids.interrupt_id(task.namespace, len(task.answers))
    if expected in run.answers:
        task.answers = (*task.answers, run.answers.pop(expected))
        run.recorder.keep(run.checkpoint_id, task.id, task.path, ((RESUME, task.answers),))
        # If the call is made again, by the next attempt of its body, it has its answers too.
        run.pending.setdefault(task.id, []).append((RESUME, task.answers))


def recorded_error(run: Run, task: Task) -> BaseException:
    """Return what *task* failed with in an earlier run."""
    for channel, value in run.pending.get(task.id, ()):
        if channel == ERROR and isinstance(value, BaseException):
            return value
    return RuntimeError(f"node {task.name!r} failed in an earlier run")
