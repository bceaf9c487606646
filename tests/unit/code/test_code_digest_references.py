"""Digests of code: helpers and constants count, however far away they are."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from flowpregel._code.digest import CodeDigest, code_digest
from tests.unit.code.code_packages import Import, load, run

__all__ = ["load"]  # a fixture


def names(found: CodeDigest) -> list[str]:
    """Return the names of all parts without their module."""
    return sorted(name.partition(":")[2] for name in found.parts)


def changed(old: CodeDigest, new: CodeDigest) -> list[str]:
    """Return the names of the parts that differ, those of the module counted as one."""
    parts = [
        {name.partition(".")[2]: digest for name, digest in each.parts.items()}
        for each in (old, new)
    ]
    return sorted(
        name
        for name in {*parts[0], *parts[1]}
        if parts[0].get(name) != parts[1].get(name)
    )


HELPERS = """
    LIMIT = 3

    def clean(text):
        return strip(text)[:LIMIT]

    def strip(text):
        return text.strip()

    def unused(text):
        return text
"""
MAIN = """
    from . import helpers
    from .helpers import clean

    def parse(text):
        return clean(text)

    def by_module(text):
        return helpers.clean(text)
"""


@pytest.mark.parametrize("function", ["parse", "by_module"])
@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("strip()", "rstrip()", ["helpers:strip"]),
        ("LIMIT = 3", "LIMIT = 4", ["helpers:LIMIT"]),
        ("[:LIMIT]", "[1:LIMIT]", ["helpers:clean"]),
        ("return text\n", "return None\n", []),
        ("clean(text):", "clean(text: str):  # now", []),
    ],
)
def test_helpers_and_constants_count(
    load: Import, function: str, old: str, new: str, parts: list[str]
) -> None:
    """However far away they are; and the digest says which of them changed."""
    before = code_digest(getattr(load(MAIN, helpers=HELPERS), function))
    after = code_digest(
        getattr(load(MAIN, helpers=HELPERS.replace(old, new)), function)
    )

    assert parts == changed(before, after)
    assert (not parts) == (before.digest == after.digest)


def test_a_module_that_an_outer_function_imports_counts(load: Import) -> None:
    """It is in the closure of the inner one."""
    main = """
        def make():
            from . import helpers
            return lambda text: helpers.clean(text)
        parse = make()
    """
    before = code_digest(load(main, helpers=HELPERS).parse)
    after = code_digest(
        load(main, helpers=HELPERS.replace("strip()", "rstrip()")).parse
    )

    assert ["helpers:strip"] == changed(before, after)


def test_a_helper_may_move(load: Import) -> None:
    """In which module it is does not count, but which one is called does."""
    main = "from .{} import clean\ndef parse(x):\n    return clean(x)\n"
    one = load(main.format("a"), a="def clean(x):\n    return 1\n")
    moved = load(
        main.format("b"), b="X = 2\ndef clean(y):\n    return 1\n".replace("y", "x")
    )

    assert code_digest(one.parse).digest == code_digest(moved.parse).digest


def test_helpers_that_swap_their_code_are_told_apart(load: Import) -> None:
    """Although all parts together are what they were."""
    source = (
        "def a():\n    return {}\ndef b():\n    return {}\ndef parse():\n    return "
        "a(), b()\n"
    )
    digests = {
        code_digest(load(source.format(*each)).parse).digest
        for each in ((1, 2), (2, 1))
    }

    assert 2 == len(digests)


def test_helpers_that_call_each_other_have_a_digest(load: Import) -> None:
    """A circle ends, and each part of it counts."""
    source = """
        def parse(n):
            return even(n)
        def even(n):
            return n == 0 or odd(n - 1)
        def odd(n):
            return n != 0 and even(n - {})
    """
    one, two = (code_digest(load(source.format(n)).parse) for n in (1, 2))

    assert ["even", "odd", "parse"] == names(one)
    assert ["main:odd"] == changed(one, two)


CONSTANTS = [
    "1",
    "1.0",
    "True",
    "'1'",
    "b'1'",
    "None",
    "(1,)",
    "[1]",
    "{1}",
    "{1: 2}",
    "{1: 3}",
    "-1",
    "10**5000",
    "[clean]",
    "[other]",
    "{'a': clean}",
    "Color.RED",
    "Color.BLUE",
    "Point(1)",
    "Point(2)",
    "pathlib.PurePosixPath('a')",
    "re.compile('a')",
    "re.compile('a', re.I)",
    "functools.partial(clean, 1)",
    "functools.partial(clean, 2)",
    "functools.partial(other, 1)",
    "Point(1).method",
    "datetime.date(2024, 1, 2)",
    "range(3)",
    "math.floor",
    "math.ceil",
    "threading.Lock()",
    "numpy.zeros(3)",
    "Plain(1)",
    "Plain(2)",
    "Point",
    "Color",
    "os.path.join",
    "numpy.sin",
    "numpy.cos",
    "LOOP",
    "[lambda: 1, lambda: 2]",
    "static",
    "managed",
    "deque([1])",
    "[*range(20_000)]",
    "[*range(20_001)]",
]
CONSTANT = """
    import contextlib, datetime, enum, functools, math, os.path, pathlib, re, threading
    from collections import deque
    from dataclasses import dataclass
    import numpy

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    @dataclass
    class Point:
        x: int
        def method(self): ...

    class Plain:
        def __init__(self, x):
            self.x = x

    def clean(): return 1
    def other(): return 2
    LOOP = [1]
    LOOP.append(LOOP)
    static = staticmethod(lambda: 3)
    @contextlib.contextmanager
    def managed(): yield 4
    CONSTANT = {}
    def parse(): return CONSTANT
"""


def test_constants_count_by_their_content(load: Import) -> None:
    """No two of some forty have the same digest, and each has the same again."""
    digests = [
        [code_digest(load(CONSTANT.format(each)).parse).digest for each in CONSTANTS]
        for _ in range(2)
    ]

    assert digests[0] == digests[1]
    assert len(CONSTANTS) == len({*digests[0]})


def test_order_counts_in_no_set_and_no_dict(load: Import) -> None:
    """Neither of constants nor of functions."""
    one = "({1: 'a', 2: clean}, {clean, other, 'a', 'b', None})"
    two = "({2: clean, 1: 'a'}, {None, 'b', 'a', other, clean})"
    digests = {
        code_digest(load(CONSTANT.format(each)).parse).digest for each in (one, two)
    }

    assert 1 == len(digests)


def test_what_a_decorator_from_elsewhere_wraps_counts(load: Import) -> None:
    """Such as a function that is made a context manager."""
    source = """
        import contextlib
        @contextlib.contextmanager
        def opened():
            yield {}
        def parse():
            with opened() as found:
                return found
    """
    one, two = (code_digest(load(source.format(n)).parse) for n in (1, 2))

    assert ["main:opened"] == changed(one, two)


def test_what_has_no_content_counts_by_its_type_and_says_so(load: Import) -> None:
    """Connections and the like: the note stands with the part."""
    module = load(
        "import sqlite3\nDATA = sqlite3.connect(':memory:')\ndef parse():\n    return "
        "DATA\n"
    )
    found = code_digest(module.parse)
    part = found.parts[f"{module.__name__}:DATA"]

    assert "sqlite3:Connection: by type only" in part
    assert ("`DATA` (sqlite3.Connection)",) == found.unseen
    module.DATA.close()


def test_a_name_that_is_rebound_while_running_is_no_constant(load: Import) -> None:
    """A value that is loaded when it is first needed, for example."""
    source = """
        _model = None
        def parse():
            global _model
            _model = _model or load
            return _model
        def load():
            return 3
    """
    module = load(source)
    before = code_digest(module.parse)
    module.parse()

    assert before == code_digest(module.parse)
    assert "_model is rebound" in before.parts[f"{module.__name__}:parse"]


def test_a_module_with_a_name_that_is_rebound_while_running_is_a_constant(
    load: Import,
) -> None:
    """A digest holds while the name has other values, but not with another module."""
    module = load(
        """
        from . import package
        def count():
            package.state.count += 1
        """,
        package="from . import state\n",
        state="count = 0\n",
    )
    bindings = code_digest(module.count).bindings
    module.count()
    assert bindings.hold()

    module.package.state = types.ModuleType(module.package.state.__name__)

    assert not bindings.hold()


def test_what_is_from_elsewhere_counts_by_name(load: Import) -> None:
    """The standard library and installed packages."""
    source = (
        "from json import {0}\nimport {1} as np\ndef parse(x):\n    return "
        "{0}(np.sum(x))\n"
    )
    one, two, three = (
        code_digest(load(source.format(*each)).parse)
        for each in (("dumps", "numpy"), ("loads", "numpy"), ("dumps", "math"))
    )

    assert ["parse"] == names(one)
    assert 3 == len({one.digest, two.digest, three.digest})


def test_a_module_of_a_script_is_looked_into_but_no_installed_one(
    tmp_path: Path,
) -> None:
    """What lies in the folder of a script belongs to it, unless it is an
    environment.
    """
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "theirs.py").write_text("def theirs():\n    return 1\n")
    (tmp_path / "helpers.py").write_text("def clean():\n    return 1\n")
    (tmp_path / "script.py").write_text(
        "import sys\nsys.path.append('venv/site-packages')\n"
        "from flowpregel._code.digest import code_digest\n"
        "import helpers, theirs\n"
        "def parse():\n    return helpers.clean(), theirs.theirs()\n"
        "print(*code_digest(parse).parts)\n"
    )

    assert "__main__:parse helpers:clean" == run("script.py", cwd=tmp_path)
