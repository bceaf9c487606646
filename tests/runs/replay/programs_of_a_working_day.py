"""The programs that are edited in the course of a working day.

Each has a function ``main``, which is called on the first day and, after the edit, on
the second. On the first day something goes wrong where it calls `power_cut` or `kill`.
"""

from __future__ import annotations

from collections.abc import Mapping

HEAD = """
from flowpregel import entrypoint, task
from tests.runs.replay.working_days import is_first, kill, note, power_cut
"""

BILL = (
    HEAD
    + '''
RATE = 2


def scale(n):
    return n * RATE


@task
def price(n):
    """Return the price."""
    note(f"price({n})")
    if n == 3:
        power_cut("price(3)")
    value = scale(n)
    return value


@task
def total(prices):
    note(f"total({prices})")
    return sum(prices)


@entrypoint(checkpointer="runs.lmdb")
def bill(numbers):
    prices = [price(n).result() for n in numbers]
    return total(prices).result()


def main():
    return bill.run([1, 2, 3], id="bill")
'''
)

DONE = BILL.replace('    if n == 3:\n        power_cut("price(3)")\n', "")

KILLED = BILL.replace("power_cut(", "kill(").replace(
    'id="bill"', 'id="bill", durability="sync"'
)

CACHED = DONE.replace("@task\ndef price", "@task(cache=True)\ndef price").replace(
    'id="bill")', 'id="first" if is_first() else "second")'
)
"""Another run of the same store."""

CONSTANT = (
    HEAD
    + """
CONSTANT


@task
def price(n):
    note(f"price({n})")
    if n == 3:
        power_cut("price(3)")
    return USE


@entrypoint(checkpointer="runs.lmdb")
def bill(numbers):
    return [price(n).result() for n in numbers]


def main():
    return bill.run([1, 2, 3], id="bill")
"""
)

TWO_CALLS = (
    HEAD
    + """
@task
def area(width, height):
    note(f"area({width}, {height})")
    return width - height


@task
def label(size):
    note(f"label({size})")
    return f"{size} m2"


@entrypoint(checkpointer="runs.lmdb")
def plan(n):
    size = area(n, 2).result()
    text = label(size).result()
    power_cut()
    return text


def main():
    return plan.run(5, id="plan")
"""
)

QUESTIONS = (
    HEAD
    + """
from flowpregel import Command, interrupt

ONCE = True


@entrypoint(checkpointer="runs.lmdb")
def ask(name):
    holiday = interrupt("Approve the holiday of Ann?")
    power_cut()
    return {"holiday": holiday}


def main():
    if is_first():
        ask.invoke("x", thread_id="ask")
        return ask.invoke(Command(resume="yes"), thread_id="ask")
    left = ask.invoke(None, thread_id="ask")
    asked = left.get("__interrupt__")
    return [question.value for question in asked] if asked else left
"""
)

WAITING = QUESTIONS.replace("    power_cut()\n", "").replace(
    """        ask.invoke("x", thread_id="ask")
        return ask.invoke(Command(resume="yes"), thread_id="ask")
    left = ask.invoke(None, thread_id="ask")
""",
    """        return ask.invoke("x", thread_id="ask")
    left = ask.invoke(Command(resume="yes"), thread_id="ask")
""",
)
"""The question is shown in the morning, and answered in the afternoon."""

RECORDED = """
from dataclasses import dataclass


@dataclass
class Page:
    number: int
"""

PAGES = (
    HEAD
    + """
from pages import Page


@task
def read(n):
    note(f"read({n})")
    return Page(n)


@task
def weigh(page):
    note(f"weigh({page.number})")
    return page.number * 10


@entrypoint(checkpointer="runs.lmdb")
def book(numbers):
    pages = [read(n).result() for n in numbers]
    weights = [weigh(page).result() for page in pages]
    power_cut()
    return sum(weights)


def main():
    return book.run([1, 2], id="book")
"""
)

GRAPH = (
    HEAD
    + """
import operator
from typing import Annotated, TypedDict
from flowpregel import StateGraph

ONCE = True


def add(old, new):
    return old + new


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, add]


def first(state):
    note("first")
    return {"n": state["n"] + 1, "log": ["first"]}


def second(state):
    note("second")
    power_cut("second")
    return {"n": state["n"] * 10, "log": ["second"]}


def third(state):
    note("third")
    return {"log": ["third"]}


def route(state):
    return "second"


graph = StateGraph(State)
graph.add_node("first", first)
graph.add_node("second", second)
graph.add_node("third", third)
graph.set_entry_point("first")
graph.add_conditional_edges("first", route, ["second", "third"])
graph.add_edge("second", "third")
app = graph.compile(checkpointer="runs.lmdb")


def main():
    is_there = bool(app.get_state(thread_id="graph").values)
    return app.invoke(None if is_there else {"n": 1}, thread_id="graph")
"""
)

NAP = (
    HEAD
    + """
from flowpregel import sleep


@task
def ring(n):
    note(f"ring({n})")
    return n


@entrypoint(checkpointer="runs.lmdb")
def nap(n):
    before = ring(n).result()
    sleep(0.01)
    power_cut()
    return before + ring(n + 1).result()


def main():
    return nap.run(1, id="nap")
"""
)

FILES = (
    HEAD
    + """
from pathlib import Path
from flowpregel import File


@task
def count(path):
    note("count")
    return len(Path(path).read_text())


@task
def tell(n):
    note(f"tell({n})")
    power_cut(f"tell({n})")
    return f"{n} letters"


@entrypoint(checkpointer="runs.lmdb")
def letters(path):
    n = count(path).result()
    return tell(n).result()


def main():
    return letters.run(File("input.txt"), id="letters")
"""
)

PAGES_OF_TWO_FIELDS = RECORDED + "    old: int = 0\n"

IMPORTS = BILL.replace(
    "def scale(n):\n    return n * RATE\n", "from rates import scale\n"
)

IMPORTED_CONSTANT = BILL.replace("RATE = 2\n", "import rates\n").replace(
    "RATE\n", "rates.RATE\n"
)

DEPENDENT = IMPORTED_CONSTANT.replace(
    "import rates\n",
    """import sys
from pathlib import Path
sys.path.insert(1, str(Path(__file__).parent.parent / "installed"))
import rates
""",
)

PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "BILL": {"program.py": BILL},
    "DONE": {"program.py": DONE},
    "KILLED": {"program.py": KILLED},
    "CACHED": {"program.py": CACHED},
    "CONSTANT": {"program.py": CONSTANT},
    "TWO_CALLS": {"program.py": TWO_CALLS},
    "QUESTIONS": {"program.py": QUESTIONS},
    "WAITING": {"program.py": WAITING},
    "PAGES": {"program.py": PAGES, "pages.py": RECORDED},
    "PAGES_OF_TWO_FIELDS": {"program.py": PAGES, "pages.py": PAGES_OF_TWO_FIELDS},
    "GRAPH": {"program.py": GRAPH},
    "NAP": {"program.py": NAP},
    "FILES": {"program.py": FILES, "input.txt": "abc"},
    "PATH": {
        "program.py": FILES.replace('File("input.txt")', '"input.txt"'),
        "input.txt": "abc",
    },
    "IMPORTS": {"program.py": IMPORTS, "rates.py": "def scale(n):\n    return n * 2\n"},
    "IMPORTED_CONSTANT": {"program.py": IMPORTED_CONSTANT, "rates.py": "RATE = 2\n"},
    "DEPENDENT": {"program.py": DEPENDENT, "../installed/rates.py": "RATE = 2\n"},
}
"""The files of each program, by its name."""
