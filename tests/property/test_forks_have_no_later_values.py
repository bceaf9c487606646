"""A fork has the values of the checkpoint from which it was made, and its own writes.

Each operation on a thread writes its own number. So the number in a value names the
operation that wrote it, and a new checkpoint may differ from its parent only by the
number of the present operation.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver as TheirInMemorySaver

from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import StateGraph
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.types import Command
from tests.parity.sides import extend

CONFIG = {"configurable": {"thread_id": "1"}}
OPERATIONS = ("input", "command", "resume", "edit", "replay", "copy", "bulk", "answer")


def newer(_: str, text: str) -> str:
    """Return the later of two texts."""
    return text


class CountingSaver(InMemorySaver):
    """A saver whose versions are counted, as those of LangGraph's base class are."""

    def get_next_version(self, current: Any, channel: Any = None) -> Any:
        """Return the next number."""
        return int(current or 0) + 1


class CountingForeignSaver(TheirInMemorySaver):
    """The same, as a saver of LangGraph."""

    def get_next_version(self, current: Any, channel: Any) -> Any:
        """Return the next number."""
        return int(current or 0) + 1


@contextmanager
def on_disk(kind: Any, name: str) -> Iterator[Any]:
    """Yield a saver in a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(kind(f"{folder}/{name}")) as saver,
    ):
        yield saver


@contextmanager
def in_memory(kind: Any) -> Iterator[Any]:
    """Yield a saver in memory."""
    yield kind()


SAVERS = {
    "memory": partial(in_memory, InMemorySaver),
    "counting": partial(in_memory, CountingSaver),
    "langgraph": partial(in_memory, TheirInMemorySaver),
    "langgraph, counting": partial(in_memory, CountingForeignSaver),
    "lmdb": partial(on_disk, LMDBSaver, "runs.lmdb"),
    "sqlite": partial(on_disk, SQLiteSaver, "runs.db"),
}


class Story:
    """A thread, and the operations on it."""

    def __init__(self, saver: Any, frequency: int | None) -> None:
        self.number = 0
        """The number of the present operation."""
        self.inputs: set[int] = set()
        """The numbers of the operations that passed an input."""
        delta = DeltaChannel(extend, snapshot_frequency=frequency)

        fields = {
            "items": Annotated[list[int], operator.add],
            "log": Annotated[list[int], delta],
            "big": Annotated[str, newer],
        }
        state = TypedDict("State", fields, total=False)  # type: ignore[operator]

        def write(_: Any) -> Any:
            return self.written()

        builder = StateGraph(state).add_node("first", write).add_node("second", write)
        builder = builder.add_node("quiet", lambda _: {"big": "x" * 200})
        builder.add_edge("__start__", "first").add_edge("first", "quiet")
        builder.add_edge("quiet", "second")
        self.app = builder.compile(saver, executor="inline")

    def written(self) -> dict[str, Any]:
        """Return the writes of the present operation."""
        return {"items": [self.number], "log": [self.number], "big": str(self.number)}

    def states(self) -> dict[str, Any]:
        """Return the states of all checkpoints, by id."""
        states = self.app.get_state_history(CONFIG)
        return {
            state.config["configurable"]["checkpoint_id"]: state for state in states
        }

    def do(self, operation: str, back: int, stops: bool) -> str:
        """Perform an operation, at a past checkpoint where it needs one.

        Returns:
            The id of that checkpoint.
        """
        self.number += 1
        states = list(self.states().values())
        stop = {"interrupt_before": ["second"]} if stops else {}
        if not states or operation == "input":
            self.inputs.add(self.number)
            self.app.invoke(self.written(), CONFIG, **stop)
            return ""
        past = states[back % len(states)].config
        node = ("first", "quiet", "second")[back % 3]
        if operation == "command":
            self.app.invoke(Command(update=self.written(), goto=node), CONFIG, **stop)
        elif operation == "answer":
            command = Command(update=self.written(), goto=node)
            self.app.invoke(command, past, **stop)
        elif operation == "resume":
            self.app.invoke(None, CONFIG, **stop)
        elif operation == "replay":
            self.app.invoke(None, past, **stop)
        elif operation == "edit":
            self.app.update_state(past, self.written(), node)
        elif operation == "copy":
            self.app.update_state(past, None, "__copy__")
        else:
            updates = [[(self.written(), "first")], [(self.written(), node)]]
            self.app.bulk_update_state(past, updates)
        return past["configurable"]["checkpoint_id"]


@pytest.mark.parametrize("kind", SAVERS)
@settings(max_examples=max(10, settings().max_examples // 20))
@given(
    frequency=st.sampled_from([None, 1, 2, 3]),
    operations=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.booleans()),
        min_size=2,
        max_size=6,
    ),
)
@example(None, [("input", 0, True), ("command", 0, False), ("edit", 3, False)])
@example(None, [("input", 0, False), ("edit", 2, False), ("resume", 0, False)])
def test_a_checkpoint_adds_only_the_writes_of_its_own_operation(
    kind: str,
    frequency: int | None,
    operations: list[tuple[str, int, bool]],
) -> None:
    """Also in a fork of a fork, and for a channel that is stored as deltas."""
    with SAVERS[kind]() as saver:
        story = Story(saver, frequency)
        known: dict[str, list[int]] = {}
        """The items at each checkpoint when it was new, by id."""
        shown: dict[str, list[int]] = {}
        """The items that were shown last, with the pending writes of commands."""
        for operation, back, stops in operations:
            before = dict(known)
            newest = max(known, default="")
            source = story.do(operation, back, stops)
            states = story.states()
            for id_, state in sorted(states.items()):
                items = state.values["items"]
                assert items == state.values["log"]
                start = known.setdefault(id_, items)
                assert start == items[: len(start)]
                if id_ in before:
                    continue
                if operation == "copy" and source in before:
                    assert before[source] == items
                    continue
                parent = parent_of(state)
                start = known.get(parent, [])
                written = {story.number}
                if parent == newest or operation in ("replay", "answer"):
                    written.update(shown.get(parent, ())[len(start) :])
                if parent in states and "__start__" in states[parent].next:
                    # The input of an earlier operation had not been written yet.
                    written.update(story.inputs)
                assert start == items[: len(start)]
                assert {*items[len(start) :]} <= written
            shown = {id_: state.values["items"] for id_, state in states.items()}


def parent_of(state: Any) -> str:
    """Return the id of the parent of a state's checkpoint, or an empty text."""
    config = state.parent_config
    return "" if config is None else config["configurable"]["checkpoint_id"]
