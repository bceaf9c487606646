"""Commits to savers, in the durability mode of a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from flowpregel import _fault
from flowpregel._core.effects import Load, LoadAttempts
from flowpregel._core.records import Batch, Durability
from flowpregel._engine.background_writer import BackgroundWriter, finished
from flowpregel.checkpoint.base import BaseCheckpointSaver

if TYPE_CHECKING:
    import asyncio


class Committer:
    """The object that commits a run's records to a saver, one `Batch` at a time.

    Args:
        saver: The saver of the run.
        durability: The mode that determines when a commit must be on disk.
    """

    def __init__(self, saver: BaseCheckpointSaver, durability: Durability) -> None:
        self.saver = saver
        self.blocks: bool = not saver.commits_at_once
        """True if a commit takes time, so that it would block an event loop."""
        self._in_background = durability is Durability.ASYNC and self.blocks
        self.writer: BackgroundWriter | None = None
        """The background writer, or None before the first commit of the run, or if the
        run has no writer.
        """

    def commit(self, batch: Batch) -> None:
        """Commit *batch*, or pass it to the background writer.

        The first batch of a run is never passed to the writer, so that a store that
        cannot be written is noticed before the first task runs.
        """
        if _fault.points:
            _fault.fault("committer.commit.before")
        batch = self.saver.prepare(batch)
        if self.writer is not None:
            self.writer.put(batch)
            _fault.fault("committer.handed over")
            return
        if self.saver.needs_loop:
            refuse_blocked_loop(self.saver)
        self.saver.commit((batch,))
        if _fault.points:
            _fault.fault("committer.commit.after", (batch,), finished)
        if self._in_background:
            self.writer = BackgroundWriter(self.saver)

    async def commit_on_loop(self, batch: Batch) -> None:
        """Commit as `commit` does, without blocking the event loop of the run."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        if self.writer is not None:
            if self.writer.is_full:
                await asyncio.to_thread(self.commit, batch)
            else:
                self.commit(batch)
            return
        _fault.fault("committer.commit.before")
        # Another OS thread commits, so that bodies on this loop continue during the
        # commit.
        batch = self.saver.prepare(batch)
        await _commit_with_others(self.saver, batch)
        _fault.fault("committer.commit.after", (batch,), finished)
        if self._in_background:
            self.writer = BackgroundWriter(self.saver)

    def load(self, load: Load | LoadAttempts) -> Any:
        """Return the stored records that *load* requests, including this run's own
        commits.
        """
        if self.saver.needs_loop:
            refuse_blocked_loop(self.saver)
        if self.writer is not None:
            self.writer.flush()
        if isinstance(load, LoadAttempts):
            return list(self.saver.node_results(load.address))
        _fault.fault("committer.load.before")
        saved = self.saver.load(load.address, before=load.before, lazy_results=True)
        _fault.fault("committer.load.after")
        return saved


def refuse_blocked_loop(saver: BaseCheckpointSaver) -> None:
    """Check that a method of *saver* may be called on this OS thread.

    Raises:
        RuntimeError: The OS thread runs the event loop for which the saver would wait.
    """
    if saver.is_on_its_loop:
        raise RuntimeError(
            "a sync node that runs inline on the event loop of its saver cannot call a "
            "graph or wait for a task: the saver needs that loop. Give the node "
            'executor="threads" or "processes", or make it async'
        )


@dataclass(slots=True, eq=False)
class Committers:
    """The committers of one outermost run and of the runs nested in it: one for each
    saver.
    """

    _by_saver: dict[BaseCheckpointSaver, Committer] = field(default_factory=dict)

    def of(self, saver: BaseCheckpointSaver, durability: Durability) -> Committer:
        """Return the committer of *saver*, the same object in each call."""
        return self._by_saver.setdefault(saver, Committer(saver, durability))

    def close(self) -> None:
        """Wait until all batches are committed to their savers.

        Raises:
            Exception: The error of a commit in the background. If the commits to
                several savers fail, the error of the first saver is raised.
        """
        with ExitStack() as closing:
            for committer in self._by_saver.values():
                if committer.writer is not None:
                    closing.callback(committer.writer.close)
                    committer.writer = None

    async def close_on_loop(self) -> None:
        """Do the same as `close`, on another OS thread, if a saver may need the running
        event loop for that.

        If the waiting task is cancelled, the cancellation takes effect once everything
        is committed.
        """
        if not any(saver.needs_loop for saver in self._by_saver):
            return
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        closing = asyncio.get_running_loop().run_in_executor(None, self.close)
        cancelled: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.wait({closing})
            except asyncio.CancelledError as error:
                cancelled = error
        closing.result()
        if cancelled is not None:
            raise cancelled


# ---------------------------------------------------------------- commits on a loop

Awaited: TypeAlias = "dict[asyncio.Future[None], Batch]"
"""The batches of a queue, in order, by the future of each batch's commit."""

_QUEUES: dict[
    tuple[asyncio.AbstractEventLoop, BaseCheckpointSaver],
    tuple[Awaited, asyncio.Task[None]],
] = {}
"""The batches of the runs on an event loop, and the task that commits them to a saver.

While a commit is in progress on another OS thread, the loop continues the other runs.
Their batches are collected here and stored together in the next commit. The asyncio
task is referenced here, since an event loop does not keep its tasks alive.
"""


def _commit_with_others(
    saver: BaseCheckpointSaver, batch: Batch
) -> asyncio.Future[None]:
    """Queue *batch* for a commit that does not block the running event loop, and return
    the future of the commit.

    The future fails with the saver's error for this batch. If the future is cancelled
    while the batch waits, the batch is not committed: the run ends and commits the
    remaining work itself, after which no older batch may be committed.
    """
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    loop = asyncio.get_running_loop()
    done = loop.create_future()
    if (loop, saver) not in _QUEUES:
        waiting: Awaited = {}
        _QUEUES[loop, saver] = (
            waiting,
            loop.create_task(_commit_waiting(saver, waiting)),
        )
    _QUEUES[loop, saver][0][done] = batch
    return done


async def _commit_waiting(saver: BaseCheckpointSaver, waiting: Awaited) -> None:
    """Commit waiting batches until there are none."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    group: Awaited = {}
    try:
        while waiting:
            group = {
                done: batch for done, batch in waiting.items() if not done.cancelled()
            }
            waiting.clear()
            errors = await asyncio.to_thread(_commit_together, saver, [*group.values()])
            for done, error in zip(group, errors, strict=True):
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
    finally:
        del _QUEUES[asyncio.get_running_loop(), saver]
        # If any future is left at this point, the event loop is ending and has
        # cancelled this asyncio task. So the futures are cancelled, and no coroutine
        # waits for them any longer.
        for done in (*group, *waiting):
            done.cancel()


def _commit_together(
    saver: BaseCheckpointSaver, batches: Sequence[Batch]
) -> list[Exception | None]:
    """Commit batches of different runs. Return the error of each batch, or None for a
    batch that was committed.
    """
    try:
        if batches:
            saver.commit(batches)
    except Exception as error:  # noqa: BLE001 - it is raised in the run that asked
        if len(batches) == 1:
            return [error]
        # Perhaps only one of the batches causes the error. So each batch is committed
        # alone, and those without an error are stored.
        return [_commit_together(saver, (batch,))[0] for batch in batches]
    return [None] * len(batches)
