"""What supervisors of langgraph-supervisor do, a line for each program."""

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
from langgraph.prebuilt import create_react_agent  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402
from langgraph_supervisor import (  # noqa: E402
    create_handoff_tool,
    create_supervisor,
)
from langgraph_supervisor.handoff import (  # noqa: E402
    create_forward_message_tool,
)

HELLO = {"messages": [("user", "What is 1 + 2?")]}
CONFIG = {"configurable": {"thread_id": "1"}}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask(question: str) -> str:
    """Ask the user."""
    return f"{question} {interrupt(question)}"


def model(**replies: Any) -> ScriptedModel:
    """Return a model with replies by the number of answers that it has seen: ``_2`` is
    the third.
    """
    last = max(int(number[1:]) for number in replies)
    script = [replies.get(f"_{number}", AIMessage("?")) for number in range(last + 1)]
    return ScriptedModel(script=script)


def agent(name: str, tool: Callable[..., Any], **replies: Any) -> Any:
    """Return an agent with one tool."""
    return create_react_agent(model(**replies), [tool], name=name)


def adder(first: int = 1) -> Any:
    """Return an agent that adds, and whose model answers the *first* message."""
    return agent(
        "adder",
        add,
        **{
            f"_{first}": asks(call("add", "a1", a=1, b=2)),
            f"_{first + 1}": AIMessage("It is 3."),
        },
    )


def handoff(to: str, id: str = "h1") -> AIMessage:
    """Return a message that hands over to an agent."""
    return asks(call(f"transfer_to_{to}", id))


def of_result(output: Any) -> Any:
    """Return the messages of a state, shown."""
    return shown(output["messages"])


def one_agent() -> Any:
    """A supervisor with one agent, which answers itself at the end."""
    boss = model(_0=handoff("adder"), _3=AIMessage("The answer is 3."))
    app = create_supervisor([adder()], model=boss).compile()
    return of_result(app.invoke(HELLO))


def whole_history() -> Any:
    """The supervisor gets all messages of the agent."""
    boss = model(_0=handoff("adder"), _4=AIMessage("The answer is 3."))
    app = create_supervisor([adder()], model=boss, output_mode="full_history")
    return of_result(app.compile().invoke(HELLO))


def without_handoff_messages() -> Any:
    """Neither the call of an agent, nor its end, is among the messages."""
    boss = model(_0=handoff("adder"), _1=AIMessage("The answer is 3."))
    app = create_supervisor(
        [adder(0)],
        model=boss,
        add_handoff_messages=False,
        add_handoff_back_messages=False,
    ).compile()
    return of_result(app.invoke(HELLO))


def named_agents() -> Any:
    """The names of agents stand in the text that the supervisor's model gets."""
    boss = model(_0=handoff("adder"), _9=AIMessage("?"))
    app = create_supervisor(
        [adder()], model=boss, include_agent_name="inline", prompt="You lead."
    ).compile(name="team")
    return [app.name, of_result(app.invoke(HELLO))]


def own_handoff_tool() -> Any:
    """A tool of another name hands over, beside a tool of the supervisor itself."""
    tool = create_handoff_tool(agent_name="adder", name="to_the_adder")
    boss = model(
        _0=asks(call("add", "s1", a=5, b=5)),
        _1=asks(call("to_the_adder", "h1")),
        _5=AIMessage("Done."),
    )
    app = create_supervisor([adder(2)], model=boss, tools=[tool, add]).compile()
    return of_result(app.invoke(HELLO))


def forwarded() -> Any:
    """A tool of the supervisor gives an agent's message on as its own answer."""
    boss = model(
        _0=handoff("adder"),
        _3=asks(call("forward_message", "f1", from_agent="adder")),
    )
    tools = [create_forward_message_tool("supervisor")]
    app = create_supervisor([adder()], model=boss, tools=tools).compile()
    return of_result(app.invoke(HELLO))


def two_turns() -> Any:
    """A thread remembers, and its state has the messages of both turns."""
    boss = model(_0=handoff("adder"), _3=AIMessage("3."), _4=AIMessage("Bye."))
    app = create_supervisor([adder()], model=boss).compile(checkpointer=InMemorySaver())
    app.invoke(HELLO, CONFIG)
    output = app.invoke({"messages": [("user", "Bye")]}, CONFIG)
    state = app.get_state(CONFIG)
    return [of_result(output), of_result(state.values), state.next]


def question() -> Any:
    """A tool of an agent asks, and the answer resumes it."""
    boss = model(_0=handoff("asker"), _3=AIMessage("Done."))
    asker = agent(
        "asker", ask, _1=asks(call("ask", "q1", question="why?")), _2=AIMessage("Ok.")
    )
    app = create_supervisor([asker], model=boss).compile(checkpointer=InMemorySaver())
    waiting = app.invoke(HELLO, CONFIG)
    [asked] = waiting["__interrupt__"]
    output = app.invoke(Command(resume="because"), CONFIG)
    return [asked.value, of_result(waiting), of_result(output)]


def nested() -> Any:
    """A supervisor of a supervisor."""
    inner = create_supervisor(
        [adder(2)],
        model=model(_1=handoff("adder", "h2"), _5=AIMessage("The adder says 3.")),
        supervisor_name="middle",
    ).compile(name="middle_team")
    boss = model(_0=handoff("middle_team"), _3=AIMessage("3, I hear."))
    app = create_supervisor([inner], model=boss, supervisor_name="top").compile()
    return of_result(app.invoke(HELLO))


def streamed() -> Any:
    """The updates of the supervisor, and of the graphs in it."""
    boss = model(_0=handoff("adder"), _3=AIMessage("3."))
    app = create_supervisor([adder()], model=boss).compile()
    chunks = app.stream(HELLO, stream_mode="updates", subgraphs=True)
    return [
        [[part.partition(":")[0] for part in namespace], shown(chunk)]
        for namespace, chunk in chunks
    ]


def awaited() -> Any:
    """The same on an event loop."""
    boss = model(_0=handoff("adder"), _3=AIMessage("3."))
    app = create_supervisor([adder()], model=boss).compile()
    return of_result(asyncio.run(app.ainvoke(HELLO)))


def no_such_agent() -> Any:
    """A handover to an agent that does not exist is an error for the model."""
    boss = model(_0=handoff("nobody"), _1=AIMessage("Sorry."))
    app = create_supervisor([adder()], model=boss).compile()
    return of_result(app.invoke(HELLO))


def agent_without_a_name() -> Any:
    """Is refused."""
    nameless = create_react_agent(model(_0=AIMessage("?")), [add])
    try:
        create_supervisor([nameless], model=model(_0=AIMessage("?")))
    except ValueError as error:
        return str(error)[:40]
    return None


def drawn() -> Any:
    """The graph as Mermaid's text shows all agents."""
    app = create_supervisor([adder()], model=model(_0=AIMessage("?"))).compile()
    return sorted(app.get_graph().nodes)


PROGRAMS: list[Callable[[], Any]] = [
    one_agent,
    whole_history,
    without_handoff_messages,
    named_agents,
    own_handoff_tool,
    forwarded,
    two_turns,
    question,
    nested,
    streamed,
    awaited,
    no_such_agent,
    agent_without_a_name,
    drawn,
]

if __name__ == "__main__":
    print_outcomes(PROGRAMS)
