"""A message has one id, from the moment it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.cache.memory import InMemoryCache
from flowpregel.channels import DeltaChannel, LastValue, Overwrite
from flowpregel.channels.binop import BinaryOperatorAggregate
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import (
    START,
    StateGraph,
    add_messages,
    message_reducer,
    reduce_messages,
)
from flowpregel.graph.message import messages_with_ids
from flowpregel.policies import CachePolicy
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.types import Command, interrupt

CONFIG = {"configurable": {"thread_id": "1"}}


@dataclass
class Note:
    """A message of the user's own kind."""

    content: str
    id: str | None = None


class Whole(TypedDict):
    """A state whose messages are stored as a whole."""

    messages: Annotated[list[Any], add_messages]


class Deltas(TypedDict):
    """A state of which each superstep stores what it wrote."""

    messages: Annotated[list[Any], DeltaChannel(reduce_messages)]


@message_reducer
def keep_last_two(left: list[Any], right: Any) -> list[Any]:
    """Merge messages, and keep the last two."""
    return add_messages(left, right)[-2:]


class Trimmed(TypedDict):
    """A state with a reducer of the user's own."""

    messages: Annotated[list[Any], keep_last_two]


def answer(state: Any) -> Any:
    """Write messages in each form that has no id."""
    return {"messages": [Note("a"), {"content": "b"}, ("user", "c"), "d"]}


def ids(messages: Any) -> list[str | None]:
    """Return the ids of messages."""
    return [
        message.get("id") if isinstance(message, dict) else message.id
        for message in messages
    ]


def graph(schema: Any, *nodes: Callable[..., Any], **options: Any) -> Any:
    """Return a compiled graph of *nodes*, one after the other."""
    builder = StateGraph(schema).add_sequence([*nodes])
    builder.add_edge(START, nodes[0].__name__)
    return builder.compile(**{"executor": "inline", **options})


@pytest.mark.parametrize("schema", [Whole, Deltas, Trimmed])
def test_updates_values_and_state_have_the_same_ids(
    schema: Any, tmp_path: Path
) -> None:
    """And so has each read of the thread, by another program too."""
    app = graph(schema, answer, checkpointer=LMDBSaver(tmp_path))
    modes = ["updates", "values", "tasks"]

    events = [*app.stream({"messages": []}, CONFIG, stream_mode=modes)]

    shown = dict(events)
    update = ids(shown["updates"]["answer"]["messages"])
    assert None not in update
    assert 4 == len({*update})
    assert update == ids(shown["tasks"]["result"]["messages"])
    last = update[-2:] if schema is Trimmed else update
    assert last == ids(shown["values"]["messages"])
    again = graph(schema, answer, checkpointer=LMDBSaver(tmp_path))
    for reader in (app, again):
        reads = [ids(reader.get_state(CONFIG).values["messages"]) for _ in range(2)]
        assert [last, last] == reads


@pytest.mark.parametrize("schema", [Whole, Deltas])
def test_the_ids_of_a_paused_superstep_stay(schema: Any) -> None:
    """A finished task's messages are shown before the barrier, and after it."""

    def ask(state: Any) -> Any:
        return {"messages": [{"content": interrupt("what?"), "id": "last"}]}

    builder = StateGraph(schema).add_node(answer).add_node(ask)
    builder.add_edge(START, "answer").add_edge(START, "ask")
    app = builder.compile(InMemorySaver(), executor="inline")

    asked = ids(app.invoke({"messages": []}, CONFIG)["messages"])
    pending = ids(app.get_state(CONFIG).values["messages"])
    resumed = [*app.stream(Command(resume="x"), CONFIG, stream_mode=["updates"])]

    (cached,) = [update["answer"] for _, update in resumed if "answer" in update]
    assert asked == pending == ids(cached["messages"])
    assert [*asked, "last"] == ids(app.get_state(CONFIG).values["messages"])


@pytest.mark.parametrize("schema", [Whole, Deltas])
def test_edits_and_commands_give_ids_too(schema: Any) -> None:
    """`update_state` and ``Command(update=)``, each time new ones."""
    app = graph(schema, answer, checkpointer=InMemorySaver())
    app.invoke({"messages": []}, CONFIG)

    app.update_state(CONFIG, {"messages": ["e"]}, as_node="answer")
    app.update_state(CONFIG, {"messages": ["e"]}, as_node="answer")
    app.invoke(Command(update={"messages": ["f"]}), CONFIG)

    first, second = (ids(app.get_state(CONFIG).values["messages"]) for _ in range(2))
    assert first == second
    assert 7 == len({*first})
    assert None not in first


def test_the_input_of_a_plain_pregel_gets_ids() -> None:
    """Its input goes into the channel itself, in a run and in an edit."""
    echo = NodeBuilder().subscribe_only("messages").do(ids).write_to("ids")
    app = Pregel(
        nodes={"echo": echo},
        channels={
            "messages": DeltaChannel(reduce_messages),
            "ids": LastValue(list),
        },
        input_channels=["messages"],
        output_channels=["messages", "ids"],
        checkpointer=InMemorySaver(),
        executor="inline",
    )

    output = app.invoke({"messages": ["a", Note("b")]}, CONFIG)
    app.update_state(CONFIG, {"messages": "c"}, as_node="__input__")

    assert output["ids"] == ids(output["messages"])
    first, second = (ids(app.get_state(CONFIG).values["messages"]) for _ in range(2))
    assert first == second
    assert output["ids"] == first[:2]
    assert 3 == len({*first})


def test_a_condition_sees_the_ids_of_the_state() -> None:
    """The path function gets what its node wrote, with the ids that it will have."""
    seen: list[Any] = []

    def path(state: Any) -> str:
        seen.extend(ids(state["messages"]))
        return "__end__"

    builder = StateGraph(Whole).add_node(answer).add_edge(START, "answer")
    app = builder.add_conditional_edges("answer", path).compile(executor="inline")

    result = app.invoke({"messages": []})

    assert ids(result["messages"]) == seen


def test_a_shared_result_gets_ids_of_its_own() -> None:
    """A message from the cache is a new message, in the same thread too."""
    builder = StateGraph(Whole)
    builder.add_node("again", lambda _: {"messages": []})
    builder.add_node(answer, cache_policy=CachePolicy(key_func=lambda _: "same"))
    builder.add_edge(START, "answer")
    app = builder.compile(InMemorySaver(), cache=InMemoryCache(), executor="inline")

    app.invoke({"messages": []}, CONFIG)
    (update,) = app.stream({"messages": []}, CONFIG, stream_mode="updates")

    messages = app.get_state(CONFIG).values["messages"]
    assert {"cached": True} == update["__metadata__"]
    assert ids(messages)[4:] == ids(update["answer"]["messages"])
    assert 8 == len({*ids(messages)})


def test_a_task_that_runs_again_gives_the_same_ids() -> None:
    """The id is made from the task, so a crash before the commit changes nothing."""
    first = messages_with_ids([{"content": "a"}, "b"], "task 1")

    assert first == messages_with_ids([{"content": "a"}, "b"], "task 1")
    assert ids(first) != ids(messages_with_ids([{"content": "a"}, "b"], "task 2"))


def test_messages_of_an_overwrite_get_ids() -> None:
    """In each of its forms."""
    for write in (Overwrite(["a"]), {"__overwrite__": ["a"]}):
        prepared = messages_with_ids(write, "task 1")

        assert isinstance(prepared, Overwrite)
        assert ids(messages_with_ids(["a"], "task 1")) == ids(prepared.value)
    assert Overwrite(None) == messages_with_ids(Overwrite(None), "task 1")


@pytest.mark.parametrize(
    "write", [[], [Note("a", "1")], Note("a", "1"), None, [5], Overwrite([])]
)
def test_a_write_with_nothing_to_add_is_left_alone(write: Any) -> None:
    """The same object, also if the reducer will refuse it."""
    assert write is messages_with_ids(write, "task 1")


def test_a_wrapper_of_a_reducer_is_a_reducer_of_its_own() -> None:
    """It may take other writes."""

    @functools.wraps(add_messages)
    def wrapper(left: Any, right: Any) -> Any:
        return add_messages(left, right["add"])

    partly = functools.partial(add_messages)
    assert BinaryOperatorAggregate(list, wrapper).prepares_with is None
    assert BinaryOperatorAggregate(list, partly).prepares_with is messages_with_ids
