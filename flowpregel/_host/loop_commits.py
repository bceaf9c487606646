"""Commits of the runs on one event loop: those that are asked for meanwhile go together.

While one commit is on its way to the disk, on another OS thread, the loop moves
its other runs. What they want to commit waits until that OS thread is back, and
goes in one piece: two hand-overs serve all of them, not each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from flowpregel._core.records import Batch
from flowpregel._host.elsewhere import elsewhere
from flowpregel.checkpoint.base import BaseCheckpointSaver

_MOST_AT_ONCE = 1000


async def commit_on_loop(saver: BaseCheckpointSaver, batch: Batch) -> None:
    """Return once *batch* is committed; the running event loop goes on meanwhile.

    Raises:
        Exception: What the saver raised for this batch.
    """
    loop = asyncio.get_running_loop()
    wanted = _Wanted(batch, loop.create_future())
    queue = _QUEUES.get((loop, saver))
    if queue is not None:
        queue.waiting.append(wanted)
    else:
        queue = _QUEUES[loop, saver] = _Queue([wanted])
        queue.worker = loop.create_task(_work(loop, saver, queue))
    try:
        await wanted.done
    except asyncio.CancelledError:
        # The run ends, and commits what it has left in its own order: this must not come later.
        if wanted in queue.waiting:
            queue.waiting.remove(wanted)
        raise


@dataclass(slots=True, eq=False)
class _Wanted:
    """A batch that a run waits for."""

    batch: Batch
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    """What the runs on an event loop want committed to a saver, while there is anything."""

    waiting: list[_Wanted]
    worker: asyncio.Task[None] | None = None
    """Held here: an event loop does not keep its tasks alive."""


_QUEUES: dict[tuple[asyncio.AbstractEventLoop, BaseCheckpointSaver], _Queue] = {}


async def _work(loop: asyncio.AbstractEventLoop, saver: BaseCheckpointSaver, queue: _Queue) -> None:
    """Commit what waits until nothing does."""
    group: list[_Wanted] = []
    try:
        while queue.waiting:
            group, queue.waiting = queue.waiting[:_MOST_AT_ONCE], queue.waiting[_MOST_AT_ONCE:]
            errors = await elsewhere(_commit_together, saver, [each.batch for each in group])
            for wanted, error in zip(group, errors, strict=True):
                _tell(wanted.done, error)
    finally:
        del _QUEUES[loop, saver]
        # Only when the loop ends, and this with it, is anybody left.
        for wanted in (*group, *queue.waiting):
            wanted.done.cancel()


def _tell(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return  # its run was cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _commit_together(
    saver: BaseCheckpointSaver, batches: Sequence[Batch]
) -> list[Exception | None]:
    """Commit batches of different runs; return what each of them failed with, or None."""
    try:
        saver.commit(batches)
    except Exception as error:  # noqa: BLE001 - it is raised in the run that asked
        if len(batches) == 1:
            return [error]
        # One of them may be to blame: each on its own, so that the others are kept.
        return [_commit_together(saver, (each,))[0] for each in batches]
    return [None] * len(batches)
