"""What a script or notebook defines in ``__main__`` goes to workers and comes back as
itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAD = """
import enum
import threading
from dataclasses import dataclass
from flowpregel.errors import TaskSerializationError
from flowpregel.func import entrypoint, task

def run(function, *args, **kwargs):
    called = task(function)

    @entrypoint(executor="processes")
    def flow(_):
        return called(*args, **kwargs).result()

    return flow.invoke(0)
"""


def output_of(program: str, folder: Path) -> list[str]:
    """Return the lines that a script prints: one without a ``__main__`` guard."""
    file = folder / "program.py"
    file.write_text(HEAD + program)
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


CLASSES = """
class Color(enum.Enum):
    RED = 1

@dataclass
class Point:
    x: int
    moves = 0

def move(point):
    Point.moves = 99
    return Point(point.x + 1), Color.RED

moved, color = run(move, Point(1))
print(isinstance(moved, Point), moved == Point(2), color is Color.RED, Point.moves)
"""


def test_values_of_its_classes_are_its_own(tmp_path: Path) -> None:
    """Equal, of the same class, the same enum member; and the class is as it was."""
    assert ["True True True 0"] == output_of(CLASSES, tmp_path)


SLOTS = """
import abc, collections, typing

class Named(typing.NamedTuple):
    n: int

Old = collections.namedtuple("Old", "n")

T = typing.TypeVar("T")

class Base(abc.ABC, typing.Generic[T]):
    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> T: ...

class Box(Base[int]):
    __slots__ = "held"

    def __init__(self, held):
        self.held = held

    def get(self):
        return self.held

def boxed(named, old, box):
    return Named(named.n + 1), Old(old.n + 1), Box(box.get() + 1)

named, old, box = run(boxed, Named(1), Old(2), Box(3))
print(named, old, box.get(), hasattr(box, "__dict__"))

class Pair:
    __slots__ = ("left", "__right")

    def __init__(self, left, right):
        self.left, self.__right = left, right

    def both(self):
        return self.left, self.__right

@dataclass(slots=True)
class Point:
    x: int
    near: object = None

class Far(Point):
    pass

def made(pair, point):
    far = Far(point.x + 1, Pair(*pair.both()))
    far.name = "Far"
    return pair, point, far, hasattr(pair, "__dict__") or hasattr(point, "__dict__")

pair, point, far, loose = run(made, Pair(1, 2), Point(3))
print(pair.both(), point, type(far) is Far, far.x, far.near.both(), far.name, loose)
"""


def test_values_of_its_classes_with_slots_come_back(tmp_path: Path) -> None:
    """In a worker they have slots too."""
    assert [
        "Named(n=2) Old(n=3) 4 False",
        "(1, 2) Point(x=3, near=None) True 4 (1, 2) Far False",
    ] == output_of(SLOTS, tmp_path)


STATES = """
import operator
from typing import Annotated, TypedDict
from flowpregel.graph import START, StateGraph

class Question(TypedDict):
    asked: str

class Answer(TypedDict, total=False):
    told: Annotated[list, lambda old, new: [*old, *new]]

class State(Question, Answer):
    mood: str

def think(state: Question) -> Answer:
    return {"told": [state["asked"]], "mood": ", ".join(State.__annotations__)}

def tell(state: State) -> State:
    return {"told": [sorted(State.__required_keys__)]}

graph = StateGraph(State, input_schema=Question)
graph.add_sequence([think, tell]).add_edge(START, "think")
print(graph.compile(executor="processes").invoke({"asked": "why"}))
"""


def test_states_that_extend_others_go_along_with_its_nodes(tmp_path: Path) -> None:
    """As annotations and as globals of a node's function."""
    state = {
        "asked": "why",
        "told": ["why", ["asked", "mood"]],
        "mood": "asked, told, mood",
    }
    assert [str(state)] == output_of(STATES, tmp_path)


ERRORS = """
class Refused(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

def refuse(code):
    raise Refused(code)

try:
    run(refuse, 7)
except Refused as error:
    print("caught", error.code)
"""


def test_its_errors_are_caught_as_themselves(tmp_path: Path) -> None:
    """By the ``except`` that names their class."""
    assert ["caught 7"] == output_of(ERRORS, tmp_path)


LOCAL = '''
def outer():
    class Local:
        def __init__(self, value):
            self.value = value

    made = run(lambda value: Local(value + 1), 1)
    return isinstance(made, Local), run(lambda given: given.value, made)

def inner(value):
    class Own:
        pass
    own = Own()
    own.value = value
    return own

print(outer(), run(inner, 3).value, run(lambda given: given.value, run(inner, 4)))

cell = {"__name__": "__main__"}
exec("""
import math

class Root:
    def __init__(self, of):
        self.value = math.sqrt(of)

def root(of):
    return Root(of)
""", cell)
found = run(cell["root"], 16)
print(isinstance(found, cell["Root"]), found.value)
'''


def test_local_classes_lambdas_and_cells_of_a_notebook_work(tmp_path: Path) -> None:
    """None of them can be imported by a worker."""
    assert ["(True, 2) 3 4", "True 4.0"] == output_of(LOCAL, tmp_path)


REFUSED = """
lock = threading.Lock()

class Holder:
    def __init__(self):
        self.inside = {"a": [threading.Lock()]}

class Wants(Exception):
    def __init__(self, *, code):
        super().__init__("it wants a code")

def told(function, *args, **kwargs):
    try:
        run(function, *args, **kwargs)
    except TaskSerializationError as error:
        print(str(error).split(": TypeError")[0])

def positional(first, second):
    pass

def result(_):
    return Holder()

def error(_):
    raise Wants(code=1)

def code(_):
    return lock

unreadable = Wants(code=1)

def unread(_):
    return unreadable

told(positional, 1, Holder())
told(positional, 1, second={"k": Holder()})
told(result, 1)
told(error, 1)
told(code, 1)
told(unread, 1)
"""


def test_what_cannot_travel_is_named_with_task_argument_and_path(
    tmp_path: Path,
) -> None:
    """Inputs, results, errors and the code itself."""
    assert [
        (
            "the input of task 'positional' cannot be pickled at "
            "args[1].inside['a'][0]: "
            "_thread.lock"
        ),
        "the input of task 'positional' cannot be pickled at "
        "argument second['k'].inside['a'][0]:"
        " _thread.lock",
        (
            "the result of task 'result' cannot be pickled at result.inside['a'][0]: "
            "_thread.lock"
        ),
        "the error of task 'error' cannot be pickled at error: __main__.Wants",
        (
            "the code of task 'code' cannot be pickled at function.<global lock>: "
            "_thread.lock"
        ),
        "the code of task 'unread' cannot be pickled at code",
    ] == output_of(REFUSED, tmp_path)
