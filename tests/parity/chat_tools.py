"""Tools that the parity tests let a scripted model ask for; made for either engine."""

# No annotations from the future: LangChain reads those of the tools, which name local
# variables.
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool

from tests.parity.langchain import ChatSide


class OddError(Exception):
    """A tool did not like its argument."""


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(return_direct=True)
def final(text: str) -> str:
    """Say the last word."""
    return f"final {text}"


@tool
def fail(kind: str) -> str:
    """Fail."""
    raise {"value": ValueError, "type": TypeError, "odd": OddError}[kind](kind)


@tool
async def later(text: str) -> str:
    """Answer on the event loop."""
    return f"later {text}"


def counting_tools(runtime_class: Any) -> list[Any]:
    """Return a tool that shows each number while it counts, and its async form."""

    def count(to: int, runtime: Any) -> str:
        """Count, and show each number."""
        for number in range(to):
            runtime.emit_output_delta({"number": number})
        return "done"

    async def count_later(to: int, runtime: Any) -> str:
        """Count on the event loop."""
        return count(to, runtime)

    for function in (count, count_later):
        function.__annotations__["runtime"] = runtime_class
    return [tool(count), tool(count_later)]


def tools_of(side: ChatSide) -> dict[str, Any]:
    """Return the tools that import something of the engine, by name."""
    state, store, runtime = (
        getattr(side.prebuilt, name)
        for name in ("InjectedState", "InjectedStore", "ToolRuntime")
    )
    types = side.types

    @tool
    def look(
        word: str,
        state: Annotated[dict, state],
        topic: Annotated[str, state("topic")],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Look at the state."""
        return f"{word} {len(state['messages'])} {topic} {call_id}"

    @tool
    def remember(word: str, kept: Annotated[Any, store()]) -> str:
        """Keep a word."""
        before = kept.get(("words",), "last")
        kept.put(("words",), "last", {"word": word})
        return f"before: {before and before.value}"

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return f"{question} {types.interrupt(question)}"

    @tool
    def update(topic: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Change the state."""
        message = ToolMessage(f"now {topic}", tool_call_id=call_id)
        return types.Command(update={"messages": [message], "topic": topic})

    @tool
    def hand_over(to: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Let another agent go on."""
        message = ToolMessage(f"over to {to}", tool_call_id=call_id, name="hand_over")
        update = {"messages": [message]}
        return types.Command(goto=to, graph=types.Command.PARENT, update=update)

    def describe(word: str, runtime: Any) -> str:
        """Look at what the run offers."""
        runtime.stream_writer({"seen": word})
        names = [tool.name for tool in runtime.tools]
        return (
            f"{word} {runtime.tool_call_id} {runtime.context} "
            f"{runtime.state['topic']} {names}"
        )

    describe.__annotations__["runtime"] = runtime
    counters = counting_tools(runtime)
    found = [look, remember, ask, update, hand_over, tool(describe), *counters]
    return {made.name: made for made in [*found, add, final, fail, later]}
