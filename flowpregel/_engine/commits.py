"""Commits to savers, in the durability mode of a run, and results that runs share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flowpregel._core.effects import BUSY, Load
from flowpregel._core.records import CONTROL_WRITES, Batch, Durability, Saved
from flowpregel._fault import fault
from flowpregel.cache.base import BaseCache, FullKey
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

MOST_BEHIND: Final = 32
"""The most waiting batches, which a crash can lose with ``durability="async"``."""
LONGEST_BEHIND: Final = 0.05
"""Seconds that a commit may take before the run waits for it, on a slow disk."""
ENOUGH: Final = MOST_BEHIND // 2
"""Batches that are worth a transaction; as many may arrive while it is committed."""
_PAUSE: Final = 0.005


class Committer:
    """A saver, used by one run.

    Args:
        saver: The saver that keeps the checkpoints.
        durability: The time at which a commit has to be on disk.
    """

    def __init__(self, saver: BaseCheckpointSaver, durability: Durability) -> None:
        self.saver = saver
        self.blocks = not saver.commits_at_once
        """True if a commit would block an event loop."""
        self._in_background = durability is Durability.ASYNC and self.blocks
        self.writer: BackgroundWriter | None = None
        """The background writer, after the first commit of the run."""

    def commit(self, batch: Batch) -> None:
        """Commit *batch*, or hand it to the background writer.

        The first batch of a run is always committed here, so that a store that cannot
        be written is noticed before the first task runs.
        """
        fault("committer.commit.before")
        batch = self.saver.prepare(batch)
        if self.writer is not None:
            self.writer.put(batch)
            fault("committer.handed over")
            return
        if self.saver.needs_loop:
            self._check_loop()
        self.saver.commit((batch,))
        fault("committer.commit.after", (batch,), finished)
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
        fault("committer.commit.before")
        # Bodies on this loop continue while another OS thread commits.
        batch = self.saver.prepare(batch)
        await _commit_with_others(self.saver, batch)
        fault("committer.commit.after", (batch,), finished)
        if self._in_background:
            self.writer = BackgroundWriter(self.saver)

    def load(self, load: Load) -> Saved | None:
        """Return the checkpoint that *load* names, including this run's own commits."""
        if self.saver.needs_loop:
            self._check_loop()
        if self.writer is not None:
            self.writer.flush()
        fault("committer.load.before")
        saved = self.saver.load(load.address, before=load.before, lazy_results=True)
        fault("committer.load.after")
        return saved

    def _check_loop(self) -> None:
        if self.saver.is_on_its_loop:
            raise RuntimeError(
                "a sync node that runs inline on the event loop of its saver cannot "
                "call a graph "
                "or wait for a task: the saver needs that loop. Give the node "
                'executor="threads" or "processes", or make it async'
            )


@dataclass(slots=True, eq=False)
class Committers:
    """The committers of one outermost run and of the runs nested in it: one for each
    saver.
    """

    _by_saver: dict[BaseCheckpointSaver, Committer] = field(default_factory=dict)

    def of(self, saver: BaseCheckpointSaver, durability: Durability) -> Committer:
        """Return the committer of *saver*, the same each time."""
        return self._by_saver.setdefault(saver, Committer(saver, durability))

    def close(self) -> None:
        """Wait until everything is committed to all savers.

        Raises:
            Exception: The error of a commit in the background; if several fail, the
                error of the first saver.
        """
        with ExitStack() as closing:
            for committer in self._by_saver.values():
                if committer.writer is not None:
                    closing.callback(committer.writer.close)
                    committer.writer = None

    async def close_on_loop(self) -> None:
        """Close on another OS thread if a saver may need the running event loop for it.

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


def finished(batches: Iterable[Batch]) -> str:
    """Return the ids of tasks with results in *batches*, for the trace of a test."""
    return " ".join(
        writes.task_id
        for batch in batches
        for writes in batch.writes
        if any(channel not in CONTROL_WRITES for channel, _ in writes.writes)
    )


# -------------------------------------------------------------------- in the background


class BackgroundWriter:
    """An OS thread that commits batches, all waiting ones in one transaction.

    A transaction costs as much for one batch as for many. So a few batches wait a short
    time for others.

    Args:
        saver: The saver to commit to.
        pause: Seconds for which fewer than `ENOUGH` batches wait.
    """

    def __init__(self, saver: BaseCheckpointSaver, pause: float = _PAUSE) -> None:
        self._saver = saver
        self._pause = pause
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._busy, self._began = 0, 0.0
        """The number of batches in the current commit, and the monotonic seconds at
        which it began.
        """
        self._error: BaseException | None = None
        self._is_awaited = False
        """True if the run waits until everything is committed."""
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._work, name="flowpregel-writer", daemon=True
        )
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """True if `put` would wait."""
        if self._error is not None:
            return False
        is_late = self._busy > 0 and time.monotonic() - self._began > LONGEST_BEHIND
        return is_late or len(self._waiting) + self._busy >= MOST_BEHIND

    def put(self, batch: Batch) -> None:
        """Hand over *batch*; first wait while too many batches are waiting.

        Raises:
            Exception: The error of an earlier commit; nothing was committed after it.
        """
        with self._changed:
            while self.is_full:
                self._changed.wait()
            self._check()
            self._waiting.append(batch)
            if len(self._waiting) in (1, ENOUGH):
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything that was handed over is committed.

        Raises:
            Exception: The error of a commit.
        """
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            try:
                while (self._waiting or self._busy) and self._error is None:
                    self._changed.wait()
            finally:
                self._is_awaited = False
            self._check()

    def close(self) -> None:
        """Commit the batches that wait, end the OS thread, and raise the error of a
        commit.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while batches := self._take():
            error: BaseException | None = None
            try:
                fault("writer.commit.before")
                self._saver.commit(batches)
                fault("writer.commit.after", batches, finished)
            except BaseException as raised:  # noqa: BLE001 - raised where the run waits
                error = raised
            with self._changed:
                self._busy, self._error = 0, error
                self._changed.notify_all()
            if error is not None:
                return

    def _take(self) -> list[Batch]:
        """Wait for batches, and take them; the list is empty once the writer closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._changed.wait_for(
                lambda: (
                    len(self._waiting) >= ENOUGH or self._is_awaited or self._is_closing
                ),
                self._pause,
            )
            batches = list(self._waiting)
            self._waiting.clear()
            self._busy, self._began = len(batches), time.monotonic()
            return batches


# -------------------------------------------------------------------- on an event loop

Awaited: TypeAlias = "dict[asyncio.Future[None], Batch]"
"""Batches, in order, by the future of each commit."""

_QUEUES: dict[
    tuple[asyncio.AbstractEventLoop, BaseCheckpointSaver],
    tuple[Awaited, asyncio.Task[None]],
] = {}
"""The batches of the runs on an event loop, and the task that commits them to a saver.

While one commit is under way on another OS thread, the loop moves the other runs. Their
batches gather here and go together in the next commit. The task is referenced here,
since an event loop does not keep tasks alive.
"""


def _commit_with_others(
    saver: BaseCheckpointSaver, batch: Batch
) -> asyncio.Future[None]:
    """Queue *batch* for a commit beside the running event loop; return its future.

    The future fails with the saver's error for this batch. If the future is cancelled
    while the batch waits, the batch is not committed: the run ends and commits the
    remaining work itself, and no older batch may follow that.
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
        # Futures are left only if the loop is ending, and this task with it.
        for done in (*group, *waiting):
            done.cancel()


def _commit_together(
    saver: BaseCheckpointSaver, batches: Sequence[Batch]
) -> list[Exception | None]:
    """Commit batches of different runs; return the error of each, or None."""
    try:
        if batches:
            saver.commit(batches)
    except Exception as error:  # noqa: BLE001 - it is raised in the run that asked
        if len(batches) == 1:
            return [error]
        # A single batch may be the cause, so commit each batch on its own: the others
        # are then stored.
        return [_commit_together(saver, (batch,))[0] for batch in batches]
    return [None] * len(batches)


# results that runs share ---------------------------------------------------


class SharedResults:
    """The cache of a run, with claims: one run claims a missing key and computes the
    result, and the others wait.

    Args:
        cache: The cache, or None if the run has none.
    """

    def __init__(self, cache: BaseCache | None) -> None:
        self._cache, self._claims = cache, dict[FullKey, ExitStack]()

    def look(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of *keys*, with `BUSY` for a key whose value another run
        computes.

        Raises:
            ConfigurationError: There is no cache.
        """
        if self._cache is None:
            raise ConfigurationError(
                f"{keys[0][0][2]!r} shares its results, and the run has nowhere to "
                "keep "
                "them: give the entrypoint or the graph a checkpointer, or "
                'cache="results.lmdb"'
            )
        values = self._cache.get(keys)
        missing = [key for key in keys if key not in values]
        unclaimed = [key for key in missing if key not in self._claims]
        try:
            busy = {key: BUSY for key in missing if not self._claim(key)}
            if missing:
                # Look again: another run may have shared a result before the claim.
                values |= self._cache.get(missing)
        except BaseException:
            self._release(unclaimed)
            raise
        self._release([*values])
        return busy | values

    def share(self, entries: Mapping[FullKey, tuple[Any, float | None] | None]) -> None:
        """Store values, each with the seconds for which it may be used, and release
        their claims; an entry of None has no value.
        """
        results = {key: entry for key, entry in entries.items() if entry is not None}
        try:
            if self._cache is not None:
                self._cache.set(results)
        finally:
            self._release([*entries])

    def close(self) -> None:
        """Release the claims of this run on shared results."""
        self._release([*self._claims])

    def _claim(self, key: FullKey) -> bool:
        assert self._cache is not None
        if key in self._claims:
            return False
        with ExitStack() as claim:
            if claim.enter_context(self._cache.claim(key)):
                self._claims[key] = claim.pop_all()
                return True
        return False

    def _release(self, keys: Sequence[FullKey]) -> None:
        for key in keys:
            if key in self._claims:
                self._claims.pop(key).close()
