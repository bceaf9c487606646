"""Workflows that the crash harness kills; a module of its own, so that a run imports little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowpregel._core.records import Address, Batch, Saved
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.testing.crash import effect

TASKS = 6


@task
def square(n: int) -> int:
    """Return a square, and tell that it was computed."""
    effect(f"square {n}")
    return n * n


def run(saver: Any, executor: Any, durability: Any = "sync", tasks: int = TASKS) -> int:
    """Run the workflow on *saver*: its tasks two by two, so that there are several commits."""

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(n: int) -> int:
        total = 0
        for first in range(0, n, 2):
            total += sum(future.result() for future in square.map(range(first, first + 2)))
        return total

    result: int = flow.invoke(tasks, thread_id="1", run_id="one", durability=durability)
    return result


def inline(folder: Path) -> int:
    """All of it in one process."""
    with LMDBSaver(folder / "store") as saver:
        return run(saver, "inline")


def short(folder: Path) -> int:
    """Two tasks only."""
    with LMDBSaver(folder / "store") as saver:
        return run(saver, "inline", tasks=2)


def threads(folder: Path) -> int:
    """Tasks in OS threads."""
    with LMDBSaver(folder / "store") as saver:
        return run(saver, "threads")


def processes(folder: Path) -> int:
    """Tasks in a worker process: one, so that each run passes the same points."""
    with LMDBSaver(folder / "store") as saver, ProcessExecutor(1) as pool:
        return run(saver, pool)


def lagging(folder: Path) -> int:
    """Commits in the background."""
    with LMDBSaver(folder / "store") as saver:
        return run(saver, "inline", "async")


def at_exit(folder: Path) -> int:
    """One commit, at the end."""
    with LMDBSaver(folder / "store") as saver:
        return run(saver, "inline", "exit")


class EarlySaver(LMDBSaver):
    """Says that pending writes are committed, and commits them with the next superstep."""

    waiting: tuple[Batch, ...] = ()

    def commit(self, batches: Sequence[Batch]) -> None:
        """Commit when there is a checkpoint."""
        self.waiting += tuple(batches)
        if any(batch.checkpoint is not None for batch in batches):
            super().commit(self.waiting)
            self.waiting = ()


def early(folder: Path) -> int:
    """On a saver that acknowledges before it commits."""
    with EarlySaver(folder / "store") as saver:
        return run(saver, "inline")


class TwiceSaver(LMDBSaver):
    """Forgets every pending write when a thread is loaded: tasks run again."""

    def load(self, address: Address, *, before: str | None = None) -> Saved | None:
        """Return the checkpoint without its pending writes."""
        saved = super().load(address, before=before)
        return None if saved is None else replace(saved, writes=())


def forgetful(folder: Path) -> int:
    """On a saver that loses pending writes."""
    with TwiceSaver(folder / "store") as saver:
        return run(saver, "inline")
