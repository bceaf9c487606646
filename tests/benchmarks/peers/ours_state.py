"""flowpregel's channels and savers: sends, many channels, a state that grows,
resuming.
"""

from __future__ import annotations

import contextlib
from typing import Any

from flowpregel._core.commands import Send
from flowpregel._core.records import TASKS
from flowpregel.channels import DeltaChannel, EphemeralValue, LastValue, Topic
from flowpregel.func import entrypoint, task
from flowpregel.pregel import (
    Channel,
    ChannelWriteEntry,
    NodeBuilder,
    Pregel,
    PregelNode,
)
from tests.benchmarks import work
from tests.benchmarks.model import Working
from tests.benchmarks.peers import deltas, functional
from tests.benchmarks.peers.ours import durable_saver, new_thread, saver


class FanOut:
    """Writes a Send for each of *count* numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, *_: Any) -> list[tuple[str, Any]]:
        return [(TASKS, [Send("w", number) for number in range(self.count)])]


@contextlib.contextmanager
def sends(count: int) -> Working:
    """Yield a program that sends to a trivial node, inline; the time is that of one."""
    app = Pregel(
        nodes={
            "s": PregelNode(channels="i", triggers=["i"], writers=[FanOut(count)]),
            "w": PregelNode(channels=[], triggers=[], bound=work.same)
            | Channel.write_to("o"),
        },
        channels={"i": EphemeralValue(int), "o": Topic(int, accumulate=True)},
        input_channels="i",
        output_channels="o",
        executor="inline",
    )

    def turn() -> float:
        found: list[int] = []
        seconds = work.seconds_of(lambda: found.extend(app.invoke(0)), count)
        assert len(found) == count
        return seconds

    yield turn


@contextlib.contextmanager
def wide(channels: int, count: int, kept: str = "memory") -> Working:
    """Yield a cycle among *channels* channels; the time is that of one superstep."""
    entry = ChannelWriteEntry("v", skip_none=True)
    others = {f"c{number}": LastValue(int) for number in range(channels - 1)}
    given = {"v": 0, **dict.fromkeys(others, 1)}
    run: Any = {"recursion_limit": count + 10}
    if kept != "memory":
        run["durability"] = kept
    with work.folder() as folder:
        app = Pregel(
            nodes={
                "n": NodeBuilder()
                .subscribe_only("v")
                .do(work.UpTo(count))
                .write_to(entry)
            },
            channels={"v": LastValue(int), **others},
            input_channels=["v", *others],
            output_channels="v",
            checkpointer=saver(kept, folder),
            executor="inline",
        )
        yield lambda: work.seconds_of(
            lambda: app.invoke(given, thread_id=new_thread(), **run), count
        )


@contextlib.contextmanager
def appended(
    count: int,
    durability: str = "sync",
    snapshots: int | None = None,
    store: str = "lmdb",
) -> Working:
    """Yield a cycle that appends 200 bytes to a DeltaChannel a superstep, on disk.

    Args:
        count: How many supersteps.
        durability: When a superstep is on disk.
        snapshots: How many of them to a snapshot; None for no snapshots.
        store: The engine on disk.
    """

    def turn() -> dict[str, float]:
        step = deltas.Step(count)
        node = NodeBuilder().subscribe_only("count").write_to(count=step, log=work.item)
        with work.folder() as folder, durable_saver(folder, store) as checkpointer:
            app = Pregel(
                nodes={"n": node},
                channels={
                    "count": LastValue(int),
                    "log": DeltaChannel(
                        work.extend, list, snapshot_frequency=snapshots
                    ),
                },
                input_channels="count",
                output_channels="count",
                checkpointer=checkpointer,
                executor="inline",
            )
            return deltas.figures(app, step, folder, durability)

    yield turn


@contextlib.contextmanager
def resumed(count: int, kept: str = "memory", executor: str = "threads") -> Working:
    """Yield a run with *count* finished tasks that is resumed; the time is that of
    one.
    """
    with (
        work.folder() as folder,
        functional.resumed(
            (entrypoint, task),
            saver(kept, folder),
            count,
            new_thread,
            executor=executor,
        ) as turn,
    ):
        yield turn
