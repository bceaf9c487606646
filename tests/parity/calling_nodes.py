"""Graphs whose nodes call models, tools, chains and graphs, on either library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypedDict

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel
from langchain_core.tools import tool

from tests.parity.libraries import Library


class State(TypedDict, total=False):
    """A state of a number and a list of messages."""

    n: int
    messages: list[Any]


def model(*texts: str) -> Any:
    """Return a model that answers with *texts*."""
    return GenericFakeChatModel(messages=iter([AIMessage(text) for text in texts]))


def models(library: Library) -> Any:
    """A node calls models: with its config, without it, as a stream, and a failure."""

    def speak(state: State, config: RunnableConfig) -> State:
        speaker = model("one word", "another", "third")
        speaker.invoke("first", config)
        speaker.invoke("second")
        for _ in speaker.stream("third", {"tags": ["streamed"]}):
            pass
        FakeListLLM(responses=["text"]).invoke("plain")
        with suppress(Exception):
            model().invoke("nothing to say")
        return {"n": 1}

    speak.__annotations__["config"] = RunnableConfig
    return (
        library.graph(State, speak)
        .add_node(
            "again",
            lambda _: {"n": len(model("x").invoke("y").content)},
            metadata={"own": 1},
        )
        .add_edge("speak", "again")
    )


def tools(library: Library) -> Any:
    """A node calls a tool, a tool that fails, a retriever and a chain."""

    @tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    @tool
    def fail(number: int) -> int:
        """Fail."""
        raise OSError("no")

    class Library_(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return [Document(page_content=query)]

    def work(state: State) -> State:
        double.invoke({"number": 2})
        with suppress(OSError):
            fail.invoke({"number": 2})
        Library_().invoke("tea")
        chain = RunnableLambda(lambda n: n + 1, name="more") | RunnableParallel(
            a=RunnableLambda(lambda n: n, name="same")
        )
        chain.invoke(1)
        dispatch_custom_event("news", {"n": 1})
        return {"n": 1}

    return library.graph(State, work)


def custom_events(library: Library) -> Any:
    """A node, its tool and a conditional edge dispatch custom events."""

    @tool
    def report(number: int) -> int:
        """Report a number."""
        dispatch_custom_event("from a tool", number)
        return number

    def work(state: State, config: RunnableConfig) -> State:
        dispatch_custom_event("from a node", state["n"])
        dispatch_custom_event("with a config", state["n"], config=config)
        return {"n": report.invoke({"number": 2})}

    work.__annotations__["config"] = RunnableConfig

    def end(state: State) -> str:
        dispatch_custom_event("from an edge", state["n"])
        return "__end__"

    return library.graph(State, work).add_conditional_edges("work", end)


def events_of_a_thread(library: Library) -> Any:
    """An OS thread of a node dispatches a custom event."""

    def work(state: State, config: RunnableConfig) -> State:
        with ThreadPoolExecutor(1) as threads:
            event = "from a thread", state["n"]
            threads.submit(dispatch_custom_event, *event, config=config).result()
        return {"n": 2}

    work.__annotations__["config"] = RunnableConfig
    return library.graph(State, work)


def a_chain_as_a_node(library: Library) -> Any:
    """Two nodes are Runnables."""
    chain = RunnableLambda(lambda state: state["n"], name="first") | RunnableLambda(
        lambda n: {"n": n + 1}, name="second"
    )
    single = RunnableLambda(lambda state: {"n": state["n"] + 1}, name="single")
    builder = library.of("graph.StateGraph")(State)
    builder.add_node("chain", chain).add_node("single", single)
    return builder.add_edge("__start__", "chain").add_edge("chain", "single")


def paths(library: Library) -> Any:
    """Conditional edges: named functions, a lambda, a Runnable; one calls a model."""

    def first(state: State) -> str:
        return "add"

    def second(state: State, config: RunnableConfig) -> str:
        model("hello").invoke("x", config)
        return "more"

    second.__annotations__["config"] = RunnableConfig
    builder = library.of("graph.StateGraph")(State)
    for name in ("add", "more", "last"):
        builder.add_node(name, lambda state: {"n": state["n"] + 1})
    builder.add_conditional_edges("__start__", first)
    builder.add_conditional_edges("add", second)
    builder.add_conditional_edges("more", lambda _: "go on", {"go on": "last"})
    builder.add_conditional_edges("last", RunnableLambda(lambda _: "__end__", name="p"))

    def other(state: State) -> list[str]:
        return ["__end__"]

    return builder.add_conditional_edges("last", other)


def a_failing_path(library: Library) -> Any:
    """The function of a conditional edge fails."""

    def choose(state: State) -> str:
        raise OSError("no way")

    builder = library.graph(State, ("add", lambda state: {"n": state["n"] + 1}))
    return builder.add_conditional_edges("add", choose)


def a_called_graph(library: Library) -> Any:
    """A node calls a graph whose node calls a model, with and without its config."""

    def speak(state: State) -> State:
        return {"n": len(model("hello you").invoke("x").content)}

    inner = library.compile(library.graph(State, speak), checkpointer=None, name="in")

    def call(state: State, config: RunnableConfig) -> Any:
        inner.invoke(state, config)
        return inner.invoke(state)

    call.__annotations__["config"] = RunnableConfig
    return library.graph(State, call, ("outer", inner))


def a_graph_in_a_chain(library: Library) -> Any:
    """A node calls a chain with a graph in it."""

    def speak(state: State) -> State:
        return {"n": len(model("hello you").invoke("x").content)}

    inner = library.compile(library.graph(State, speak), checkpointer=None, name="in")

    def call(state: State, config: RunnableConfig) -> Any:
        chain = RunnableLambda(lambda n: {"n": n, "messages": []}, name="first") | inner
        return chain.invoke(state["n"], config)

    call.__annotations__["config"] = RunnableConfig
    return library.graph(State, call)


def a_tool_node(library: Library) -> Any:
    """A loop of a model and of tools, one of which calls a model."""

    @tool
    def ask(question: str) -> str:
        """Ask another model."""
        return model("inner answer").invoke(question).content

    def chat(state: State) -> State:
        call = {"name": "ask", "args": {"question": "why?"}, "id": "1"}
        reply = AIMessage("", tool_calls=[call])
        speaker = GenericFakeChatModel(messages=iter([reply]))
        return {"messages": [speaker.invoke("x")]}

    home = "plugins.langchain" if library.is_ours else "prebuilt"
    node = library.of(f"{home}.ToolNode")([ask])
    builder = library.graph(State, chat).add_node("tools", node)
    return builder.add_edge("chat", "tools")


def async_nodes(library: Library) -> Any:
    """An async node, an async path function, and a sync node after it."""

    async def speak(state: State, config: RunnableConfig) -> State:
        speaker = model("one word", "another", "third")
        await speaker.ainvoke("first", config)
        await speaker.ainvoke("second")
        async for _ in speaker.astream("third"):
            pass
        await adispatch_custom_event("news", {"n": 1})
        return {"n": 1}

    speak.__annotations__["config"] = RunnableConfig

    async def choose(state: State) -> str:
        await model("hello").ainvoke("x")
        return "after"

    def after(state: State) -> State:
        model("hello").invoke("x")
        return {"n": 2}

    builder = library.graph(State, speak).add_node("after", after)
    return builder.add_conditional_edges("speak", choose)
