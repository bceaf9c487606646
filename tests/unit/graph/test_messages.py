"""Messages are merged by their ids, whatever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.graph import (
    REMOVE_ALL_MESSAGES,
    START,
    MessagesState,
    StateGraph,
    add_messages,
)
from flowpregel.graph.message import RemoveMessage


@dataclass
class Message:
    """A message of the user's own kind."""

    content: str
    id: str | None = None


def texts(messages: list[Any]) -> list[str]:
    """Return what messages say."""
    return [m["content"] if isinstance(m, dict) else m.content for m in messages]


@pytest.mark.parametrize(
    "make", [Message, lambda content, id: {"content": content, "id": id}]
)
def test_a_known_id_replaces_and_a_new_one_is_added(make: Any) -> None:
    """For objects and for dicts; the place stays."""
    left = [make("a", id="1"), make("b", id="2")]

    merged = add_messages(left, [make("A", id="1"), make("c", id="3")])

    assert ["A", "b", "c"] == texts(merged)
    assert ["a", "b"] == texts(left)


def test_one_message_is_as_good_as_a_list_of_one() -> None:
    """On either side."""
    merged = add_messages({"content": "a", "id": "1"}, Message("b", "2"))

    assert ["a", "b"] == texts(merged)


def test_a_message_without_an_id_gets_one_on_a_copy() -> None:
    """What the user holds is left alone."""
    plain, own = {"content": "a"}, Message("b")

    first, second = add_messages([], [plain, own])

    assert ({"content": "a"}, None) == (plain, own.id)
    assert first["id"]
    assert second.id
    assert first["id"] != second.id


def test_short_forms_become_dicts() -> None:
    """A (role, content) pair, and a text."""
    (first, second) = add_messages([], [("assistant", "hi"), "hello"])

    assert ("assistant", "hi") == (first["role"], first["content"])
    assert ("user", "hello") == (second["role"], second["content"])


def test_a_message_is_removed_by_its_id() -> None:
    """Any message of type ``remove`` will do."""
    left = [Message("a", "1"), Message("b", "2"), Message("c", "3")]

    merged = add_messages(left, [RemoveMessage("1"), {"type": "remove", "id": "3"}])

    assert ["b"] == texts(merged)


def test_all_messages_before_it_are_removed_by_a_special_id() -> None:
    """Those after it stay."""
    right = [Message("x", "9"), RemoveMessage(REMOVE_ALL_MESSAGES), Message("b", "2")]

    assert ["b"] == texts(add_messages([Message("a", "1")], right))


def test_removing_what_is_not_there_is_an_error() -> None:
    """The message names the id."""
    with pytest.raises(ValueError, match=r"ID that doesn't exist \('7'\)"):
        add_messages([], [RemoveMessage("7")])


@pytest.mark.parametrize("wrong", [5, object()])
def test_what_cannot_have_an_id_is_refused(wrong: Any) -> None:
    """The message shows it."""
    with pytest.raises(ConfigurationError, match="has no id and cannot be given one"):
        add_messages([], [wrong])


def test_none_is_no_list_of_messages() -> None:
    """On neither side."""
    with pytest.raises(ConfigurationError, match="got None"):
        add_messages(None, [])


def test_a_state_of_messages_grows_as_nodes_answer() -> None:
    """The state that chat programs begin with."""
    builder = StateGraph(MessagesState)
    builder.add_node(
        "chat", lambda s: {"messages": [("assistant", f"{len(s['messages'])}")]}
    )
    app = builder.add_edge(START, "chat").compile(executor="inline")

    result = app.invoke({"messages": [("user", "hi")]})

    assert ["hi", "1"] == texts(result["messages"])
