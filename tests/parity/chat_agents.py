"""Agents that the parity tests run on both engines, each with what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
)
from langchain_core.prompts import ChatPromptTemplate

from tests.parity.chat_tools import add, final, tools_of
from tests.parity.langchain import ChatSide, ScriptedModel, asks, call

MIXED = [
    asks(call("add", "1", a=1, b=2), call("describe", "2", word="w")),
    asks(
        call("add", "3", a="x", b=2),
        call("nothing", "4"),
        call("update", "5", topic="tea"),
    ),
    asks(call("remember", "6", word="one")),
    asks(call("remember", "7", word="two"), call("look", "8", word="w")),
    asks(call("ask", "9", question="one?")),
    AIMessage("So it is.", id="last"),
]
HELLO = {"messages": [("user", "hi")], "topic": "none"}


def advise(state: Any) -> Any:
    """Give the model one message more, and the state none."""
    return {"llm_input_messages": [SystemMessage("Be short."), *state["messages"]]}


def forget(state: Any) -> Any:
    """Drop everything but the last message."""
    last = state["messages"][-1]
    return {"messages": [RemoveMessage("__remove_all__"), last]}


def sign(state: Any) -> Any:
    """Note how many messages there are."""
    return {"topic": f"after {len(state['messages'])}"}


def speak(state: Any) -> Any:
    """Make the model's input."""
    return [SystemMessage(f"of {state['topic']}"), *state["messages"]]


async def speak_later(state: Any) -> Any:
    """Make the model's input on the event loop."""
    return speak(state)


def choose(state: Any, runtime: Any) -> Any:
    """Choose the model by the state and the context."""
    return ScriptedModel(script=MIXED[:1], last=f"{state['topic']} {runtime.context}")


async def choose_later(state: Any, runtime: Any) -> Any:
    """Choose the model on the event loop."""
    return choose(state, runtime)


def agents() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield for each agent a name, the options of `create_react_agent` and those of the
    run.
    """
    ends = [
        asks(call("final", "1", text="a"), call("add", "2", a=1, b=1)),
        AIMessage("never"),
    ]
    yield "mixed", {"prompt": "Be good.", "name": "ann"}, {}
    yield "form", {"response_format": {"title": "Form"}}, {}
    yield (
        "form with a prompt",
        {"response_format": ("Now fill in.", {"title": "Form"})},
        {},
    )
    yield "message", {"prompt": SystemMessage("Be good.")}, {}
    yield "function", {"prompt": speak}, {}
    yield (
        "runnable",
        {"prompt": ChatPromptTemplate.from_messages([("placeholder", "{messages}")])},
        {},
    )
    yield "direct", {"model": ScriptedModel(script=ends)}, {}
    yield (
        "direct form",
        {"model": ScriptedModel(script=ends), "response_format": {"title": "F"}},
        {},
    )
    yield "chosen", {"model": choose}, {"context": "in context"}
    yield (
        "advised",
        {"pre_model_hook": advise, "model": ScriptedModel(script=MIXED[:2])},
        {},
    )
    yield "forgetful", {"pre_model_hook": forget, "model": ScriptedModel(script=[])}, {}
    yield "signed", {"post_model_hook": sign}, {}
    yield (
        "signed form",
        {"post_model_hook": sign, "response_format": {"title": "Form"}},
        {},
    )
    yield "no tools", {"tools": [], "prompt": "Be good."}, {}
    yield "no tools, signed", {"tools": [], "post_model_hook": sign}, {}
    yield (
        "bound",
        {
            "model": ScriptedModel(script=[]).bind_tools([add, final]),
            "tools": [add, final],
        },
        {},
    )
    yield (
        "remote tools",
        {"tools": [add, {"type": "search"}], "model": ScriptedModel(script=[])},
        {},
    )
    yield "short of steps", {}, {"recursion_limit": 5}
    yield (
        "short of steps, direct",
        {"model": ScriptedModel(script=ends)},
        {"recursion_limit": 2},
    )


def build(side: ChatSide, options: dict[str, Any], **compiled: Any) -> Any:
    """Return the agent that *options* describe, on *side*."""
    return side.prebuilt.create_react_agent(
        **{
            "model": ScriptedModel(script=MIXED),
            "tools": [*tools_of(side).values()],
            "state_schema": schema_of(side, options),
            "store": side.store(),
            **options,
            **compiled,
            **side.options,
        }
    )


def schema_of(side: ChatSide, options: dict[str, Any]) -> Any:
    """Return the state of the agent that *options* describe."""
    annotations: dict[str, Any] = {"topic": str}
    if "response_format" in options:
        annotations["structured_response"] = Any
    base = (
        side.prebuilt.chat_agent_executor if side.name == "langgraph" else side.prebuilt
    )
    return type(base.AgentState)(
        "Talk", (base.AgentState,), {"__annotations__": annotations}
    )


def team(side: ChatSide, saver: Any) -> Any:
    """Return a graph of two agents, of which one hands over to the other."""
    tools = tools_of(side)
    handing = ScriptedModel(script=[asks(call("hand_over", "1", to="second"))])
    taking = ScriptedModel(
        script=[AIMessage("one"), asks(call("ask", "2", question="why?"))]
    )
    builder = side.graph.StateGraph(side.messages_state)
    for name, model in (("first", handing), ("second", taking)):
        agent = side.prebuilt.create_react_agent(
            model, [tools["hand_over"], tools["ask"]], name=name, **side.options
        )
        builder.add_node(name, agent)
    return builder.add_edge("__start__", "first").compile(saver, **side.options)


def loop(side: ChatSide, saver: Any) -> Any:
    """Return the loop that tutorials begin with, its model in a chain of Runnables."""
    tools = tools_of(side)
    model = ScriptedModel(script=MIXED[:1]).bind_tools([tools["add"], tools["ask"]])
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be good."), ("placeholder", "{messages}")]
    )
    chain = prompt | model | as_update
    builder = side.graph.StateGraph(side.messages_state)
    builder.add_node("model", chain).add_node(
        side.prebuilt.ToolNode([tools["add"], tools["ask"]])
    )
    builder.add_edge("__start__", "model").add_edge("tools", "model")
    builder.add_conditional_edges("model", side.prebuilt.tools_condition)
    return builder.compile(saver, **side.options)


def as_update(message: Any) -> Any:
    """Return what a node writes of a model's answer."""
    return {"messages": [message]}


def graphs() -> dict[str, tuple[Callable[[ChatSide, Any], Any], Any]]:
    """Return graphs that are no plain agents, each with what it is asked."""
    several = asks(
        call("ask", "1", question="one?"),
        call("ask", "2", question="two?"),
        call("add", "3", a=1, b=1),
    )

    def asking(version: str) -> Callable[[ChatSide, Any], Any]:
        options = {
            "model": ScriptedModel(script=[several, several]),
            "version": version,
        }
        return lambda side, saver: build(side, options, checkpointer=saver)

    return {
        "team": (team, {"messages": [HumanMessage("hi")]}),
        "loop": (loop, {"messages": {"role": "user", "content": "hi"}}),
        "asking, one task": (asking("v1"), HELLO),
        "asking, a task each": (asking("v2"), HELLO),
    }
