"""A file that outgrows its limit holds two ideas, and so does a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Return every Python file of the package, the tests and the examples."""
    folders = ("flowpregel", "tests", "examples")
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def length(function: Function) -> int:
    """Return the lines of *function* from its ``def`` to its end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def oversized(name: str, source: str) -> Iterator[str]:
    """Yield a line for everything in *source* that is over its limit."""
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines (limit {FILE_LINES})"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and length(node) > FUNCTION_LINES:
            yield f"{name}:{node.lineno} {node.name}: {length(node)} lines (limit {FUNCTION_LINES})"


def test_files_and_functions_are_small() -> None:
    """Files have at most 400 lines, functions at most 50 without their docstring."""
    files = sources()
    assert ROOT / "flowpregel" / "errors.py" in files

    found = [
        line
        for file in files
        for line in oversized(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("\n" * FILE_LINES, []),
        ("\n" * (FILE_LINES + 1), ["m: 401 lines (limit 400)"]),
        ("def f():\n" + "    pass\n" * 49, []),
        ("async def f():\n" + "    pass\n" * 50, ["m:1 f: 51 lines (limit 50)"]),
        ('def f():\n    """One.\n\n    Two.\n    """\n' + "    pass\n" * 49, []),
        ("class C:\n    def f(self):\n" + "        pass\n" * 50, ["m:2 f: 51 lines (limit 50)"]),
    ],
)
def test_what_is_over_its_limit_is_found(source: str, found: list[str]) -> None:
    """The measure itself: limits are inclusive and docstrings are free."""
    assert found == list(oversized("m", source))
