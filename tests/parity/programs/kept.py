"""Programs with modules that stay LangGraph's under the import hook: its caches, the
messages for user interfaces, and the client of its server.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.base import BaseCache
from langgraph.cache.redis import RedisCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.ui import (
    AnyUIMessage,
    delete_ui_message,
    push_ui_message,
    ui_message_reducer,
)
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import CachePolicy, Command, Send

from tests.parity.programs import print_outcomes
from tests.parity.programs.servers import (
    ASKS,
    FAILS,
    GraphServer,
    RedisClient,
    running_server,
)

FOLDER = Path(tempfile.mkdtemp() if len(sys.argv) < 2 else sys.argv[1])


class State(TypedDict):
    """A number, and a list to which nodes add."""

    number: int
    log: Annotated[list[Any], operator.add]


# ---------------------------------------------------------------- user interfaces


class Page(TypedDict):
    """The state of a page."""

    ui: Annotated[list[AnyUIMessage], ui_message_reducer]
    number: int


def show(state: Page) -> Any:
    """Show two cards, and add to the first one."""
    push_ui_message("card", {"a": 1}, id="1", metadata={"x": 2})
    push_ui_message(
        "card", {"b": 2}, id="1", merge=True, message=AIMessage("", id="message")
    )
    push_ui_message("card", {"c": 3}, id="2")
    return {"number": 1}


def drop(state: Page) -> None:
    """Remove a card, and show one that is not in the state."""
    delete_ui_message("2")
    push_ui_message("hint", {}, id="3", state_key=None)


def interface() -> Any:
    """The messages in the state and in streams."""
    builder = StateGraph(Page).add_sequence([show, drop])
    app = builder.add_edge(START, "show").compile()
    config = {"tags": ["page"], "metadata": {"user": "ada"}}
    streams = [
        [*app.stream({"number": 0}, config, stream_mode=mode)]
        for mode in ("custom", "updates", "values")
    ]
    return [app.invoke({"number": 0}, config), *streams]


# ---------------------------------------------------------------- caches


def note(word: str) -> None:
    """Note a call in a file."""
    with (FOLDER / "notes").open("a") as file:
        print(word, file=file)


def notes() -> list[str]:
    """Return the calls since the last time."""
    path = FOLDER / "notes"
    words = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return words


def work(state: State) -> Any:
    """Return a command with values of many types."""
    note(f"work{state['number']}")
    values = [HumanMessage("Hello", id="1"), {"a": b"bytes"}, {1}, 2.5]
    return Command(update={"log": values}, goto=Send("end", {"number": 5}))


def end(state: State) -> Any:
    """Add the number that was sent."""
    return {"log": [state["number"]]}


@task(cache_policy=CachePolicy())
def slow(number: int) -> Any:
    """Return a list in a dict."""
    note(f"slow{number}")
    return {"numbers": [number]}


def runs_with(cache: Any) -> Any:
    """Run a graph and a workflow, and clear the cache between two runs."""
    builder = StateGraph(State).add_node(end)
    builder.add_node(work, cache_policy=CachePolicy(ttl=100))
    app = builder.add_edge(START, "work").compile(cache=cache)
    outcomes: list[Any] = [isinstance(cache, BaseCache)]
    for number in (1, 1, 2, 1):
        state = app.invoke({"number": number, "log": []})
        outcomes.append([repr(state["log"]), notes()])
    app.clear_cache(["work"])
    app.invoke({"number": 1, "log": []})
    outcomes.append(notes())

    @entrypoint(cache=cache)
    def flow(number: int) -> Any:
        return slow(number).result()

    return [*outcomes, flow.invoke(3), flow.invoke(3), notes()]


def sqlite_cache() -> Any:
    """A cache in a file, of which another one reads what it stores."""
    path = str(FOLDER / "cache.db")
    outcomes = runs_with(SqliteCache(path=path))
    builder = StateGraph(State).add_node(end)
    builder.add_node(work, cache_policy=CachePolicy(ttl=100))
    app = builder.add_edge(START, "work").compile(cache=SqliteCache(path=path))
    return [outcomes, app.invoke({"number": 1, "log": []})["number"], notes()]


def redis_cache() -> Any:
    """A cache on a server."""
    client = RedisClient()
    outcomes = runs_with(RedisCache(client))
    return [outcomes, len(client.entries)]


# ---------------------------------------------------------------- graphs on a server


def follow(state: State) -> Any:
    """Add the number that the server has sent."""
    return {"log": [state["number"]]}


def remote_graph() -> Any:
    """A graph on a server, alone and as a node."""
    outcomes: list[Any] = []
    with running_server() as url:
        remote = RemoteGraph("agent", url=url, name="remote")
        outcomes.append(remote.invoke({"number": 3}))
        outcomes.append([*remote.stream({"number": 3}, stream_mode="updates")])
        builder = StateGraph(State).add_node("remote", remote).add_node(follow)
        builder.add_edge(START, "remote").add_edge("remote", "follow")
        app = builder.compile()
        outcomes.append(
            [isinstance(each, kind) for each in (remote, app) for kind in KINDS]
        )
        given = {"number": 4, "log": ["given"]}
        outcomes.append(app.invoke(given, {"configurable": {"user": "ada"}}))
        outcomes.append(asyncio.run(app.ainvoke(given)))
        outcomes.append([*app.stream(given, stream_mode="updates")])
        try:
            app.invoke({"number": FAILS})
        except RemoteException as error:
            outcomes.append(str(error))
        outcomes.append(sorted(remote.get_graph().nodes))
        outcomes.append(questions_of(builder))
    return [*outcomes, GraphServer.requests]


KINDS = (Pregel, PregelProtocol)


def questions_of(builder: Any) -> Any:
    """Return the question of the graph on the server, and the node that waits."""
    app = builder.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    waiting = app.invoke({"number": ASKS, "log": []}, config)
    questions = [question.value for question in waiting["__interrupt__"]]
    return [questions, app.get_state(config).next]


if __name__ == "__main__":
    print_outcomes([interface, sqlite_cache, redis_cache, remote_graph])
