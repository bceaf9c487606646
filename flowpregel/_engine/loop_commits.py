"""Commits of the runs on one event loop: those that are asked for meanwhile go together.

While one commit is on its way to the disk, on another OS thread, the loop moves
its other runs. What they want to commit waits until that OS thread is back, and
goes in one piece: two hand-overs serve all of them, not each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from flowpregel._core.records import Batch
from flowpregel._engine.elsewhere import elsewhere
from flowpregel.checkpoint.base import BaseCheckpointSaver

_MOST_AT_ONCE = 1000

_Wanted: TypeAlias = dict[asyncio.Future[None], Batch]
"""Batches, in order, by what is done once each is committed."""


@dataclass(slots=True)
class _Queue:
    """What the runs on an event loop want committed to a saver, while there is anything."""

    waiting: _Wanted
    worker: asyncio.Task[None] | None = None
    """Held here: an event loop does not keep its tasks alive."""


_QUEUES: dict[tuple[asyncio.AbstractEventLoop, BaseCheckpointSaver], _Queue] = {}


def commit_on_loop(saver: BaseCheckpointSaver, batch: Batch) -> asyncio.Future[None]:
    """Have *batch* committed while the running event loop goes on; return what is done then.

    It fails with what the saver raised for this batch. If it is cancelled before it is its
    turn, the batch is not committed: its run ends, and commits what it has left in its own
    order, which this must not come after.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    queue = _QUEUES.get((loop, saver))
    if queue is None:
        queue = _QUEUES[loop, saver] = _Queue({})
        queue.worker = loop.create_task(_work(loop, saver, queue))
    queue.waiting[done] = batch
    return done


async def _work(loop: asyncio.AbstractEventLoop, saver: BaseCheckpointSaver, queue: _Queue) -> None:
    """Commit what waits until nothing does."""
    group: _Wanted = {}
    try:
        while queue.waiting:
            group = _take(queue)
            if not group:
                continue
            errors = await elsewhere(_commit_together, saver, [*group.values()])
            for done, error in zip(group, errors, strict=True):
                if done.done():
                    continue  # its run was cancelled
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
    finally:
        del _QUEUES[loop, saver]
        # Only when the loop ends, and this with it, is anybody left.
        for done in (*group, *queue.waiting):
            done.cancel()


def _take(queue: _Queue) -> _Wanted:
    """Take the batches whose turn it is, and leave out those that nobody waits for any more."""
    turn = list(islice(queue.waiting.items(), _MOST_AT_ONCE))
    for done, _ in turn:
        del queue.waiting[done]
    return {done: batch for done, batch in turn if not done.done()}


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
