"""The durable store under the engine: every superstep on disk, beside LangGraph on SQLite."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowpregel.channels import DeltaChannel, LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.pregel import NodeBuilder, Pregel
from tests.benchmarks.core import STEPS, cycle, peer_cycle
from tests.benchmarks.harness import OURS, Row, Side

HAS_SQLITE = importlib.util.find_spec("langgraph.checkpoint.sqlite") is not None
ITEM = "x" * 200


def folder() -> Path:
    """Return a new folder, on the disk that ``FLOWPREGEL_BENCH_FOLDER`` names."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("FLOWPREGEL_BENCH_FOLDER")))


def kept(app: Any, durability: str) -> Side:
    """Return a side that runs the cycle with every superstep kept."""
    turns = iter(range(1_000_000))

    def side() -> float:
        config = {"configurable": {"thread_id": str(next(turns))}, "recursion_limit": STEPS + 10}
        begun = time.perf_counter()
        assert app.invoke(0, config, durability=durability) == STEPS
        return (time.perf_counter() - begun) / STEPS

    return side


def sqlite() -> Any:
    """Return LangGraph's saver on a new SQLite file."""
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver(sqlite3.connect(folder() / "peer.db", check_same_thread=False))


def bare_commits() -> Side:
    """Return a side that commits one small record at a time to LMDB, and nothing else."""
    import lmdb

    environment = lmdb.open(str(folder() / "bare"), map_size=1 << 30)
    numbers = iter(range(1_000_000_000))

    def side() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            with environment.begin(write=True) as transaction:
                transaction.put(next(numbers).to_bytes(8, "big"), bytes(300))
        return (time.perf_counter() - begun) / STEPS

    return side


# ---------------------------------------------------------------- deltas


def extend(state: list[str], writes: list[list[str]]) -> list[str]:
    """Append everything that was written."""
    return [*state, *(item for write in writes for item in write)]


def append(_: int) -> list[str]:
    """Return one item of 200 bytes, not the same object as any other."""
    return [ITEM[:-8] + f"{time.perf_counter_ns() % 100_000_000:08}"]


def log_of(steps: int, **where: Any) -> Pregel:
    """Return a program that appends an item to a DeltaChannel in each superstep."""
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_only("count").write_to(count=Step(steps), log=append)},
        channels={"count": LastValue(int), "log": DeltaChannel(extend, list, **where)},
        input_channels="count",
        output_channels="count",
        executor="inline",
    )


class Step:
    """Counts up to a number, and then writes nothing."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, value: int) -> int | None:
        return value + 1 if value < self.steps else None


def deltas(steps: int, **where: Any) -> tuple[Pregel, Callable[[], float]]:
    """Return a program that appends, and a side that runs it on a new thread."""
    app = log_of(steps, **where).copy({"checkpointer": LMDBSaver(folder() / "deltas")})
    turns = iter(range(1_000_000))

    def side() -> float:
        thread = str(next(turns))
        begun = time.perf_counter()
        app.invoke(0, thread_id=thread, durability="sync", recursion_limit=steps + 10)
        return (time.perf_counter() - begun) / steps

    return app, side


def reading(steps: int, **where: Any) -> Side:
    """Return a side that opens a thread of *steps* appended items and reads its state."""
    app, side = deltas(steps, **where)
    side()

    def read() -> float:
        begun = time.perf_counter()
        assert len(app.get_state(thread_id="0").values["log"]) >= steps
        return time.perf_counter() - begun

    return read


def limit(seconds: float) -> Side:
    """Return a side that stands for a fixed limit."""
    return lambda: seconds


def rows() -> list[Row]:
    """Return the goals of the store."""
    sync: dict[str, Side] = {
        OURS: kept(cycle(LMDBSaver(folder() / "sync")), "sync"),
        "bare LMDB": bare_commits(),
    }
    behind: dict[str, Side] = {OURS: kept(cycle(LMDBSaver(folder() / "async")), "async")}
    if HAS_SQLITE:
        sync["langgraph"] = kept(peer_cycle(sqlite()), "sync")
        behind["langgraph"] = kept(peer_cycle(sqlite()), "async")
    return [
        Row(name="W2a", what="every superstep on disk, sync", unit="a step",
            sides=sync, against="langgraph", goal=0.33, repeats=3),
        Row(name="W2a'", what="the same beside a bare commit", unit="a step",
            sides={k: v for k, v in sync.items() if k != "langgraph"},
            against="bare LMDB", goal=1.35, repeats=3),
        Row(name="W2b", what="every superstep on disk, async", unit="a step",
            sides=behind, against="langgraph", goal=0.2, repeats=3),
        Row(name="W7", what="2,000 items appended to a DeltaChannel: a step", unit="a step",
            sides={OURS: deltas(2_000)[1], "500 items": deltas(500)[1]},
            against="500 items", goal=1.2, repeats=3),
        Row(name="W7r", what="state of 10,000 deltas, snapshots every 100", unit="once",
            sides={OURS: reading(10_000, snapshot_frequency=100), "10 ms": limit(0.01)},
            against="10 ms", goal=1.0),
        Row(name="W7r'", what="state of 10,000 deltas, no snapshots", unit="once",
            sides={OURS: reading(10_000), "40 ms": limit(0.04)},
            against="40 ms", goal=1.0),
    ]  # fmt: skip
