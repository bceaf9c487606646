"""Workflows that the crash harness kills; a module of its own, so that a run imports
little.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from flowpregel import START, Command, Send, StateGraph, interrupt
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
    """Run the workflow on *saver*: its tasks two by two, so that there are several
    commits.
    """

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(n: int) -> int:
        total = 0
        for first in range(0, n, 2):
            total += sum(
                future.result() for future in square.map(range(first, first + 2))
            )
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
    """Says that pending writes are committed, and commits them with the next
    superstep.
    """

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

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        """Return the checkpoint without its pending writes."""
        saved = super().load(address, before=before, lazy_results=lazy_results)
        return None if saved is None else replace(saved, writes=(), lazy_results=None)


def forgetful(folder: Path) -> int:
    """On a saver that loses pending writes."""
    with TwiceSaver(folder / "store") as saver:
        return run(saver, "inline")


@task
def approve(n: int) -> str:
    """Ask, and tell what was answered."""
    answer = interrupt(f"{n}?")
    effect(f"approved {n}")
    return f"{n} {answer}"


def asking(folder: Path) -> Any:
    """A workflow that asks, and is answered."""
    with LMDBSaver(folder / "store") as saver:

        @entrypoint(checkpointer=saver, executor="inline")
        def flow(n: int) -> str:
            return approve(square(n).result()).result()

        result = flow.invoke(3, thread_id="1", run_id="one", durability="sync")
        if "__interrupt__" in result:
            result = flow.invoke(
                Command(resume="yes"), thread_id="1", durability="sync"
            )
        return result


class Notes(TypedDict, total=False):
    """What the nodes of the graph wrote."""

    n: int
    notes: Annotated[list[str], operator.add]


def noting(name: str) -> Any:
    """Return a node that writes its name."""

    def node(state: Notes) -> dict[str, Any]:
        effect(f"{name} {state['n']}")
        return {"notes": [name]}

    return node


def graph(folder: Path) -> Any:
    """Two nodes side by side, one of them a graph, and one after both."""
    inner = StateGraph(Notes)
    inner.add_node("deep", noting("deep"))
    inner.add_node("deeper", noting("deeper"))
    inner.add_edge(START, "deep")
    inner.add_edge("deep", "deeper")
    outer = StateGraph(Notes)
    outer.add_node("left", noting("left"))
    outer.add_node("right", inner.compile())
    outer.add_node("last", noting("last"))
    outer.add_edge(START, "left")
    outer.add_edge(START, "right")
    outer.add_edge(["left", "right"], "last")
    with LMDBSaver(folder / "store") as saver:
        app = outer.compile(checkpointer=saver)
        return app.invoke(
            {"n": 1, "notes": []}, thread_id="1", run_id="one", durability="sync"
        )


HUNDRED = 100


@task
def one_of_many(n: int) -> int:
    """Return a square, after a millisecond's work; the trace has who ran."""
    time.sleep(0.001)
    return n * n


def hundred(folder: Path) -> int:
    """A superstep of a hundred calls, in `sync`."""
    with LMDBSaver(folder / "store") as saver:

        @entrypoint(checkpointer=saver, executor="inline")
        def flow(n: int) -> int:
            return sum(future.result() for future in one_of_many.map(range(n)))

        result: int = flow.invoke(
            HUNDRED, thread_id="1", run_id="one", durability="sync"
        )
        return result


class Wanted(TypedDict, total=False):
    """What the nodes of a graph with sends wrote."""

    squares: Annotated[list[int], operator.add]


def square_of(n: int) -> Wanted:
    """Return a square, after a millisecond's work."""
    time.sleep(0.001)
    return {"squares": [n * n]}


def hundred_sends(folder: Path) -> int:
    """A superstep of a hundred sends, in `sync`."""
    graph = StateGraph(Wanted)
    graph.add_node("square", square_of)
    graph.add_conditional_edges(
        START, lambda _: [Send("square", n) for n in range(HUNDRED)], ["square"]
    )
    with LMDBSaver(folder / "store") as saver:
        app = graph.compile(checkpointer=saver, executor="inline")
        given: Any = {"squares": []}
        found = app.invoke(given, thread_id="1", run_id="one", durability="sync")
        return sum(found["squares"])


def forking(folder: Path) -> Any:
    """Run, go back to before the last node, change the past, and go on from there."""
    graph = StateGraph(Notes)
    for name in ("first", "second", "third"):
        graph.add_node(name, noting(name))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", "third")
    asked: Any = {"thread_id": "1", "durability": "sync"}
    with LMDBSaver(folder / "store") as saver:
        app = graph.compile(checkpointer=saver, executor="inline")
        if not any(state.metadata["source"] == "update" for state in _history(app)):
            app.invoke({"n": 1, "notes": []}, run_id="one", **asked)
            (before,) = [state for state in _history(app) if state.next == ("third",)]
            app.update_state(before.config, {"notes": ["changed"]})
        return app.invoke(None, **asked)["notes"]


def _history(app: Any) -> list[Any]:
    return [*app.get_state_history(thread_id="1")]
