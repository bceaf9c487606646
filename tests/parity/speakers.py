"""Programs whose nodes have models speak, on both engines; and what their streams
show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from tests.parity.chat_agents import MIXED, build
from tests.parity.langchain import ChatSide, ScriptedModel

HELLO = {"messages": [HumanMessage("hi", id="id hi")], "topic": "none"}
LABELLED = {"tags": ["run"], "metadata": {"user": "Ada"}}


def model(text: str, **options: Any) -> Any:
    """Return a model that says *text*, word for word."""
    return GenericFakeChatModel(
        messages=iter([AIMessage(text, id=f"id {text}")]), **options
    )


def speak(state: Any) -> Any:
    """Have a model speak that is asked for its whole answer."""
    return {"messages": [model("one two", tags=["mine"]).invoke(state["messages"])]}


async def speak_later(state: Any) -> Any:
    """Do the same on the event loop."""
    return {"messages": [await model("three four").ainvoke(state["messages"])]}


def stream(state: Any) -> Any:
    """Add up what a model streams."""
    said = AIMessageChunk("")
    for chunk in model("five six").stream(state["messages"]):
        said += chunk
    return {"messages": [said]}


def speak_in_a_chain(state: Any, config: RunnableConfig) -> Any:
    """Have it speak in a chain, which is given the config."""
    chain = RunnableLambda(lambda given: given) | model("in a chain")
    return {"messages": [chain.invoke(state["messages"], config)]}


def speak_whole(state: Any) -> Any:
    """Have a model speak that does not stream."""
    return {
        "messages": [
            model("all of it", disable_streaming=True).invoke(state["messages"])
        ]
    }


def whisper(state: Any) -> Any:
    """Have one speak that is not to be heard, and one whose answer is written all the
    same.
    """
    model("not heard", tags=["nostream"]).invoke(state["messages"])
    return {"messages": [model("read", tags=["nostream"]).invoke(state["messages"])]}


def think(state: Any) -> Any:
    """Have one speak, and write nothing."""
    model("a thought").invoke(state["messages"])
    return {}


def write(state: Any) -> Any:
    """Write messages that no model said, and one that was there."""
    return {"messages": [*state["messages"][:1], AIMessage("written", id="id written")]}


def command(state: Any, *, types: Any) -> Any:
    """Write messages in commands."""
    update = {"messages": [AIMessage("commanded", id="id commanded")]}
    return [
        types.Command(update=update),
        {"messages": HumanMessage("updated", id="id updated")},
    ]


def ask(state: Any, *, types: Any) -> Any:
    """Ask, and write the answer."""
    return {"messages": [AIMessage(types.interrupt("which?"), id="id asked")]}


def line(side: ChatSide, *nodes: Any, **options: Any) -> Any:
    """Return a graph of *nodes*, one after the other."""
    builder = side.graph.StateGraph(side.messages_state)
    builder.add_sequence([(f"node {index}", node) for index, node in enumerate(nodes)])
    builder.add_edge("__start__", "node 0")
    return builder.compile(**side.options, **options)


def called(state: Any, *, inner: Any) -> Any:
    """Call a graph."""
    return {"messages": inner.invoke(state)["messages"]}


def functions(side: ChatSide) -> Any:
    """Return a workflow of tasks."""
    func = import_module(f"{side.name}.func")
    ask = func.task(name="ask")(lambda text: model(text).invoke("hi"))
    give = func.task(name="give")(
        lambda: {"messages": [AIMessage("given", id="id given")]}
    )

    @func.entrypoint(**side.options)
    def flow(given: Any) -> Any:
        return [
            ask("seven eight").result(),
            give().result(),
            AIMessage("end", id="id end"),
        ][::2]

    return flow


def programs() -> dict[str, Callable[[ChatSide], Any]]:
    """Return what makes each program."""
    return {
        "whole answers": lambda side: line(side, speak, think),
        "streams": lambda side: line(side, stream, speak_in_a_chain),
        "not streamed": lambda side: line(side, speak_whole, whisper),
        "written": lambda side: line(side, write, partial(command, types=side.types)),
        "subgraph": lambda side: line(side, line(side, speak, write), think),
        "called graph": lambda side: line(
            side, partial(called, inner=line(side, speak))
        ),
        "tasks": functions,
        "agent": lambda side: build(
            side, {"model": ScriptedModel(script=MIXED[:1])}, version="v1"
        ),
    }


def told(app: Any, *, is_async: bool = False, **asked: Any) -> list[Any]:
    """Return what the stream of *app* shows, without what differs between two runs."""
    asked = {"stream_mode": ["messages", "updates"], **asked}
    if not is_async:
        return [_shown(item) for item in app.stream(HELLO, LABELLED, **asked)]

    async def items() -> list[Any]:
        return [_shown(item) async for item in app.astream(HELLO, LABELLED, **asked)]

    return asyncio.run(items())


def _shown(item: Any) -> Any:
    *namespace, mode, payload = item
    place = [part.partition(":")[0] for part in namespace[0]] if namespace else None
    if mode != "messages":
        return place, mode, [*payload]
    message, metadata = payload
    names = ("langgraph_node", "langgraph_step", "ls_provider", "tags", "user")
    known_id = message.id if message.id.startswith("id ") else "made up"
    kind = type(message).__name__
    return (
        place,
        kind,
        message.content,
        known_id,
        [metadata.get(name) for name in names],
    )
