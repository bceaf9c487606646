"""Digests of code: what means the same is the same; what does not is not."""

from __future__ import annotations

import textwrap
from types import ModuleType
from typing import Any

import pytest

from flowpregel._code.digest import code_digest
from tests.unit.code.code_packages import Import, load

__all__ = ["load"]  # a fixture


BASE = """
    def parse(path, sep=",", *, strict=False):
        rows = []
        for number, line in enumerate(path.split(sep)):
            if strict and not line:
                raise ValueError(f"line {number}")
            rows.append([part.strip() for part in line])
        return rows
"""

SAME = {
    "docstring": BASE.replace("rows = []", '"""Parse it."""\n        rows = []'),
    "comment": BASE.replace("rows = []", "rows = []  # all of them"),
    "annotations": BASE.replace("path, sep", "path: str, sep: str").replace(
        "se):", "se) -> list:"
    ),
    "annotated local": BASE.replace("rows = []", "rows: list[str] = []"),
    "layout": BASE.replace(
        "(path.split(sep))", "(\n            path.split(\n     sep,\n    ))"
    ),
    "declared local": BASE.replace("rows = []", "rows: list[str]\n        rows = []"),
    "quotes": BASE.replace('","', "','").replace(
        'f"line {number}"', "f'line {number}'"
    ),
    "local": BASE.replace("rows", "all_rows")
    .replace("number", "index")
    .replace("part", "p"),
    "shadowing local": BASE.replace(
        "[part.strip() for part in", "[line.strip() for line in"
    ),
    "pass": BASE.replace("return rows", "pass\n        return rows"),
    "moved": "\n\nX = 1\n\n" + textwrap.dedent(BASE),
    "unused import": "    import json\n" + BASE,
    "renamed": BASE.replace("parse", "parse_all"),
}

OTHER = {
    "attribute": BASE.replace("rows = []", "parse.n: int = 1\n        rows = []"),
    "constant": BASE.replace("[]", "[1]"),
    "operator": BASE.replace("and not", "or not"),
    "call": BASE.replace("strip", "rstrip"),
    "order": BASE.replace("number, line", "line, number"),
    "default": BASE.replace('sep=","', 'sep=";"'),
    "keyword default": BASE.replace("False", "True"),
    "argument": BASE.replace("sep", "separator"),
    "positional only": BASE.replace("path, ", "path, /, "),
    "text in an f-string": BASE.replace("line {", "row {"),
    "conversion": BASE.replace("{number}", "{number!r}"),
    "format": BASE.replace("{number}", "{number:3}"),
    "swapped locals": BASE.replace("append([part", "append([number"),
    "statement": BASE.replace("return rows", "rows.pop()\n        return rows"),
    "log line": BASE.replace("return rows", "print(rows)\n        return rows"),
    "decorator": BASE.replace(
        "    def", "    import functools\n    @functools.cache\n    def"
    ),
    "star": BASE.replace("sep=", "*sep").replace('","', "").replace(", *, ", ", "),
    "another builtin": BASE.replace("enumerate", "zip"),
    "shadowed builtin": "    enumerate = list\n" + BASE,
}


def parse_of(module: ModuleType) -> Any:
    return next(each for name, each in vars(module).items() if name.startswith("parse"))


@pytest.mark.parametrize("kind", SAME)
def test_what_means_the_same_has_the_same_digest(load: Import, kind: str) -> None:
    """Layout, names of locals and words for people are not code."""
    assert SAME[kind] != BASE

    assert (
        code_digest(parse_of(load(BASE))).digest
        == code_digest(parse_of(load(SAME[kind]))).digest
    )


def test_what_means_something_else_has_another_digest(load: Import) -> None:
    """Each of them its own."""
    digests = {
        code_digest(parse_of(load(each))).digest for each in (BASE, *OTHER.values())
    }

    assert 1 + len(OTHER) == len(digests)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[x for x in x]", "[y for y in x]", True),
        ("[x for x in x]", "[y for x in x]", False),
        ("[y for x in x for y in x]", "[y for z in x for y in z]", True),
        ("[(z := y) for y in x] + [z]", "[(w := v) for v in x] + [w]", True),
        ("[(z := y) for y in x] + [z]", "[(z := y) for y in x] + [y]", False),
        ("(lambda y: y + x)", "(lambda y: y + y)", False),
        ("(lambda y, /: y + x)", "(lambda z, /: z + x)", True),
        ("{k: v for k, v in x}", "{v: k for v, k in x}", True),
        ("{k: v for k, v in x}", "{v: k for k, v in x}", False),
        ("x.a.b", "x.b.a", False),
        ("x().a", "x().b", False),
        ("1", "True", False),
        ("1", "1.0", False),
        ("'a' 'b'", "'ab'", True),
        ("f'{x}' 'b'", "f'{x}b'", True),
        ("f'{x:{x}}'", "f'{x:x}'", False),
    ],
)
def test_names_are_those_of_their_scope(
    load: Import, one: str, other: str, same: bool
) -> None:
    """A comprehension, a lambda and a function may each have an `x` of their own."""
    first, second = (
        load(f"def parse(x):\n    return {each}\n") for each in (one, other)
    )

    assert same == (code_digest(first.parse).digest == code_digest(second.parse).digest)


def test_global_and_nonlocal_names_are_not_locals(load: Import) -> None:
    """Whoever declares one changes what it means."""
    source = """
        def parse():
            {}
            count = 1
            def inner():
                {}
                count = 2
            inner()
            return count
    """
    declared = [
        ("", ""),
        ("", "global count"),
        ("", "nonlocal count"),
        ("global count", ""),
    ]
    digests = {
        code_digest(load(source.format(*each)).parse).digest for each in declared
    }

    assert len(declared) == len(digests)
