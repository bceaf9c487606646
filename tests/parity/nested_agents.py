"""A program of `agent_programs`: an agent that a tool of another agent calls."""

# No annotations from the future: LangChain reads those of the tools.
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage

from tests.parity.agent_tools import model
from tests.parity.langchain import asks, call

HELLO = {"messages": [HumanMessage("hi", id="hi")]}
LAST = AIMessage("So it is.", id="last")


def events_of_nested_agents(run: Any) -> Any:
    """Read the lifecycles of an agent that a tool of another agent calls."""
    helper = create_agent(model(LAST), name="helper")

    @tool
    def consult(topic: str) -> str:
        """Ask the helper."""
        return helper.invoke({"messages": [HumanMessage(topic)]})["messages"][-1].text

    leader = model(asks(call("consult", "1", topic="tea")), LAST)
    agent = create_agent(leader, [consult], name="leader")
    return run.events(agent, HELLO, "lifecycle")
