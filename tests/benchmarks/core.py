"""The engine alone: supersteps, sends, many channels, and the time to import it."""

from __future__ import annotations

import importlib.util
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from flowpregel._core.commands import Send
from flowpregel._core.records import TASKS
from flowpregel.channels import EphemeralValue, LastValue, Topic
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.pregel import Channel, ChannelWriteEntry, NodeBuilder, Pregel, PregelNode
from tests.benchmarks.harness import OURS, Row, Side

STEPS = 1_000
SENDS = 10_000
HAS_LANGGRAPH = importlib.util.find_spec("langgraph") is not None


def count_up(value: int) -> int | None:
    """Return the next number, None after the last."""
    return value + 1 if value < STEPS else None


def cycle(saver: Any = None) -> Pregel:
    """Return a program of one trivial node that triggers itself."""
    entry = ChannelWriteEntry("v", skip_none=True)
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_only("v").do(count_up).write_to(entry)},
        channels={"v": LastValue(int)},
        input_channels="v",
        output_channels="v",
        checkpointer=saver,
        executor="inline",
    )


def peer_cycle(saver: Any = None) -> Any:
    """Return the same program on LangGraph."""
    from langgraph import channels, pregel
    from langgraph.pregel._write import ChannelWriteEntry as Entry

    entry = Entry("v", skip_none=True)
    return pregel.Pregel(
        nodes={"n": pregel.NodeBuilder().subscribe_only("v").do(count_up).write_to(entry)},
        channels={"v": channels.LastValue(int)},
        input_channels="v",
        output_channels="v",
        checkpointer=saver,
    )


def steps_of(app: Any) -> Side:
    """Return a side that runs the cycle on a new thread, and the seconds of a superstep."""
    turns = iter(range(1_000_000))

    def side() -> float:
        config = {
            "configurable": {"thread_id": str(next(turns))},
            "recursion_limit": STEPS + 10,
        }
        begun = time.perf_counter()
        assert app.invoke(0, config) == STEPS
        return (time.perf_counter() - begun) / STEPS

    return side


def peer_saver() -> Any:
    """Return LangGraph's saver in memory."""
    from langgraph.checkpoint.memory import InMemorySaver as Peer

    return Peer()


# ---------------------------------------------------------------- sends


class Items(TypedDict):
    """The state of the peer's fan-out."""

    o: Annotated[list[int], operator.add]


class FanOut:
    """Writes a number of Sends."""

    def __init__(self, count: int, send: Callable[..., Any]) -> None:
        self.count, self.send = count, send

    def __call__(self, *_: Any) -> list[tuple[str, Any]]:
        return [(TASKS, [self.send("w", number) for number in range(self.count)])]


def same(value: int) -> int:
    """Return *value*: the trivial node."""
    return value


def sends(count: int) -> Side:
    """Return a side that sends to a trivial node, and the seconds of an item."""
    app = Pregel(
        nodes={
            "s": PregelNode(channels="i", triggers=["i"], writers=[FanOut(count, Send)]),
            "w": PregelNode(channels=[], triggers=[], bound=same) | Channel.write_to("o"),
        },
        channels={"i": EphemeralValue(int), "o": Topic(int, accumulate=True)},
        input_channels="i",
        output_channels="o",
        executor="inline",
    )
    return _sent(app, count, 0)


def peer_sends(count: int) -> Side:
    """Return the same on LangGraph, by its StateGraph."""
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send as PeerSend

    graph = StateGraph(Items)
    graph.add_node("w", lambda value: {"o": [value]})
    graph.add_conditional_edges(START, lambda _: [PeerSend("w", n) for n in range(count)], ["w"])
    graph.add_edge("w", END)
    return _sent(graph.compile(), count, {"o": []})


def _sent(app: Any, count: int, given: Any) -> Side:
    def side() -> float:
        begun = time.perf_counter()
        found = app.invoke(given)
        taken = time.perf_counter() - begun
        assert len(found["o"] if isinstance(found, dict) else found) == count
        return taken / count

    return side


# ---------------------------------------------------------------- many channels


def wide(channels: int, saver: Any = None) -> Pregel:
    """Return the cycle among *channels* channels that hold a value each."""
    entry = ChannelWriteEntry("v", skip_none=True)
    others = {f"c{number}": LastValue(int) for number in range(channels - 1)}
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_only("v").do(count_up).write_to(entry)},
        channels={"v": LastValue(int), **others},
        input_channels=["v", *others],
        output_channels="v",
        checkpointer=saver,
        executor="inline",
    )


def wide_steps(channels: int) -> Side:
    """Return a side that runs the wide cycle with the in-memory saver."""
    app = wide(channels, InMemorySaver())
    given = {"v": 0, **{f"c{number}": number for number in range(channels - 1)}}
    turns = iter(range(1_000_000))

    def side() -> float:
        begun = time.perf_counter()
        assert app.invoke(given, thread_id=str(next(turns))) == STEPS
        return (time.perf_counter() - begun) / STEPS

    return side


# ---------------------------------------------------------------- import


def import_time(module: str) -> Side:
    """Return a side that imports *module* in a new process, and the seconds it took.

    With bytecode at hand, as an installed package has it.
    """
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"

    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def side() -> float:
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, capture_output=True, check=True, env=environment)
        return float(found.stdout)

    side()
    return side


def limit(seconds: float) -> Side:
    """Return a side that stands for a fixed limit."""
    return lambda: seconds


def rows() -> list[Row]:
    """Return the goals of the engine."""
    plain, kept = {OURS: steps_of(cycle())}, {OURS: steps_of(cycle(InMemorySaver()))}
    sent = {OURS: sends(SENDS)}
    if HAS_LANGGRAPH:
        plain["langgraph"] = steps_of(peer_cycle())
        kept["langgraph"] = steps_of(peer_cycle(peer_saver()))
        sent["langgraph"] = peer_sends(SENDS)
    return [
        Row(name="W1a", what="cycle of 1,000 supersteps, no saver", unit="a step",
            sides=plain, against="langgraph", goal=0.33),
        Row(name="W1b", what="the same with the in-memory saver", unit="a step",
            sides=kept, against="langgraph", goal=0.35),
        Row(name="W5c", what="10,000 Sends, inline", unit="an item",
            sides=sent, against="langgraph", goal=0.1, repeats=3),
        Row(name="W5c'", what="10,000 Sends beside 1,000", unit="an item",
            sides={OURS: sends(SENDS), "1,000 Sends": sends(1_000)},
            against="1,000 Sends", goal=1.5),
        Row(name="W9", what="1,000 channels, one written a step", unit="a step",
            sides={OURS: wide_steps(1_000), "10 channels": wide_steps(10)},
            against="10 channels", goal=1.5),
        Row(name="W8", what="import flowpregel", unit="once",
            sides={OURS: import_time("flowpregel.pregel"), "80 ms": limit(0.08)},
            against="80 ms", goal=1.0),
    ]  # fmt: skip
