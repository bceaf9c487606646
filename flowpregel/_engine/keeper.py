"""Commits to a saver as durably as a run's mode says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import cache

from flowpregel._core.effects import Load
from flowpregel._core.records import Batch, Durability, Saved
from flowpregel._engine.elsewhere import elsewhere
from flowpregel._engine.writer import BackgroundWriter, finished
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver


class Committer:
    """A saver, used by one run.

    Args:
        saver: Where checkpoints are kept.
        durability: When a commit has to be on disk.
    """

    def __init__(self, saver: BaseCheckpointSaver, durability: Durability) -> None:
        self.saver = saver
        self.blocks = not saver.commits_at_once
        """Whether a commit is worth another OS thread when an event loop asks for it."""
        self._direct = durability is not Durability.ASYNC or saver.commits_at_once
        self._writer: BackgroundWriter | None = None

    def commit(self, batch: Batch) -> None:
        """Commit *batch*, or hand it to the background writer.

        The first batch of a run is always committed here, so that a store that
        cannot be written is noticed before the first task runs.
        """
        fault("keeper.commit.before")
        if self._writer is not None:
            self._writer.put(batch)
            fault("keeper.handed over")
            return
        self.saver.commit((batch,))
        self._committed(batch)

    async def commit_on_loop(self, batch: Batch) -> None:
        """`commit`, for a run on an event loop, which goes on meanwhile."""
        if self._writer is None:
            fault("keeper.commit.before")
            await _on_loop()(self.saver, batch)
            self._committed(batch)
        elif self._writer.is_full:
            await elsewhere(self.commit, batch)
        else:
            self.commit(batch)

    def _committed(self, batch: Batch) -> None:
        fault("keeper.commit.after", (batch,), finished)
        if not self._direct:
            self._writer = BackgroundWriter(self.saver)

    def load(self, load: Load) -> Saved | None:
        """Return what *load* asks for, this run's own commits included."""
        if self._writer is not None:
            self._writer.flush()
        fault("keeper.load.before")
        saved = self.saver.load(load.address, before=load.before, lazy_results=True)
        fault("keeper.load.after")
        return saved

    def close(self) -> None:
        """Wait until everything is committed.

        Raises:
            Exception: What a commit in the background raised.
        """
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()


@cache
def _on_loop() -> Callable[[BaseCheckpointSaver, Batch], Awaitable[None]]:
    """Return what commits on an event loop: to import it takes time at each commit."""
    from flowpregel._engine.loop_commits import commit_on_loop  # noqa: PLC0415 - imports asyncio

    return commit_on_loop


class Committers:
    """The keepers of one outermost run and of the runs nested in it: one for each saver."""

    def __init__(self) -> None:
        self._by_saver: dict[int, Committer] = {}

    def of(self, saver: BaseCheckpointSaver, durability: Durability) -> Committer:
        """Return the keeper of *saver*, the same each time."""
        if id(saver) not in self._by_saver:
            self._by_saver[id(saver)] = Committer(saver, durability)
        return self._by_saver[id(saver)]

    def close(self) -> None:
        """Wait until everything is committed, everywhere.

        Raises:
            Exception: What a commit in the background raised, the first of several.
        """
        with ExitStack() as closing:
            for keeper in reversed(self._by_saver.values()):
                closing.callback(keeper.close)
