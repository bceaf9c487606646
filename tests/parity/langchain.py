"""LangChain on both engines: what a program imports from each, a scripted model, how
results show.

Everything that a node needs is at the top of a module: it travels to worker processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda


@dataclass(frozen=True)
class ChatSide:
    """What a program imports from one of the engines."""

    name: str
    prebuilt: Any
    graph: Any
    types: Any
    messages_state: Any
    saver: Callable[[], Any]
    store: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    """What `compile` is given beside."""


def langgraph() -> ChatSide:
    """Return the peer."""
    import langgraph.graph
    import langgraph.prebuilt
    import langgraph.types
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.store.memory import InMemoryStore

    graph = langgraph.graph
    return ChatSide(
        "langgraph",
        langgraph.prebuilt,
        graph,
        langgraph.types,
        graph.MessagesState,
        InMemorySaver,
        InMemoryStore,
    )


def flowpregel(executor: str = "inline", path: str | None = None) -> ChatSide:
    """Return ours, on *executor*, with its threads in memory or in the folder
    *path*.
    """
    import flowpregel.graph
    import flowpregel.types
    from flowpregel.checkpoint.lmdb import LMDBSaver
    from flowpregel.checkpoint.memory import InMemorySaver
    from flowpregel.plugins import langchain
    from flowpregel.store.memory import InMemoryStore

    return ChatSide(
        "flowpregel",
        langchain,
        flowpregel.graph,
        flowpregel.types,
        langchain.MessagesState,
        InMemorySaver if path is None else lambda: LMDBSaver(path),
        InMemoryStore,
        {"executor": executor},
    )


class ScriptedModel(BaseChatModel):
    """Answers with the message of its script that is next in the conversation."""

    script: list[Any]
    last: str = "That is all."
    """What it answers when the script is over."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model with *tools*."""
        return self.bind(
            tools=[
                tool if isinstance(tool, dict) else {"name": tool.name}
                for tool in tools
            ]
        )

    def with_structured_output(self, schema: Any, **_: Any) -> Any:
        """Return what answers with the schema and how many messages it was given."""
        return RunnableLambda(
            lambda messages: {"schema": schema["title"], "of": len(messages)}
        )

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **given: Any
    ) -> Any:
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        heard = (
            f"{self.last} {[message.type for message in messages]} {given.get('tools')}"
        )
        answer = self.script[spoken] if spoken < len(self.script) else AIMessage(heard)
        return ChatResult(
            generations=[ChatGeneration(message=answer.model_copy(deep=True))]
        )


def call(name: str, id: str, **arguments: Any) -> Any:
    """Return a call of a tool, as a model asks for it."""
    return {"name": name, "args": arguments, "id": id, "type": "tool_call"}


def asks(*calls: Any, id: str | None = None) -> AIMessage:
    """Return a model's message that asks for tools."""
    return AIMessage("", tool_calls=[*calls], id=id)


def shown(value: Any) -> Any:
    """Return *value* without what differs between two runs, and between two
    wordings.
    """
    if isinstance(value, BaseMessage):
        is_error = getattr(value, "status", None) == "error"
        calls = [
            (call["name"], call["args"]) for call in getattr(value, "tool_calls", ())
        ]
        answered = getattr(value, "tool_call_id", None)
        # What the two say in their own words.
        content = next(
            (mark for mark in ("more steps",) if mark in value.content), value.content
        )
        content = "(error)" if is_error else content
        return type(value).__name__, value.name, content, answered, calls
    if isinstance(value, dict):
        return {
            key: shown(item) for key, item in value.items() if key != "__interrupt__"
        }
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if type(value).__name__ == "Command":
        return ["Command", value.graph, shown(value.update), shown(value.goto)]
    return value if isinstance(value, str | int | float | None) else repr(value)


def outcome(run: Callable[[], Any]) -> Any:
    """Return what *run* returns, shown; or which error it raises."""
    try:
        return shown(run())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        # Ours are kinds of theirs, by another name.
        kinds = (ValueError, TypeError, KeyError, ZeroDivisionError, RuntimeError)
        return next(
            (kind.__name__ for kind in kinds if isinstance(error, kind)), repr(error)
        )


def drive(app: Any, given: Any, is_async: bool, **options: Any) -> Any:
    """Return the output of *app*, run sync or async."""
    return (
        asyncio.run(app.ainvoke(given, **options))
        if is_async
        else app.invoke(given, **options)
    )


def talk(
    side: ChatSide, app: Any, given: Any, is_async: bool = False, **asked: Any
) -> list[Any]:
    """Return the outputs of *app* on a thread: to *given*, and to an answer to each
    question.

    Args:
        side: Whose graph *app* is.
        app: The graph.
        given: Its first input.
        is_async: Whether to run it on an event loop.
        asked: A ``context``, or parts of a config.
    """
    options = {"context": asked.pop("context", None)}
    options["config"] = {
        "configurable": {"thread_id": "1"},
        "recursion_limit": 40,
        **asked,
    }
    outputs = [drive(app, given, is_async, **options)]
    while questions := outputs[-1].get("__interrupt__"):
        answers = {each.id: each.value.upper() for each in questions}
        outputs.append(
            drive(app, side.types.Command(resume=answers), is_async, **options)
        )
    return [
        [
            shown(output),
            sorted(str(item.value) for item in output.get("__interrupt__", ())),
        ]
        for output in outputs
    ]
