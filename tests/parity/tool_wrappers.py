"""Functions that wrap the calls of tools, for the parity tests.

They are at the top of a module because they travel to worker processes.
"""

# No annotations from the future: LangChain reads those of the tool.
import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

Execute = Callable[[Any], Any]


@tool
def fresh(a: int) -> str:
    """Answer in place of a tool that the node does not have."""
    return f"fresh {a}"


def answer(request: Any, text: str) -> ToolMessage:
    """Return an answer to the call of *request*."""
    call = request.tool_call
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"])


class Talk(BaseModel):
    """A state that is an object."""

    messages: Annotated[list[Any], operator.add]
    topic: str = ""


def name_state(request: Any, execute: Execute) -> Any:
    """Answer with the class and a field of the state."""
    return answer(request, f"{type(request.state).__name__} {request.state.topic}")


def pass_on(request: Any, execute: Execute) -> Any:
    """Call the tool."""
    return execute(request)


def call_twice(request: Any, execute: Execute) -> Any:
    """Call the tool, and once more with its answer as the second number."""
    first = execute(request)
    call = request.tool_call
    changed = {**call, "args": {**call["args"], "b": int(first.content)}}
    return execute(request.override(tool_call=changed))


def answer_itself(request: Any, execute: Execute) -> Any:
    """Answer without the tool."""
    name = request.tool and request.tool.name
    return answer(request, f"{name} {request.state['topic']} {request.runtime.state}")


def change_state(request: Any, execute: Execute) -> Any:
    """Call the tool with another state."""
    return execute(request.override(state={**request.state, "topic": "coffee"}))


def provide_tool(request: Any, execute: Execute) -> Any:
    """Call a tool that the node does not have."""
    return execute(request.override(tool=fresh) if request.tool is None else request)


def fail_itself(request: Any, execute: Execute) -> Any:
    """Fail without the tool."""
    raise ValueError("wrapped")


def catch_error(request: Any, execute: Execute) -> Any:
    """Answer an error of the tool."""
    try:
        return execute(request)
    except (ValueError, TypeError) as error:
        return answer(request, f"caught {error}")


WRAPPERS = (
    pass_on,
    call_twice,
    answer_itself,
    change_state,
    provide_tool,
    fail_itself,
    catch_error,
)


async def await_twice(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do what `call_twice` does, on the event loop."""
    first = await execute(request)
    call = request.tool_call
    changed = {**call, "args": {**call["args"], "b": int(first.content)}}
    return await execute(request.override(tool_call=changed))
