"""``python -m flowpregel.langgraph`` runs a program as ``python`` does, with its nodes
in worker processes.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.runs.hooked_programs import HOOK, run_python

pytestmark = pytest.mark.slow

WHERE = """
import sys
from langgraph.graph import StateGraph
print(__name__, sys.argv, sys.path[0], StateGraph.__module__)
print(sys.modules["__main__"].__dict__ is globals())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a program."""
    folder = tmp_path.resolve() / "programs"
    folder.mkdir()
    (folder / "program.py").write_text(WHERE)
    return folder


@pytest.mark.parametrize("is_module", [False, True], ids=["file", "module"])
def test_a_program_is_run_as_python_runs_it(folder: Path, is_module: bool) -> None:
    """With its name, its arguments and its path; only LangGraph is another."""
    program = ["-m", "program"] if is_module else [str(folder / "program.py")]
    cwd = folder if is_module else folder.parent
    arguments = [*program, "-x", "--help"]

    hooked = run_python(*HOOK, *arguments, cwd=cwd)
    plain = run_python(*arguments, cwd=cwd)

    ours = "flowpregel.plugins.langgraph.names.graph"
    assert ours in hooked.stdout, hooked.stderr
    assert plain.stdout.replace("langgraph.graph.state", ours) == hooked.stdout


def test_the_exit_code_of_a_program_is_its_own(folder: Path) -> None:
    """Its error is on the screen."""
    (folder / "program.py").write_text("import sys; sys.exit('no luck')")

    done = run_python(*HOOK, "program.py", cwd=folder)

    assert (1, "no luck\n") == (done.returncode, done.stderr)


def test_a_program_that_does_not_exist_is_told_in_a_line(folder: Path) -> None:
    """Without our traceback."""
    done = run_python(*HOOK, "progam.py", cwd=folder)

    assert (1, "there is no program progam.py\n") == (done.returncode, done.stderr)


def test_without_a_program_the_command_says_how_to_call_it() -> None:
    """On stderr, as an error; on demand, on stdout."""
    asked = run_python(*HOOK, "--help")

    assert 0 == asked.returncode
    assert "python -m flowpregel.langgraph PROGRAM" in asked.stdout
    for arguments in ((), ("-m",), ("-x", "program.py")):
        done = run_python(*HOOK, *arguments)
        assert (1, "", asked.stdout) == (done.returncode, done.stdout, done.stderr)


STEPS = """
import os
from langgraph.types import Command
import langgraph.graph as graphs

def square(state):
    assert Command.__module__.startswith("flowpregel"), Command.__module__
    return Command(update={"number": state["number"] ** 2, "pids": [os.getpid()]})
"""
USING = """
import operator, os
from typing import Annotated, TypedDict
import langgraph.types
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
import steps

class State(TypedDict):
    number: int
    pids: Annotated[list, operator.add]

def double(state: State):
    assert langgraph.types.Command is Command
    assert Command.__module__.startswith("flowpregel"), Command.__module__
    return {"number": 2 * state["number"], "pids": [os.getpid()]}

builder = StateGraph(State).add_sequence([steps.square, double])
app = builder.add_edge(START, "square").add_edge("double", END).compile()
result = app.invoke({"number": 3, "pids": []})
print(result["number"], os.getpid() in result["pids"], len(result["pids"]))
"""


def test_nodes_run_in_worker_processes_under_the_hook(folder: Path) -> None:
    """A node of another module, which imports LangGraph in its worker, and one of the
    program itself, which names a module of it.
    """
    (folder / "steps.py").write_text(STEPS)
    (folder / "program.py").write_text(USING)

    done = run_python(*HOOK, "program.py", cwd=folder)

    assert "18 False 2\n" == done.stdout, done.stderr


KILLED = """
import os, signal, sqlite3
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

class State(TypedDict):
    pid: int
    number: int

def note(text):
    with open("notes.txt", "a") as file:
        print(text, file=file)

def compute(state: State):
    note("compute")
    return {"number": 41}

def finish(state: State):
    note("finish")
    if os.environ["DIES"] == "1":
        os.kill(state["pid"], signal.SIGKILL)
    return {"number": state["number"] + 1}

builder = StateGraph(State).add_sequence([compute, finish])
builder.add_edge(START, "compute").add_edge("finish", END)
saver = SqliteSaver(sqlite3.connect("runs.db", check_same_thread=False))
app = builder.compile(checkpointer=saver)
config = {"configurable": {"thread_id": "1"}}
is_new = app.get_state(config).next == ()
given = {"pid": os.getpid(), "number": 0} if is_new else None
print(app.invoke(given, config, durability="sync")["number"])
"""


def test_a_program_that_was_killed_resumes_where_it_was(folder: Path) -> None:
    """It is killed with SIGKILL in its second node, and keeps LangGraph's saver."""
    (folder / "program.py").write_text(KILLED)

    killed = run_python(*HOOK, "program.py", cwd=folder, variables={"DIES": "1"})
    resumed = run_python(*HOOK, "program.py", cwd=folder, variables={"DIES": "0"})

    assert (-signal.SIGKILL, "") == (killed.returncode, killed.stdout), killed.stderr
    assert (0, "42\n") == (resumed.returncode, resumed.stdout), resumed.stderr
    notes = (folder / "notes.txt").read_text().split()
    assert ["compute", "finish", "finish"] == notes


READING = """
import operator
from typing import Annotated, TypedDict
from langgraph._internal._constants import CONFIG_KEY_READ, CONFIG_KEY_SEND
from langgraph.config import get_config
from langgraph.graph import START, StateGraph

class Name(TypedDict):
    name: str

class State(Name):
    log: Annotated[list, operator.add]

def inner(state: Name, config):
    config["configurable"][CONFIG_KEY_SEND]([("log", ["inner"])])

def outer(state: Name, config):
    read, send = (get_config()["configurable"][key] for key in (
        CONFIG_KEY_READ, CONFIG_KEY_SEND))
    before = read("log")
    send([("log", ["outer"])])
    graph = StateGraph(State, input_schema=Name).add_node(inner)
    result = graph.add_edge(START, "inner").compile().invoke({"name": "b"}, config)
    seen = [before, read("log"), read("log", True), read(["name", "log"], True)]
    return {"log": [*result["log"], seen]}

def other(state: Name):
    return {"log": ["other"]}

builder = StateGraph(State)
for node in (outer, other):
    builder.add_node(node).add_edge(START, node.__name__)
app = builder.compile()
print(app.invoke({"name": "a", "log": ["given"]}))
for item in app.stream({"name": "a", "log": []}, stream_mode="updates"):
    if "outer" in item:
        print(item)
"""


def test_a_node_reads_and_writes_the_state_by_its_config(folder: Path) -> None:
    """As packages do it: its own writes are seen, those of other nodes are not, and a
    graph that it calls has a state of its own.
    """
    (folder / "program.py").write_text(READING)

    plain = run_python("program.py", cwd=folder)

    assert (0, 2) == (plain.returncode, len(plain.stdout.splitlines())), plain.stderr
    for executor in ("inline", "threads", "processes"):
        variables = {"FLOWPREGEL_EXECUTOR": executor}
        hooked = run_python(*HOOK, "program.py", cwd=folder, variables=variables)
        assert plain.stdout == hooked.stdout, (executor, hooked.stderr)
