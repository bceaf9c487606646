"""LangGraph: OS threads; without a saver, with one in memory, with one on SQLite."""

from __future__ import annotations

import contextlib
import itertools
import operator
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph import channels, pregel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.pregel._write import ChannelWriteEntry

from tests.benchmarks import work
from tests.benchmarks.model import Working
from tests.benchmarks.peers import functional

_threads = itertools.count()


def new_thread() -> str:
    """Return a thread id that was not used before."""
    return str(next(_threads))


@contextlib.contextmanager
def saver(kind: str | None, folder: Path) -> Iterator[Any]:
    """Yield a saver: None, ``memory``, or on SQLite."""
    if kind is None:
        yield None
    elif kind == "memory":
        yield InMemorySaver()
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(folder / "peer.db", check_same_thread=False)
        with contextlib.closing(connection):
            yield SqliteSaver(connection)


@contextlib.contextmanager
def steps(count: int, kept: str | None = None) -> Working:
    """Yield a cycle of *count* supersteps; the time is that of one."""
    entry = ChannelWriteEntry("v", skip_none=True)
    with work.folder() as folder, saver(kept, folder) as checkpointer:
        app = pregel.Pregel(
            nodes={
                "n": pregel.NodeBuilder()
                .subscribe_only("v")
                .do(work.UpTo(count))
                .write_to(entry)
            },
            channels={"v": channels.LastValue(int)},
            input_channels="v",
            output_channels="v",
            checkpointer=checkpointer,
        )
        run: Any = {} if kept in (None, "memory") else {"durability": kept}

        def turn() -> float:
            config: Any = {"configurable": {"thread_id": new_thread()}}
            config["recursion_limit"] = count + 10
            return work.seconds_of(lambda: app.invoke(0, config, **run), count)

        yield turn


@contextlib.contextmanager
def gather(count: int, kept: str | None = None, async_body: bool = False) -> Working:
    """Yield *count* trivial tasks, called at once and gathered; the time is that of
    one.
    """
    run: Any = {} if kept in (None, "memory") else {"durability": kept}
    with work.folder() as folder, saver(kept, folder) as checkpointer:
        flow = functional.gatherer(
            (entrypoint, task), async_body, checkpointer=checkpointer
        )
        yield lambda: functional.once(flow, count, async_body, new_thread(), **run)


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a flow that calls a task for each value; the time is that of all."""
    step = task(getattr(work, function))

    @entrypoint()
    def flow(items: list[Any]) -> int:
        return len([each.result() for each in [step(value) for value in items]])

    def turn() -> float:
        items = work.values(*given)
        return work.seconds_of(lambda: flow.invoke(items))

    yield turn


class Items(TypedDict):
    """The state of a fan-out."""

    o: Annotated[list[Any], operator.add]


@contextlib.contextmanager
def sends(function: str, given: list[Any], each: bool = False) -> Working:
    """Yield a graph that sends each value to a node; the time is that of all, or of
    each.
    """
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    items, called = work.values(*given), getattr(work, function)
    graph = StateGraph(Items)
    graph.add_node("w", lambda value: {"o": [called(value)]})
    graph.add_conditional_edges(START, lambda _: [Send("w", n) for n in items], ["w"])
    graph.add_edge("w", END)
    app = graph.compile()
    yield lambda: work.seconds_of(
        lambda: app.invoke({"o": []}), len(items) if each else 1
    )


@contextlib.contextmanager
def wide(channels: int, count: int) -> Working:
    """Yield a cycle among *channels* channels, in memory; the time is that of one
    superstep.
    """
    from langgraph.channels import LastValue

    entry = ChannelWriteEntry("v", skip_none=True)
    others = {f"c{number}": LastValue(int) for number in range(channels - 1)}
    node = pregel.NodeBuilder().subscribe_only("v").do(work.UpTo(count)).write_to(entry)
    app = pregel.Pregel(
        nodes={"n": node},
        channels={"v": LastValue(int), **others},
        input_channels=["v", *others],
        output_channels="v",
        checkpointer=InMemorySaver(),
    )
    given = {"v": 0, **dict.fromkeys(others, 1)}

    def turn() -> float:
        config: Any = {
            "configurable": {"thread_id": new_thread()},
            "recursion_limit": count + 10,
        }
        return work.seconds_of(lambda: app.invoke(given, config), count)

    yield turn


@contextlib.contextmanager
def resumed(count: int, kept: str = "memory") -> Working:
    """Yield a run with *count* finished tasks that is resumed; the time is that of
    one.
    """
    with (
        work.folder() as folder,
        saver(kept, folder) as checkpointer,
        functional.resumed((entrypoint, task), checkpointer, count, new_thread) as turn,
    ):
        yield turn


@contextlib.contextmanager
def appended(count: int, channel: str = "delta", durability: str = "sync") -> Working:
    """Yield a cycle that appends 200 bytes a superstep, on SQLite.

    Args:
        count: How many supersteps.
        channel: ``delta``, or ``plain`` for an ordinary reducer.
        durability: When a superstep is on disk.
    """
    from tests.benchmarks.peers import deltas

    log: Any = (
        channels.DeltaChannel(work.extend, list)
        if channel == "delta"
        else channels.BinaryOperatorAggregate(list, operator.add)
    )

    def turn() -> dict[str, float]:
        step = deltas.Step(count)
        node = (
            pregel.NodeBuilder()
            .subscribe_only("count")
            .write_to(
                ChannelWriteEntry("count", mapper=step, skip_none=True), log=work.item
            )
        )
        with work.folder() as folder, saver("sync", folder) as checkpointer:
            app = pregel.Pregel(
                nodes={"n": node},
                channels={"count": channels.LastValue(int), "log": log},
                input_channels="count",
                output_channels="count",
                checkpointer=checkpointer,
            )
            return deltas.figures(app, step, folder, durability)

    yield turn
