"""LangChain's messages in a state: `add_messages` makes of them what LangGraph's
does.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import langgraph.graph
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
)
from langchain_core.runnables import RunnableLambda

from flowpregel.graph import START, StateGraph
from flowpregel.graph import add_messages as plain_add_messages
from flowpregel.plugins.langchain import MessagesState, add_messages
from tests.parity.langchain import outcome, shown

OLD = [HumanMessage("hi", id="1"), AIMessage("hello", id="2")]
LISTS: list[tuple[Any, Any]] = [
    ([], "hi"),
    ([], ("system", "be good")),
    ([], {"role": "assistant", "content": "hi"}),
    ([], [("user", "hi"), "again", {"type": "ai", "content": "x", "id": "7"}]),
    (("user", "hi"), [["ai", "list of two"]]),
    (OLD, AIMessage("HELLO", id="2")),
    (OLD, [AIMessageChunk("in parts", id="3"), SystemMessage("new")]),
    (OLD, RemoveMessage("1")),
    (OLD, [RemoveMessage("1"), HumanMessage("back", id="1")]),
    (
        OLD,
        [HumanMessage("gone"), RemoveMessage("__remove_all__"), HumanMessage("kept")],
    ),
    (OLD, RemoveMessage("9")),
    (OLD, None),
    (OLD, {"role": "nobody", "content": "x"}),
]


@pytest.mark.parametrize(("left", "right"), LISTS)
@pytest.mark.parametrize("options", [{}, {"format": "langchain-openai"}])
def test_messages_are_merged_as_langgraph_merges_them(
    left: Any, right: Any, options: dict[str, Any]
) -> None:
    """Dicts, pairs, texts, chunks; replaced, removed, all removed; what cannot be."""
    theirs = outcome(lambda: langgraph.graph.add_messages(left, right, **options))

    assert theirs == outcome(lambda: add_messages(left, right, **options))


@pytest.mark.parametrize(("left", "right"), LISTS)
def test_beside_langchains_messages_all_become_such(left: Any, right: Any) -> None:
    """The reducer that knows nothing of LangChain merges as well what has one of its
    messages.
    """
    left = [
        *(left if isinstance(left, list) else [left]),
        HumanMessage("one", id="one"),
    ]
    theirs = outcome(lambda: langgraph.graph.add_messages(left, right))

    assert theirs == outcome(lambda: plain_add_messages(left, right))


def test_the_reducer_is_made_with_a_format() -> None:
    """As an annotation has it."""
    reducer = add_messages(format="langchain-openai")
    parts = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]

    [message] = reducer([], [{"role": "user", "content": parts}])

    assert "hi" == message.content


def test_a_message_is_left_as_its_owner_made_it() -> None:
    """An id is put on a copy."""
    message = HumanMessage("hi")

    [merged] = add_messages([], message)

    assert message.id is None
    assert merged.id


def test_a_graph_is_a_step_in_a_chain_of_runnables() -> None:
    """And a chain is a node of a graph, called sync and async."""
    builder = StateGraph(MessagesState)
    echo = RunnableLambda(lambda state: state["messages"][-1].content) | str.upper
    builder.add_node("echo", echo | (lambda text: {"messages": [("ai", text)]}))
    app = builder.add_edge(START, "echo").compile(executor="inline")
    chain = RunnableLambda(lambda text: {"messages": text}) | app.invoke

    result = chain.with_config(tags=["t"]).invoke("hi")

    assert [["HumanMessage", "hi"], ["AIMessage", "HI"]] == [
        [kind, content] for kind, _, content, *_ in shown(result["messages"])
    ]


def test_without_langchain_the_import_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra's name is in the error."""
    name = "flowpregel.plugins.langchain"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core.messages.tool", None)

    with pytest.raises(ImportError, match=r"pip install 'flowpregel\[langchain\]'"):
        importlib.import_module(name)
