"""The syntax tree of a function or a class that exists, found in its file or notebook
cell.

Of a file only the statements that are asked for are parsed: whole files would take
most of the time that a digest takes.
"""

from __future__ import annotations

import ast
import dis
import linecache
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

from flowpregel._code.class_bodies import bound_by
from flowpregel._code.tree import FUNCTIONS, written
from flowpregel._code.values import is_ours

_LAYOUT = frozenset(" \t\r\n\f#)]}")
"""What a line begins with that does not begin a statement of a module."""


class Found(NamedTuple):
    """A definition."""

    meaning: str
    """What it does, as `written` writes it."""
    names: list[tuple[str, ...]]
    """The global names in it, each with the attributes that are taken."""
    source: str
    filled: frozenset[str] = frozenset()
    """The names of containers that it fills, as in ``rows.append(row)`` and ``rows[0] =
    row``.
    """
    attributes: Mapping[str, Any] = MappingProxyType({})
    """The names that a class binds in its body: see `bound_by`."""
    rebound: frozenset[str] = frozenset()
    """What it binds outside of itself: ``"nonlocal n"``, and ``"settings.n"``. Without
    a source the names that are ``global`` are among them; with one, the file knows
    them.
    """


_FILLS = re.compile(
    r"\b(\w+)(?:\[[^]\n]*\])*\.(?:append|appendleft|extend|insert|add|update|setdefault|pop|popitem"
    r"|popleft|remove|discard|clear|sort|reverse)\("
    r"|\b(\w+)(?:\[[^]\n]*\])+ *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)"
    r"|\bdel (\w+)\["
)
_NONLOCAL = re.compile(r"\bnonlocal +(\w[\w, ]*)")
_SETS = re.compile(r"\b(\w+(?:\.\w+)+) *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
_SETS_OF_TYPE = re.compile(
    r"\btype\(\w+\)(\.\w+) *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)"
)


def _rebound_in(source: str) -> frozenset[str]:
    """Return what a definition binds outside of itself, as `Found` has it."""
    names = re.findall(r"\w+", " ".join(_NONLOCAL.findall(source)))
    of_types = (f"cls{name}" for name in _SETS_OF_TYPE.findall(source))
    return frozenset(
        {*_SETS.findall(source), *of_types, *(f"nonlocal {name}" for name in names)}
    )


def rebound_by(code: CodeType) -> frozenset[str]:
    """Return the same of a definition that has no source, without attributes."""
    found = set[str]()
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname == "STORE_GLOBAL":
            found.add(name)
        elif instruction.opname == "STORE_DEREF":
            found.add(f"nonlocal {name}")
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(found.union(*map(rebound_by, inner)))


class AttributesUsed(NamedTuple):
    """The attributes of an object that one of its own methods names."""

    names: frozenset[str]
    stored: frozenset[str]
    """The ones that it sets, or containers among them that it fills."""


def attributes_used(method: FunctionType) -> AttributesUsed:
    """Return the attributes that *method* names, as in ``self.count``."""
    code = method.__code__
    if not code.co_argcount:
        return AttributesUsed(frozenset(), frozenset())
    with _LOCK:
        lines = linecache.getlines(
            code.co_filename,
            method.__globals__,
        )
    first = code.co_firstlineno - 1
    last = _last_line(code)
    text = "".join(lines[first:last])
    if not text:
        # Without a source, any attribute that is named may be set.
        known = frozenset(code.co_names)
        return AttributesUsed(known, known)
    owner = code.co_varnames[0]
    names = set(re.findall(rf"\b{owner}\.(\w+)", text))
    if re.search(rf"\b{owner}\(", text):
        names.add("__call__")
    stored: set[str] = set()
    for path in _rebound_in(text):
        attribute = path.removeprefix(f"{owner}.")
        stored.add(attribute.partition(".")[0])
    for containers in _FILLS.findall(text):
        stored.update(containers)
    return AttributesUsed(
        frozenset(names),
        frozenset(names & stored),
    )


def _last_line(code: CodeType) -> int:
    """Return the number of the last line of a function."""
    last = code.co_firstlineno
    for _, _, line in code.co_lines():
        last = max(last, line or 0)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            last = max(last, _last_line(constant))
    return last


class SourceFile:
    """The lines of a file, and what was found in it before."""

    def __init__(self, lines: list[str], variables: Mapping[str, Any]) -> None:
        self.lines = lines
        self._is_ours = lambda name: is_ours(variables.get(name))
        self.rebound = {
            name
            for line in lines
            if "global " in line and line.lstrip().startswith("global ")
            for name in re.findall(r"\w+", line.partition("#")[0])
        }
        """The global names that a function rebinds: they are state, not constants."""
        self._found: dict[CodeType | str, Found | None] = {}
        self._starts = [*_starts(lines)]
        self._whole: ast.Module | None = None

    def function(self, code: CodeType) -> Found | None:
        """Return what the function of *code* means; None if its source is not here (any
        more).
        """
        if code not in self._found:
            self._found[code] = self._find(
                code.co_firstlineno,
                lambda tree, offset: _function_in(tree, code, offset),
            )
        return self._found[code]

    def class_(self, name: str) -> Found | None:
        """Return what the class with the qualified *name* means; None if its source is
        not here.
        """
        if name not in self._found:
            head = re.compile(rf"(class|def|async\s+def)\s+{name.partition('.')[0]}\b")
            lines = [
                number for number, line in enumerate(self.lines, 1) if head.match(line)
            ]
            line = lines[-1] if lines else 0
            self._found[name] = self._find(line, lambda tree, _: _class_in(tree, name))
        return self._found[name]

    def _find(self, line: int, find: Callable[[ast.Module, int], Any]) -> Found | None:
        for tree, offset in self._trees_at(line):
            node = find(tree, offset)
            if node is not None:
                first = (
                    node.decorator_list[0]
                    if getattr(node, "decorator_list", ())
                    else node
                )
                lines = self.lines[offset + first.lineno - 1 : offset + node.end_lineno]
                with suppress(RecursionError):
                    source = "".join(lines)
                    filled = {
                        name
                        for names in _FILLS.findall(source)
                        for name in names
                        if name
                    }
                    meaning, names = written(node, self._is_ours)
                    rebound = _rebound_in(source)
                    bound = bound_by(node)
                    return Found(
                        meaning, names, source, frozenset(filled), bound, rebound
                    )
        return None

    def _trees_at(self, line: int) -> Iterator[tuple[ast.Module, int]]:
        """Yield the statement at *line* with the number of lines before it; then the
        whole file.
        """
        # no mutant: the whole file is right as well
        index = bisect_right(self._starts, line - 1)
        if index > 0:
            first = self._starts[index - 1]
            last = self._starts[index] if index < len(self._starts) else None
            if (tree := _parsed(self.lines[first:last])) is not None:
                yield tree, first
        self._whole = self._whole or _parsed(self.lines)
        if self._whole is not None:
            yield self._whole, 0


_files: dict[str, SourceFile] = {}
_LOCK = threading.Lock()
"""`linecache` and `ast.parse` may fail when two OS threads use them at the same
time.
"""


def source_file(name: str, variables: dict[str, Any]) -> SourceFile:
    """Return a file, read again only if its size or time is another than before.

    Args:
        name: As code objects name it: a path, or a notebook's name for a cell.
        variables: Those of the module, which may be in an archive.
    """
    with _LOCK:
        linecache.checkcache(name)
        lines = linecache.getlines(name, variables)
        file = _files.get(name)
        if file is None or file.lines is not lines:
            file = _files[name] = SourceFile(lines, variables)
        return file


def _starts(lines: Sequence[str]) -> Iterator[int]:
    """Yield the index of each line that a statement of the module begins with, or its
    decorator.
    """
    decorated = False
    for index, line in enumerate(lines):
        # no mutant: the whole file is right as well
        if line[:1] not in _LAYOUT:
            if not decorated:
                yield index
            decorated = line.startswith("@")


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    with _LOCK:
        try:
            return ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None  # only a part of a statement, or a file that has changed


def _class_in(tree: ast.AST, wanted: str, outer: str = "") -> ast.ClassDef | None:
    """Return the last class of this qualified name."""
    found = None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and outer + node.name == wanted:
            found = node
        name = (
            f"{outer}{node.name}."
            if isinstance(node, (*FUNCTIONS, ast.ClassDef))
            else outer
        )
        inside = f"{name}<locals>." if isinstance(node, FUNCTIONS) else name
        if wanted.startswith(inside):
            found = _class_in(node, wanted, inside) or found
    return found


def _function_in(tree: ast.Module, code: CodeType, offset: int) -> ast.AST | None:
    line = code.co_firstlineno - offset
    lambdas = []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name == code.co_name:
            first = node.decorator_list[0] if node.decorator_list else node
            if first.lineno == line and _takes(node.args, code):
                return node
        if (
            isinstance(node, ast.Lambda)
            and node.lineno == line
            and _takes(node.args, code)
        ):
            lambdas.append(node)
    if code.co_name != "<lambda>":
        return None
    return lambdas[0] if len(lambdas) == 1 else _told_apart(lambdas, code, offset)


def _takes(arguments: ast.arguments, code: CodeType) -> bool:
    """Return whether *code* has these arguments; if not, the file has changed since."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    count = code.co_argcount + code.co_kwonlyargcount + stars
    # In a class, `__private` is `_Class__private`.
    return len(every) == count and all(
        known.endswith(each.arg)
        for known, each in zip(code.co_varnames, every, strict=False)
    )


def _told_apart(
    lambdas: list[ast.Lambda], code: CodeType, offset: int
) -> ast.AST | None:
    """Return the one of several lambdas on a line that the columns of *code* lie in."""
    # What the compiler adds ends at column 0. Python 3.12 adds all there is to `lambda:
    # 1`.
    places: list[Any] = [place for place in code.co_positions() if place[3]]
    found = None
    for node in lambdas:
        body: Any = node.body
        start, end = (
            (body.lineno, body.col_offset),
            (body.end_lineno, body.end_col_offset),
        )
        if all(
            start <= (first - offset, column) and (last - offset, end_column) <= end
            for first, last, column, end_column in places
        ) and (
            places or ascii(getattr(body, "value", body)) == ascii(code.co_consts[-1])
        ):
            found = node  # one inside of another comes later
    return found
