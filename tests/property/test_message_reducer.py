"""`reduce_messages` merges any writes as `add_messages` merges them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel.channels import BinaryOperatorAggregate, DeltaChannel, Overwrite
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import (
    REMOVE_ALL_MESSAGES,
    START,
    StateGraph,
    add_messages,
    reduce_messages,
)
from flowpregel.graph.message import RemoveMessage

IDS = ("1", "2", "3", "4")


@dataclass(frozen=True)
class Note:
    """A message of the user's own kind."""

    content: int
    id: str


contents = st.integers(0, 9)
known_ids = st.sampled_from(IDS)
messages = st.one_of(
    st.builds(Note, contents, known_ids),
    st.builds(lambda content, id: {"content": content, "id": id}, contents, known_ids),
    st.builds(RemoveMessage, known_ids),
    st.just(RemoveMessage(REMOVE_ALL_MESSAGES)),
)
writes = st.one_of(messages, st.lists(messages, max_size=4))
write_lists = st.lists(writes, max_size=6)


def one_by_one(state: list[Any], written: Sequence[Any]) -> Any:
    """Return what `add_messages` makes of the writes, or the error's text."""
    try:
        for write in written:
            state = add_messages(state, write)
    except ValueError as error:
        return str(error)
    return state


def at_once(state: list[Any], written: Sequence[Any]) -> Any:
    """Return what `reduce_messages` makes of the writes, or the error's text."""
    before = [*state]
    try:
        return reduce_messages(state, written)
    except ValueError as error:
        return str(error)
    finally:
        assert before == state


@given(write_lists)
def test_writes_are_merged_as_one_by_one(written: list[Any]) -> None:
    """Replaced, removed, all removed, and what cannot be removed."""
    assert one_by_one([], written) == at_once([], written)


@given(write_lists, st.integers(0, 6))
def test_batches_do_not_matter(written: list[Any], cut: int) -> None:
    """A replay passes what many supersteps wrote in one batch."""
    whole = at_once([], written)

    first = at_once([], written[:cut])

    if isinstance(first, list):
        assert whole == at_once(first, written[cut:])


steps = st.lists(
    st.one_of(
        st.lists(writes, min_size=1, max_size=3),
        st.builds(lambda value: [Overwrite([Note(value, "1")])], contents),
        st.sampled_from(["copy", "reload", "modify"]),
    ),
    max_size=8,
)


@given(steps)
def test_a_channel_with_an_index_holds_what_one_without_holds(
    operations: list[Any],
) -> None:
    """Copied, rebuilt from its writes, changed by a node, or refusing a write."""
    plain = BinaryOperatorAggregate(list, add_messages)
    channel = DeltaChannel(reduce_messages, list).from_checkpoint(MISSING)
    batches: list[Any] = []
    for operation in operations:
        if operation == "copy":
            fork = channel.copy()
            fork.update([Note(99, "1")])
            fork.update([Note(98, "new")])
            channel = channel.copy()
        elif operation == "reload":
            channel = channel.from_checkpoint(MISSING)
            channel.replay(batches)
        elif operation == "modify":
            # A node must not do this, but the index must not make it worse.
            for value in (plain.value, channel.value):
                value.append(Note(50, f"own {len(value)}"))
            batches = [[Overwrite([*channel.get()])]]
        elif isinstance(one_by_one(plain.value, _unwrapped(operation)), str):
            with pytest.raises(ValueError, match="doesn't exist"):
                channel.update(operation)
        else:
            plain.update(operation)
            channel.update(operation)
            batches.append(operation)
        assert plain.get() == channel.get()


def _unwrapped(batch: list[Any]) -> list[Any]:
    """Return the writes of a batch, or none if it is an `Overwrite`."""
    return [] if isinstance(batch[0], Overwrite) else batch


class Whole(TypedDict):
    """A state whose messages are stored as a whole."""

    messages: Annotated[list[Any], add_messages]
    due: int


class Deltas(TypedDict):
    """A state of which each superstep stores what it wrote."""

    messages: Annotated[list[Any], DeltaChannel(reduce_messages, snapshot_frequency=3)]
    due: int


@given(
    st.lists(st.tuples(st.integers(0, 7), writes), min_size=1, max_size=6),
)
def test_forks_and_reloads_agree(edits: list[Any]) -> None:
    """Each edit starts at some checkpoint of the thread, in both kinds of state."""
    whole, deltas = thread(Whole), thread(Deltas)
    for position, write in edits:
        results = [edited(app, position, write) for app in (whole, deltas)]
        assert results[0] == results[1]
    histories = [
        [state.values.get("messages", []) for state in app.get_state_history(CONFIG)]
        for app in (whole, deltas)
    ]
    assert histories[0] == histories[1]


CONFIG = {"configurable": {"thread_id": "1"}}


def thread(schema: Any) -> Any:
    """Return a graph with a thread of a few messages."""
    builder = StateGraph(schema)
    builder.add_node("count", lambda state: {"due": len(state["messages"])})
    app = builder.add_edge(START, "count").compile(InMemorySaver(), executor="inline")
    for id in IDS[:3]:
        app.invoke({"messages": [Note(0, id)]}, CONFIG)
    return app


def edited(app: Any, position: int, write: Any) -> Any:
    """Write from the checkpoint at *position* on, and return the messages, or the
    error's text.
    """
    states = [*app.get_state_history(CONFIG)]
    config = states[position % len(states)].config
    try:
        config = app.update_state(config, {"messages": write}, as_node="count")
    except ValueError as error:
        return str(error).splitlines()[0]
    return app.invoke(None, config), app.get_state(config).values
