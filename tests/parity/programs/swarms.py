"""What swarms of langgraph-swarm do, a line for each program."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage

from tests.parity.langchain import ScriptedModel, asks, call, shown
from tests.parity.programs import print_outcomes

warnings.simplefilter("ignore")  # LangGraph's own agent is deprecated

from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import START, StateGraph  # noqa: E402
from langgraph.prebuilt import create_react_agent  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402
from langgraph_swarm import (  # noqa: E402
    SwarmState,
    add_active_agent_router,
    create_handoff_tool,
    create_swarm,
)

HELLO = {"messages": [("user", "Hello")]}
CONFIG = {"configurable": {"thread_id": "1"}}


def confirm(question: str) -> str:
    """Ask the user."""
    return f"{question} {interrupt(question)}"


def agent(name: str, other: str, *script: Any, tools: Any = ()) -> Any:
    """Return an agent that can hand over to *other*."""
    handoff = create_handoff_tool(agent_name=other, description=f"Ask {other}")
    return create_react_agent(
        ScriptedModel(script=[*script], last=f"{name} here."),
        [handoff, *tools],
        name=name,
    )


def to(name: str, id: str = "h1") -> AIMessage:
    """Return a message that hands over to an agent."""
    return asks(call(f"transfer_to_{name}", id))


def pair(*script: Any, tools: Any = ()) -> Any:
    """Return a swarm of Ada, whose model has a script, and Bob."""
    agents = [agent("ada", "bob", *script, tools=tools), agent("bob", "ada")]
    return create_swarm(agents, default_active_agent="ada")


def of_result(output: Any) -> Any:
    """Return the active agent and the messages of a state, shown."""
    return [output.get("active_agent"), shown(output["messages"])]


def no_handover() -> Any:
    """The agent that is active by default answers."""
    return of_result(pair(AIMessage("Hi.")).compile().invoke(HELLO))


def handover() -> Any:
    """One agent hands over to the other."""
    return of_result(pair(to("bob")).compile().invoke(HELLO))


def second_turn() -> Any:
    """The agent that was active last gets the next message."""
    app = pair(to("bob")).compile(checkpointer=InMemorySaver())
    app.invoke(HELLO, CONFIG)
    output = app.invoke({"messages": [("user", "And now?")]}, CONFIG)
    state = app.get_state(CONFIG)
    return [of_result(output), of_result(state.values), state.next]


def there_and_back() -> Any:
    """Handovers in both directions in one turn."""
    ada = agent("ada", "bob", to("bob"), AIMessage("?"), AIMessage("Done."))
    bob = agent("bob", "ada", AIMessage("?"), to("ada", "h2"))
    app = create_swarm([ada, bob], default_active_agent="ada").compile()
    return of_result(app.invoke(HELLO))


def question() -> Any:
    """A tool asks before the handover; the answer resumes it."""
    script = asks(call("confirm", "q1", question="sure?")), to("bob")
    app = pair(*script, tools=[confirm]).compile(checkpointer=InMemorySaver())
    waiting = app.invoke(HELLO, CONFIG)
    [asked] = waiting["__interrupt__"]
    output = app.invoke(Command(resume="yes"), CONFIG)
    return [asked.value, of_result(waiting), of_result(output)]


def streamed() -> Any:
    """The updates of the swarm, and of the graphs in it."""
    chunks = (
        pair(to("bob")).compile().stream(HELLO, stream_mode="updates", subgraphs=True)
    )
    return [
        [[part.partition(":")[0] for part in namespace], shown(chunk)]
        for namespace, chunk in chunks
    ]


def awaited() -> Any:
    """The same on an event loop."""
    return of_result(asyncio.run(pair(to("bob")).compile().ainvoke(HELLO)))


def by_hand() -> Any:
    """A graph of one's own with the router of the package."""
    builder = StateGraph(SwarmState)
    builder.add_node(agent("ada", "bob", to("bob")), destinations=("bob",))
    builder.add_node(agent("bob", "ada"), destinations=("ada",))
    add_active_agent_router(
        builder, route_to=["ada", "bob"], default_active_agent="ada"
    )
    app = builder.compile()
    starts = [edge.target for edge in app.get_graph().edges if edge.source == START]
    return [of_result(app.invoke(HELLO)), sorted(starts)]


def wrong_default() -> Any:
    """An active agent that is not among the agents is refused."""
    try:
        create_swarm([agent("ada", "bob")], default_active_agent="eve")
    except ValueError as error:
        return str(error)[:30]
    return None


PROGRAMS: list[Callable[[], Any]] = [
    no_handover,
    handover,
    second_turn,
    there_and_back,
    question,
    streamed,
    awaited,
    by_hand,
    wrong_default,
]

if __name__ == "__main__":
    print_outcomes(PROGRAMS)
