"""Measures one Python file: its lines, its functions, how complex they are, what
repeats.

What was measured is made of named tuples: there are hundreds of thousands of them, and
they are pickled in C.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import threading
import time
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOG = "CENSUS_LOG"
"""The environment variable that names a file to which each measurement adds two lines:
the path when it begins; path, tab, seconds of processor time when it ends."""

BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
)
PARSING = threading.Lock()
"""Python 3.11 counts how deep it is in a tree for all OS threads together, and may fail
by that.
"""
SMALLEST_COPY = 40
"""A function counts as a copy only if it has this many syntax nodes: getters are all
alike.
"""


class Function(NamedTuple):
    """One function of a file."""

    name: str
    line: int
    lines: int
    complexity: int
    """Ways through it: 1, and 1 more for each branch, loop, handler, and/or."""
    shape: bytes
    """A digest of its syntax without names and constants; empty for a small one."""


class File(NamedTuple):
    """What was measured of a file."""

    path: str
    package: str
    lines: int = 0
    classes: int = 0
    functions: tuple[Function, ...] = ()
    error: str = ""
    """Why it could not be parsed."""


def python_files(roots: list[str]) -> list[tuple[str, str]]:
    """Return (package, path) of every Python file below *roots*, each once, in
    order.
    """
    found: dict[str, str] = {}
    for root in roots:
        top = Path(root)
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(
                f for f in folders if f not in ("__pycache__", "site-packages")
            )
            for name in sorted(files):
                if name.endswith(".py"):
                    path = Path(folder, name)
                    found.setdefault(
                        str(path), path.relative_to(top).parts[0].removesuffix(".py")
                    )
    return [(package, path) for path, package in sorted(found.items())]


def default_roots() -> list[str]:
    """Return where this interpreter's standard library and installed packages are."""
    paths = sysconfig.get_paths()
    return sorted({paths["stdlib"], paths["purelib"], paths["platlib"]})


def measure_file(package: str, path: str) -> File:
    """Return what there is to know about the file at *path*."""
    _note(path)
    began = time.thread_time()
    found = _measured(package, path)
    _note(f"{path}\t{time.thread_time() - began:.6f}")
    return found


def _measured(package: str, path: str) -> File:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            with PARSING:
                tree = ast.parse(text)
        return File(
            path,
            package,
            lines=text.count("\n"),
            classes=sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)),
            functions=tuple(_functions(tree)),
        )
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return File(path, package, error=f"{type(error).__name__}: {error}")


def _note(line: str) -> None:
    """Add a line to the log, if there is one: whatever becomes of this process, it is
    there.
    """
    if log := os.environ.get(LOG):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{line}\n".encode("utf-8", "surrogateescape"))
        finally:
            os.close(file)


def _functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = list(ast.walk(node))
            yield Function(
                node.name,
                node.lineno,
                (node.end_lineno or node.lineno) - node.lineno + 1,
                1 + sum(map(_ways, parts)),
                _shape(parts) if len(parts) >= SMALLEST_COPY else b"",
            )


def _ways(node: ast.AST) -> int:
    """Return how many ways through a function a part of it adds."""
    if isinstance(node, BRANCHES):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return 0


def _shape(parts: list[ast.AST]) -> bytes:
    names = "\n".join(
        f"{type(part).__name__}.{part.attr}"
        if isinstance(part, ast.Attribute)
        else type(part).__name__
        for part in parts
    )
    return hashlib.blake2b(
        names.encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
