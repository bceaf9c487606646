"""Under the hook flowpregel answers for LangGraph, and says what it does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.runs.forked_programs import ProgramServer
from tests.runs.hooked_programs import output_of_code

pytestmark = pytest.mark.slow

INSTALL = """
from flowpregel.plugins.langgraph import install, uninstall
install()
"""
ALL_NAMES = """
import importlib
from flowpregel.plugins.langgraph.hook import name_pairs
from flowpregel.plugins.langgraph.modules import MODULES
for module, homes in MODULES.items():
    theirs = importlib.import_module(module)
    kept = type(theirs.__loader__).__name__ != "LangGraphImporter"
    for home, names in homes.items():
        for name, ours in name_pairs(names, importlib.import_module(home)):
            if kept:
                getattr(theirs, name)
            else:
                own = getattr(importlib.import_module(home), ours)
                assert getattr(theirs, name) is own, (module, name)
    print(module, "kept" if kept else "ours")
"""
GRAPH = """
import operator
from typing import Annotated, TypedDict
import langgraph
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

class State(TypedDict):
    words: Annotated[list, operator.add]

def ask(state: State):
    return {"words": [interrupt("word?")]}

builder = StateGraph(State).add_node(ask)
builder.add_edge(START, "ask").add_edge("ask", END)
app = builder.compile(checkpointer=MemorySaver())
config = {"configurable": {"thread_id": "1"}}
app.invoke({"words": ["a"]}, config)
print(type(app).__module__, app.invoke(Command(resume="b"), config)["words"])
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramServer]:
    """A process that forks a program, with what LangGraph needs imported."""
    with ProgramServer(tmp_path_factory.mktemp("programs")) as server:
        yield server


def errors_of(
    programs: ProgramServer, *statements: str, hidden: tuple[str, ...]
) -> list[list[str]]:
    """Return the class and the text of the error that each statement raises."""
    lines = output_of_code(
        f"""{INSTALL}
import json
for statement in {statements!r}:
    try:
        exec(statement)
    except ImportError as error:
        print(json.dumps([type(error).__name__, str(error)]))
""",
        hidden=hidden,
        programs=programs,
    )
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("hidden", [(), ("langgraph",)], ids=["there", "absent"])
def test_every_name_of_the_table_is_flowpregels(
    programs: ProgramServer, hidden: tuple[str, ...]
) -> None:
    """Whether LangGraph is installed or not. Where it is, only the base classes of
    savers and caches and the client of its server stay LangGraph's.
    """
    lines = output_of_code(INSTALL + ALL_NAMES, hidden=hidden, programs=programs)

    kept = [line for line in lines if line.endswith(" kept")]
    stays = ["cache.base", "checkpoint.base", "pregel.remote"]
    expected = [] if hidden else [f"langgraph.{name} kept" for name in stays]
    assert expected == sorted(kept)
    assert "langgraph.prebuilt.tool_node ours" in lines


@pytest.mark.parametrize(
    "hidden",
    [(), ("langgraph",), ("langgraph", "langchain_core")],
    ids=["there", "absent", "nothing of LangChain"],
)
def test_a_program_runs_on_flowpregel(hidden: tuple[str, ...]) -> None:
    """Without a change, and without any package of LangChain."""
    lines = output_of_code(
        f"import os; os.environ['FLOWPREGEL_EXECUTOR'] = 'inline'{INSTALL}{GRAPH}",
        hidden=hidden,
    )

    assert ["flowpregel.graph.compile ['a', 'b']"] == lines


@pytest.mark.parametrize("hidden", [(), ("langgraph",)], ids=["there", "absent"])
def test_a_name_that_flowpregel_lacks_is_an_error_that_says_what_to_do(
    programs: ProgramServer, hidden: tuple[str, ...]
) -> None:
    """LangGraph's own is never imported in its place: it would be a second engine."""
    statements = {
        "from langgraph.types import Nonsense": (
            "langgraph.types.Nonsense",
            "remove the import",
        ),
        "import langgraph.pregel._loop": (
            "langgraph.pregel._loop",
            "internal to LangGraph",
        ),
        "from langgraph import graphs": ("langgraph.graphs", "remove the import"),
    }

    errors = errors_of(programs, *statements, hidden=hidden)

    for (name, advice), (kind, text) in zip(statements.values(), errors, strict=True):
        assert "ImportError" == kind
        assert f"flowpregel has no {name!r}" in text
        assert advice in text


def test_a_module_that_stays_langgraphs_needs_its_package(
    programs: ProgramServer,
) -> None:
    """The error says so."""
    modules = ["langgraph.cache.sqlite", "langgraph.graph.ui", "langgraph.stream"]

    errors = errors_of(
        programs, *(f"import {name}" for name in modules), hidden=("langgraph",)
    )

    for name, (kind, text) in zip(modules, errors, strict=True):
        assert "ModuleNotFoundError" == kind
        assert f"No module named {name!r}: flowpregel leaves it to LangGraph's" in text


def test_a_missing_name_can_be_asked_for(programs: ProgramServer) -> None:
    """`hasattr` and `getattr` act on a module of the hook as on any other."""
    assert ["False 5"] == output_of_code(
        f"""{INSTALL}
import langgraph.types
print(hasattr(langgraph.types, "Nonsense"), getattr(langgraph.types, "Nonsense", 5))
""",
        programs=programs,
    )


def test_install_is_refused_after_an_import_of_langgraph(
    programs: ProgramServer,
) -> None:
    """The error names modules, and the two remedies. Nothing has changed."""
    first, *lines = output_of_code(
        """
import sys
import langgraph.graph
from flowpregel.errors import ConfigurationError
from flowpregel.plugins.langgraph import install
finders = [*sys.meta_path]
try:
    install()
except ConfigurationError as error:
    print(error)
print(finders == sys.meta_path)
from langgraph.types import Command
print(Command.__module__)
""",
        programs=programs,
    )

    assert first.startswith("langgraph._internal, langgraph._internal._cache, ")
    assert "of LangGraph are imported already" in first
    assert "python -m flowpregel.langgraph PROGRAM" in first
    assert ["True", "langgraph.types"] == lines


def test_install_twice_is_install_once(programs: ProgramServer) -> None:
    """A package may install the hook too; one `uninstall` removes it, and LangGraph is
    back.
    """
    assert ["flowpregel.graph.compile", "False None", "langgraph.graph.state"] == (
        output_of_code(
            f"""
import os, sys
finders = [*sys.meta_path]
{INSTALL}
install()
import langgraph.graph.state
install()
print(langgraph.graph.state.CompiledStateGraph.__module__)
uninstall()
print(len(finders) != len(sys.meta_path), os.environ.get("FLOWPREGEL_PRELOAD"))
import langgraph.graph.state
print(langgraph.graph.state.CompiledStateGraph.__module__)
""",
            programs=programs,
        )
    )


def test_preloads_of_the_user_are_left_alone(programs: ProgramServer) -> None:
    """The hook adds its own to them, and takes away only its own."""
    hook = "flowpregel.plugins.langgraph.hook:install"

    assert [f"json,{hook}", "json"] == output_of_code(
        f"""
import os
os.environ["FLOWPREGEL_PRELOAD"] = "json"
{INSTALL}
print(os.environ["FLOWPREGEL_PRELOAD"])
uninstall()
print(os.environ["FLOWPREGEL_PRELOAD"])
""",
        programs=programs,
    )


def test_savers_and_serializers_stay_langgraphs(programs: ProgramServer) -> None:
    """Their classes are found where LangGraph's packages have them."""
    assert [
        "langgraph.checkpoint.sqlite",
        "langgraph.checkpoint.base",
        "langgraph.checkpoint.serde.jsonplus",
    ] == output_of_code(
        f"""{INSTALL}
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
assert issubclass(SqliteSaver, BaseCheckpointSaver)
for kind in SqliteSaver, BaseCheckpointSaver, JsonPlusSerializer:
    print(kind.__module__)
""",
        programs=programs,
    )


STORING = """
import sqlite3
from typing import TypedDict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.sqlite import SqliteStore

class State(TypedDict):
    name: str

def remember(state: State, *, store: BaseStore):
    store.put(("names",), state["name"], {"length": len(state["name"])}, ttl=60)
    [item] = store.search(("names",))
    return {"name": f"{item.key} {item.value}"}

store = SqliteStore(sqlite3.connect(":memory:", isolation_level=None,
                                    check_same_thread=False), ttl={})
store.setup()
print(issubclass(SqliteStore, BaseStore), BaseStore.__module__)
builder = StateGraph(State).add_node(remember).add_edge(START, "remember")
print(builder.compile(store=store).invoke({"name": "ada"})["name"])
print(store.get(("names",), "ada").value, store.list_namespaces())
try:
    store.put(("a.b",), "x", {})
except ValueError as error:
    print(type(error).__module__)
"""


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_store_of_langgraphs_serves_a_graph_of_flowpregels(
    programs: ProgramServer, executor: str
) -> None:
    """It is a subclass of flowpregel's base class then."""
    head = f"import os; os.environ['FLOWPREGEL_EXECUTOR'] = {executor!r}{INSTALL}"

    assert [
        "True flowpregel.store.base",
        "ada {'length': 3}",
        "{'length': 3} [('names',)]",
        "flowpregel.errors",
    ] == output_of_code(head + STORING, programs=programs)


ASKING = """
import sqlite3, sys, warnings
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt

class State(TypedDict, total=False):
    word: str

def start(state: State):
    return Command(goto=Send("ask", {"word": "a"}))

def ask(state: State):
    return {"word": state["word"] + interrupt("word?")}

builder = StateGraph(State)
builder.add_node(start, destinations=("ask",)).add_node(ask)
builder.add_edge(START, "start").add_edge("ask", END)
saver = SqliteSaver(sqlite3.connect(FILE, check_same_thread=False))
app = builder.compile(checkpointer=saver)
config = {"configurable": {"thread_id": "1"}}
"""


@pytest.mark.parametrize("asks_on", ["flowpregel", "LangGraph"])
def test_a_thread_moves_between_the_hook_and_langgraph(
    programs: ProgramServer, asks_on: str, tmp_path: object
) -> None:
    """A question and a Send that one of the two has stored have the classes of the
    other.
    """
    head = f"FILE = {str(tmp_path)!r} + '/chat.db'\n"
    hooked = f"import os; os.environ['FLOWPREGEL_EXECUTOR'] = 'inline'{INSTALL}{head}"
    first, second = (hooked, head) if asks_on == "flowpregel" else (head, hooked)
    code = "print(app.invoke({}, config)['__interrupt__'][0].value)"
    look = """
[task] = app.get_state(config).tasks
print(task.name)
stored = saver.get_tuple(config)
print([type(value[0]) is Interrupt
       for _, channel, value in stored.pending_writes if channel == "__interrupt__"])
sends = stored.checkpoint["channel_values"]["__pregel_tasks"]
print([type(item) is Send for item in sends])
"""

    assert ["word?"] == output_of_code(first + ASKING + code, programs=programs)
    assert ["ask", "[True]", "[True]"] == output_of_code(
        second + ASKING + look, programs=programs
    )
