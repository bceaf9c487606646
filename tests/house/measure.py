"""What the house tests count: code lines, classes, imports."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "flowpregel"
_LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def package_files() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    """Return the dotted name of the module that *file* is."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(source: str) -> int:
    """Return the lines of *source* that hold code: no blanks, comments or
    docstrings.
    """
    lines: set[int] = set()
    for token in _code_tokens(source):
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def code_tokens(source: str) -> int:
    """Return the number of tokens on the code lines of *source*."""
    return sum(1 for _ in _code_tokens(source))


def is_layout(token: tokenize.TokenInfo) -> bool:
    """Return whether *token* is a comment, an indentation or the end of a line."""
    return token.type in _LAYOUT


def _code_tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of *source* that are neither layout nor part of a docstring."""
    docstrings = set(_lines_of_strings(ast.parse(source)))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if not is_layout(token) and token.start[0] not in docstrings:
            yield token


def _lines_of_strings(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of docstrings, those of attributes included."""
    for node in ast.walk(tree):
        if not isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            continue
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


def classes(source: str) -> list[str]:
    """Return the names of all classes that *source* defines, inner ones too."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    ]
