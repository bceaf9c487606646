"""A file that outgrows its limit holds two ideas, and so does a function."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.measure import code_lines

ROOT = Path(__file__).parents[2]
FILE_LINES = 450
FUNCTION_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Return every Python file of the package, the tests and the examples."""
    folders = ("flowpregel", "tests", "examples")
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def length(function: Function, source: str) -> int:
    """Return the code lines of *function*: its comments, docstrings and blank lines are
    free.
    """
    first, last = function.lineno - 1, function.end_lineno or function.lineno
    return code_lines(textwrap.dedent("\n".join(source.split("\n")[first:last])))


def oversized(name: str, source: str) -> Iterator[str]:
    """Yield a line for everything in *source* that is over its limit."""
    if (lines := code_lines(source)) > FILE_LINES:
        yield f"{name}: {lines} lines (limit {FILE_LINES})"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function):
            continue
        if (lines := length(node, source)) > FUNCTION_LINES:
            yield (
                f"{name}:{node.lineno} {node.name}: {lines} lines (limit "
                f"{FUNCTION_LINES})"
            )


def test_files_and_functions_are_small() -> None:
    """A file has at most 450 code lines, a function at most 50."""
    files = sources()
    assert ROOT / "flowpregel" / "errors.py" in files

    found = [
        line
        for file in files
        for line in oversized(
            str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        )
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1\n\n# why\n" * FILE_LINES, []),
        ("x = 1\n" * (FILE_LINES + 1), ["m: 451 lines (limit 450)"]),
        ("def f():\n" + "    pass\n" * 49, []),
        ("async def f():\n" + "    pass\n" * 50, ["m:1 f: 51 lines (limit 50)"]),
        ('def f():\n    """One.\n\n    Two.\n    """\n' + "    pass\n" * 49, []),
        (
            "class C:\n    def f(self):\n" + "        pass\n" * 50,
            ["m:2 f: 51 lines (limit 50)"],
        ),
    ],
)
def test_what_is_over_its_limit_is_found(source: str, found: list[str]) -> None:
    """The measure itself: limits are inclusive; comments, docstrings and blank lines
    are free.
    """
    assert found == list(oversized("m", source))
