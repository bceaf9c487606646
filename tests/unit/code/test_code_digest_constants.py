"""Digests of code: an edit of a constant counts, whatever kind of object it is, or it
is told.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flowpregel._code.digest import code_digest
from tests.unit.code.code_packages import Import, load

__all__ = ["load"]  # a fixture

ROOT = Path(__file__).parents[3]
MODULE = """
    import argparse, array, cmath, collections, concurrent.futures, contextvars
    import dataclasses, datetime, decimal, enum, fractions, functools, hashlib
    import ipaddress, itertools, logging, math, operator, os, pathlib, random, re
    import socket, sqlite3, ssl, sys, threading, types
    import typing, uuid, weakref
    import numpy, pydantic

    class Model(pydantic.BaseModel):
        a: int

    class Text(str): ...

    class Failure(Exception): ...

    class Table(dict): ...

    @dataclasses.dataclass(frozen=True)
    class Point:
        a: int

    def class_in_function(k):
        class Inner:
            factor = k
        return Inner

    def class_with_closure(k):
        class Inner:
            def method(self):
                return k
        return Inner

    def adder(k):
        def add(n):
            return n + k
        return add

    def dispatched(result):
        @functools.singledispatch
        def function(value):
            return 0
        function.register(int, adder(result))
        return function

    def table(mode):
        made = Table()
        made.mode = mode
        return made

    CONSTANT = {}

    def work():
        return CONSTANT
"""
EDITED = [
    ("numpy.float64(1)", "numpy.float64(2)"),
    ("numpy.zeros(3)", "numpy.ones(3)"),
    ("numpy.zeros(300_000)", "numpy.ones(300_000)"),
    ("numpy.array([1, 'a'], object)", "numpy.array([1, 'b'], object)"),
    ("numpy.dtype('f4')", "numpy.dtype('f8')"),
    ("types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
    ("argparse.Namespace(a=1)", "argparse.Namespace(a=2)"),
    ("collections.ChainMap({'a': 1})", "collections.ChainMap({'a': 2})"),
    ("collections.UserDict(a=1)", "collections.UserDict(a=2)"),
    ("array.array('d', [1])", "array.array('d', [2])"),
    ("operator.itemgetter(1)", "operator.itemgetter(2)"),
    ("operator.attrgetter('a')", "operator.attrgetter('b')"),
    ("operator.methodcaller('a', 1)", "operator.methodcaller('a', 2)"),
    ("ipaddress.ip_address('10.0.0.1')", "ipaddress.ip_address('10.0.0.2')"),
    ("decimal.Decimal('1')", "decimal.Decimal('2')"),
    ("fractions.Fraction(1, 2)", "fractions.Fraction(1, 3)"),
    ("re.compile('a')", "re.compile('b')"),
    ("datetime.datetime(2024, 1, 1)", "datetime.datetime(2024, 1, 2)"),
    ("uuid.UUID(int=1)", "uuid.UUID(int=2)"),
    ("range(3)", "range(4)"),
    ("collections.deque([1], 2)", "collections.deque([1], 3)"),
    ("collections.Counter('ab')", "collections.Counter('abb')"),
    ("collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)"),
    ("collections.defaultdict(list)", "collections.defaultdict(int)"),
    ("types.MappingProxyType({'a': 1})", "types.MappingProxyType({'a': 2})"),
    ("enum.Enum('Color', 'RED')", "enum.Enum('Color', 'BLUE')"),
    ("enum.Enum('Color', {'RED': 1})", "enum.Enum('Color', {'RED': 2})"),
    ("enum.Enum('Color', {'RED': 1})(1)", "enum.Enum('Color', {'RED': 2})(2)"),
    ("Point(1)", "Point(2)"),
    ("Model(a=1)", "Model(a=2)"),
    (
        "pydantic.create_model('Out', a=(int, 1))",
        "pydantic.create_model('Out', b=(int, 1))",
    ),
    (
        "pydantic.create_model('Out', a=(int, 1))",
        "pydantic.create_model('Out', a=(int, 2))",
    ),
    (
        "pydantic.create_model('Out', a=(int, 1))",
        "pydantic.create_model('Out', a=(str, 1))",
    ),
    ("typing.TypedDict('Out', {'a': int})", "typing.TypedDict('Out', {'b': int})"),
    (
        "typing.NamedTuple('Out', [('a', int)])",
        "typing.NamedTuple('Out', [('b', int)])",
    ),
    (
        "dataclasses.make_dataclass('Out', ['a'])",
        "dataclasses.make_dataclass('Out', ['b'])",
    ),
    ("collections.namedtuple('P', 'a b')", "collections.namedtuple('P', 'b a')"),
    (
        "collections.namedtuple('P', 'a b')(1, 2)",
        "collections.namedtuple('P', 'b a')(1, 2)",
    ),
    ("class_in_function(1)", "class_in_function(2)"),
    ("class_in_function(1)()", "class_in_function(2)()"),
    ("class_with_closure(1)", "class_with_closure(2)"),
    ("[class_with_closure(1)()]", "[class_with_closure(2)()]"),
    ("functools.cache(adder(1))", "functools.cache(adder(2))"),
    ("functools.partial(adder, 1)", "functools.partial(adder, 2)"),
    ("dispatched(1)", "dispatched(2)"),
    ("{'a': 1}.get", "{'a': 2}.get"),
    ("Text('a')", "Text('b')"),
    ("Failure('a')", "Failure('b')"),
    ("table('a')", "table('b')"),
    ("frozenset({Point(1), Point(2)})", "frozenset({Point(1), Point(3)})"),
    ("[*range(20_000)]", "[*range(19_999), 0]"),
    (
        "contextvars.ContextVar('v', default=1)",
        "contextvars.ContextVar('v', default=2)",
    ),
    ("math.exp", "cmath.exp"),
    ("bytearray(b'a')", "bytearray(b'b')"),
    ("memoryview(b'a')", "memoryview(b'b')"),
    ("list[int]", "list[str]"),
    ("typing.Literal['a']", "typing.Literal['b']"),
    ("sys", "os"),
]


def digests(load: Import, *constants: str) -> list[str]:
    """Return the digest of `work` for each constant; each can be looked into."""
    found = [
        code_digest(load(MODULE.replace("{}", each, 1)).work) for each in constants
    ]
    assert {()} == {each.unseen for each in found}
    return [each.digest for each in found]


@pytest.mark.parametrize(("old", "new"), EDITED)
def test_an_edited_constant_counts(load: Import, old: str, new: str) -> None:
    """Whatever pickle would make of it; and it has the same digest in each module."""
    first, again, edited = digests(load, old, old, new)

    assert first == again != edited


def nested(depth: int, innermost: object) -> str:
    """Return the expression of a list of *depth* objects, each in the one before."""
    start, end = "argparse.Namespace(a=" * depth, ")" * depth
    return f"[{start}{innermost}{end}]"


def test_a_constant_counts_to_a_depth_that_never_changes(load: Import) -> None:
    """Results that other depths have made would be computed again."""
    first, edited = digests(load, nested(49, 1), nested(49, 2))
    assert first != edited

    first, edited = (
        code_digest(load(MODULE.replace("{}", nested(50, number), 1)).work).digest
        for number in (1, 2)
    )
    assert first == edited


TOOLS = [
    "threading.Lock()",
    "threading.Event()",
    "logging.getLogger('a')",
    "threading.local()",
    "weakref.WeakValueDictionary()",
    "concurrent.futures.ThreadPoolExecutor(1)",
    "sys.stdout",
    "random.random",
    "random.randint",
    "numpy.random.rand",
    "numpy.sin",
    "numpy",
    "print",
]


@pytest.mark.parametrize("constant", TOOLS)
def test_what_no_result_is_made_of_is_no_news(load: Import, constant: str) -> None:
    """Locks, loggers, threads, modules and functions have nothing that an edit could
    change.
    """
    first, again = digests(load, constant, constant)

    assert first == again


OPAQUE = {
    "sqlite3.connect(':memory:')": "sqlite3.Connection",
    "ssl.create_default_context()": "ssl.SSLContext",
    "open(os.devnull)": "_io.TextIOWrapper",
    "(n for n in [1])": "generator",
    "itertools.count()": "itertools.count",
    "random.Random(1)": "random.Random",
    "numpy.random.default_rng(1)": "numpy.random._generator.Generator",
    "hashlib.sha256(b'a')": "_hashlib.HASH",
    "[*range(1_000_001)]": "list",
    "[{'a': socket.socket()}]": "socket.socket",
}


def close(constant: Any) -> None:
    """Close the file or socket of a constant: left open, it warns at exit."""
    match constant:
        case [{"a": opened}] | opened if hasattr(opened, "close"):
            opened.close()


@pytest.mark.parametrize("constant", OPAQUE)
def test_what_cannot_be_looked_into_is_named(load: Import, constant: str) -> None:
    """By the name that the code has for it, and its type."""
    module = load(MODULE.replace("{}", constant, 1))
    found = code_digest(module.work)
    close(module.CONSTANT)

    assert (f"`CONSTANT` ({OPAQUE[constant]})",) == found.unseen


def test_objects_without_an_end_have_a_digest(load: Import) -> None:
    """A mock makes another mock, of another class, whenever it is asked for
    something.
    """
    source = (
        "import unittest.mock\nDATA = unittest.mock.Mock()\ndef work():\n    return "
        "DATA\n"
    )

    assert code_digest(load(source).work).unseen


def test_a_container_that_code_fills_is_no_other_code_by_that(load: Import) -> None:
    """But one that something else changes is, and so is a name that is bound to another
    one.
    """
    source = """
        ROWS, LIMITS = [], {"n": 1}
        def work():
            ROWS.append(LIMITS["n"])
    """
    module = load(source)
    before = code_digest(module.work).digest
    module.work()

    assert before == code_digest(module.work).digest
    module.LIMITS["n"] = 2
    changed = code_digest(module.work).digest
    assert before != changed
    module.ROWS = [3]
    assert changed != code_digest(module.work).digest


CLASSES = """
import abc, dataclasses, enum, functools, threading, typing
import attrs, pydantic

@dataclasses.dataclass
class Data:
    k: int = 1
    rows: list = dataclasses.field(default_factory=list)

@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    k: int = 1

@attrs.define
class Attrs:
    k: int = 1

class Tuple(typing.NamedTuple):
    k: int = 1

class Model(pydantic.BaseModel):
    k: int = 1

class Color(enum.Enum):
    K = 1

class Shape(typing.Protocol):
    k: int = 1

class Base(abc.ABC):
    __k = 60 * 60
    k = -1
    text = "a" "b"
    table = {"a": [1, (2, 3)], "b": {1, 2}}
    lock = threading.Lock()

    @abc.abstractmethod
    def area(self): ...

    def name(self):
        return self.__k

    @functools.cached_property
    def size(self):
        return 1

    @staticmethod
    def unit():
        return 1

    if typing.TYPE_CHECKING:
        other = 2
    else:
        other = 3

class Plain(Base, typing.Generic[typing.TypeVar("T")]):
    handlers = {}
    count = 0
    latest = None

    def area(self):
        return 1

    @classmethod
    def register(cls, function):
        cls.handlers[function.__name__] = function
        return function

    def note(self):
        Plain.count += 1
        type(self).latest = self

@Plain.register
def handle():
    return 1

def other(x):
    return x

# set later

def work():
    return Data, Slots, Attrs, Tuple, Model, Color, Shape, Base, Plain, other
"""


def test_attributes_of_a_class_that_its_body_gives_it_count_once(load: Import) -> None:
    """What its decorators and its bases make of them is no change of them."""
    found = code_digest(load(CLASSES).work)

    assert () == found.unseen
    assert [] == [name for name, text in found.parts.items() if "was set" in text]


SET_LATER = [
    "Plain.k = {}",
    "Base.k = {}",
    "Data.k = {}",
    "Attrs.extra = {}",
    "Plain.extra = [{}]",
    "Base.table['a'][0] = {}",
    "Plain.area = lambda self: {}",
    "setattr(Base, 'text', {})",
    "Base._Base__k = {}",
]


@pytest.mark.parametrize("line", SET_LATER)
def test_an_attribute_that_is_set_in_a_class_counts(load: Import, line: str) -> None:
    """Whatever its body has said before."""
    texts = ["", line.format(12), line.format(12), line.format(13)]
    made = [
        code_digest(load(CLASSES.replace("# set later", each)).work) for each in texts
    ]
    body, first, again, edited = (each.digest for each in made)

    assert first == again
    assert 3 == len({body, first, edited})


def test_an_attribute_of_a_class_that_code_sets_while_it_runs_is_state(
    load: Import,
) -> None:
    module = load(CLASSES)
    before = code_digest(module.work).digest
    module.Plain().note()
    module.Plain.register(lambda: 2)

    assert before == code_digest(module.work).digest


UNSEEN = {
    "Code that is found while running": (
        "K = {}\ndef work():\n    return globals()['K']\n"
    ),
    "Modules that are imported inside a function": (
        "def work():\n    from . import other\n    return other.K\n"
    ),
    "Other packages": "import json\ndef work():\n    return json.dumps({{}})\n",
    "Data": "import os\ndef work():\n    return os.environ['K']\n",
    "State": "K = {}\ndef work():\n    global K\n    K = K\n    return K\n",
    "Attributes of classes": (
        "class A:\n    k = int('1')\nA.k = {}\ndef work():\n    return A().k\n"
    ),
    "Objects without content": (
        "import sqlite3\nK = sqlite3.connect(':memory:', timeout={})\ndef work():\n    "
        "return K\n"
    ),
}
"""By the items of the list in the docs, programs whose edit is not seen."""


@pytest.mark.parametrize("item", UNSEEN)
def test_what_the_docs_list_is_not_seen(load: Import, item: str) -> None:
    """The list says what is so: the edit of K makes no other digest."""
    modules = [load(UNSEEN[item].format(n), other=f"K = {n}\n") for n in (1, 2)]

    assert 1 == len({code_digest(module.work).digest for module in modules})
    for module in modules:
        close(getattr(module, "K", None))


def test_the_list_in_the_docs_is_complete() -> None:
    """It has each item that is tested here, and code without a source, which counts
    otherwise.
    """
    page = (ROOT / "docs/how-to/change-code-while-a-run-is-unfinished.md").read_text(
        "utf-8"
    )
    section = page.partition("## What the digest cannot see")[2].partition(
        "\nGive such"
    )[0]
    items = re.findall(r"^\* \*\*(.+?)\*\*", section, re.MULTILINE)

    assert [*UNSEEN, "Code without a source"] == items
