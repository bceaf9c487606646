"""Tools and models of the agents in `agent_programs`, for either engine."""

# No annotations from the future: LangChain reads those of the tools.
from typing import Annotated, Any

from langchain.agents import AgentState
from langchain.tools import InjectedState, ToolRuntime, tool
from langchain_core.messages import ToolMessage
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from tests.parity.langchain import ScriptedModel


class Weather(BaseModel):
    """The weather at a place."""

    place: str
    degrees: int


class Shop(AgentState):
    """The state of an agent with a key of its own."""

    basket: str


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail(kind: str) -> str:
    """Fail."""
    raise ValueError(kind)


@tool(return_direct=True)
def final(text: str) -> str:
    """Say the last word."""
    return f"final {text}"


@tool
def ask(question: str) -> str:
    """Ask a person."""
    return f"{question} {interrupt(question)}"


@tool
def describe(word: str, runtime: ToolRuntime) -> str:
    """Look at what the run offers."""
    runtime.stream_writer({"seen": word})
    runtime.emit_output_delta(word)
    names = [item.name for item in runtime.tools]
    return f"{word} {runtime.tool_call_id} {len(runtime.state['messages'])} {names}"


@tool
def look(word: str, basket: Annotated[str, InjectedState("basket")]) -> str:
    """Look into the basket."""
    return f"{word} {basket}"


@tool
def fill(item: str, runtime: ToolRuntime) -> Command:
    """Put something into the basket."""
    answer = ToolMessage(f"{item} is in", tool_call_id=runtime.tool_call_id)
    return Command(update={"basket": item, "messages": [answer]})


@tool
def note(word: str, runtime: ToolRuntime) -> str:
    """Keep a word for later runs."""
    before = runtime.store.get(("words",), "last")
    runtime.store.put(("words",), "last", {"word": word})
    return f"before: {before and before.value}"


def model(*script: Any, **options: Any) -> ScriptedModel:
    """Return a model that answers with *script*."""
    return ScriptedModel(script=[*script], **options)


class BrokenModel(ScriptedModel):
    """A model whose provider is down."""

    def _generate(self, *_: Any, **__: Any) -> Any:
        raise ConnectionError("down")
