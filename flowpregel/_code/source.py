"""The source of a function or class, found in its file or notebook cell.

Only the statement that contains the definition is parsed. Parsing whole files would
take most of the time of a digest. If that statement does not parse by itself, or does
not contain the definition, the whole file is parsed once.
"""

from __future__ import annotations

import ast
import dis
import linecache
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

from flowpregel._code.class_bodies import bound_by, constant_of
from flowpregel._code.tree import FUNCTIONS, written
from flowpregel._code.values import is_ours

_LAYOUT = frozenset(" \t\r\n\f#)]}")
"""The first characters of lines that do not begin a statement of a module."""


class Definition(NamedTuple):
    """The definition of a function, lambda or class in its source."""

    meaning: str
    """The string that represents the definition in the digest, as `written` returns
    it.
    """
    names: list[tuple[str, ...]]
    """The global names in the definition. Each is followed by the attributes that the
    code reads from it.
    """
    source: str
    """The source text of the definition."""
    filled: frozenset[str] = frozenset()
    """The names of the containers to which the code adds items, as in
    ``rows.append(row)``.
    """
    attributes: Mapping[str, Any] = MappingProxyType({})
    """The names that the body of a class binds: see `bound_by`."""
    rebound: frozenset[str] = frozenset()
    """The names outside the definition that its code binds, such as ``"nonlocal n"``
    and ``"settings.n"``.

    Global names are included only if there is no source. Otherwise, they are in
    `SourceFile.rebound`.
    """


_FILLS = re.compile(
    r"\b(\w+)(?:\[[^]\n]*\])*\.(?:append|appendleft|extend|insert|add|update"
    r"|setdefault|pop|popitem|popleft|remove|discard|clear|sort|reverse)\("
    r"|\b(\w+)(?:\[[^]\n]*\])+ *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)"
    r"|\bdel (\w+)\["
)
_NONLOCAL = re.compile(r"\bnonlocal +(\w[\w, ]*)")
_SETS = re.compile(r"\b(\w+(?:\.\w+)+) *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
_SETS_OF_TYPE = re.compile(
    r"\btype\(\w+\)(\.\w+) *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)"
)


def _rebound_in(source: str) -> frozenset[str]:
    """Return the names that the source of a definition binds outside of the definition
    (see `Definition.rebound`).
    """
    rebound = set(_SETS.findall(source))
    for attribute in _SETS_OF_TYPE.findall(source):
        rebound.add(f"cls{attribute}")
    for statement in _NONLOCAL.findall(source):
        for name in re.findall(r"\w+", statement):
            rebound.add(f"nonlocal {name}")
    return frozenset(rebound)


def rebound_by(code: CodeType) -> frozenset[str]:
    """Return the names that the bytecode of a function binds outside of the function.
    This is for functions without a source.

    Attributes are left out, since bytecode does not show to which object they belong.
    """
    rebound = set[str]()
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname == "STORE_GLOBAL":
            rebound.add(name)
        elif instruction.opname == "STORE_DEREF":
            rebound.add(f"nonlocal {name}")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            rebound |= rebound_by(constant)
    return frozenset(rebound)


class AttributesUsed(NamedTuple):
    """The attributes of its own object that a method uses, as in ``self.count``."""

    names: frozenset[str]
    stored: frozenset[str]
    """The names of the attributes that the method sets, and of the attributes that are
    containers to which it adds items.
    """


def attributes_used(method: FunctionType) -> AttributesUsed:
    """Return the attributes of its own object that *method* uses."""
    code = method.__code__
    if not code.co_argcount:
        return AttributesUsed(frozenset(), frozenset())
    with _LOCK:
        lines = linecache.getlines(code.co_filename, method.__globals__)
    first = code.co_firstlineno - 1
    last = _last_line(code)
    text = "".join(lines[first:last])
    if not text:
        # Without a source, any name in the bytecode may be an attribute that the method
        # sets, so all names are returned.
        code_names = frozenset(code.co_names)
        return AttributesUsed(code_names, code_names)
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
    return AttributesUsed(frozenset(names), frozenset(names & stored))


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
    """The lines of a file, and the definitions that were read from them.

    Args:
        lines: The lines of the file.
        variables: The variables of the module.
    """

    def __init__(self, lines: list[str], variables: Mapping[str, Any]) -> None:
        self.lines = lines
        self._variables = variables
        self.rebound = _global_names_in(lines)
        """The global names that functions rebind. Their values are state, not
        constants.
        """
        self._definitions: dict[CodeType | str, Definition | None] = {}
        self._starts = list(_starts(lines))
        self._whole: ast.Module | None = None

    def function(self, code: CodeType) -> Definition | None:
        """Return the definition of the function with *code*, or None if it is not in
        the file.
        """
        if code not in self._definitions:
            self._definitions[code] = self._find(
                code.co_firstlineno,
                lambda tree, offset: _function_in(tree, code, offset),
            )
        return self._definitions[code]

    def class_(self, name: str) -> Definition | None:
        """Return the definition of the class with the qualified *name*, or None if it
        is not in the file.
        """
        if name not in self._definitions:
            self._definitions[name] = self._find(
                self._line_of(name.partition(".")[0]),
                lambda tree, _: _class_in(tree, name),
            )
        return self._definitions[name]

    def _line_of(self, name: str) -> int:
        """Return the number of the last line that begins a definition of *name*, or 0
        if there is none.
        """
        head = re.compile(rf"\s*(class|def|async\s+def)\s+{name}\b")
        for index in reversed(range(len(self.lines))):
            if head.match(self.lines[index]):
                return index + 1
        return 0

    def _find(
        self, line: int, find: Callable[[ast.Module, int], Any]
    ) -> Definition | None:
        for tree, offset in self._trees_at(line):
            node = find(tree, offset)
            if node is None:
                continue
            with suppress(RecursionError):
                return self._definition_of(node, offset)
        return None

    def _definition_of(self, node: Any, offset: int) -> Definition:
        """Return the definition whose syntax tree is *node*.

        Args:
            node: The syntax tree of the definition.
            offset: The number of lines of the file before the tree.
        """
        first = _first_line(node)
        source = "".join(self.lines[offset + first - 1 : offset + node.end_lineno])
        filled: set[str] = set()
        for names in _FILLS.findall(source):
            filled.update(filter(None, names))
        meaning, global_names = written(node, self._is_ours)
        return Definition(
            meaning,
            global_names,
            source,
            filled=frozenset(filled),
            attributes=bound_by(node),
            rebound=_rebound_in(source),
        )

    def _is_ours(self, name: str) -> bool:
        return is_ours(self._variables.get(name))

    def _trees_at(self, line: int) -> Iterator[tuple[ast.Module, int]]:
        """Yield the syntax tree of the statement that contains *line*, then the syntax
        tree of the whole file.

        Each tree comes with its offset: the number of lines before it in the file.
        """
        # no mutant: If the index is wrong, the caller searches the whole file instead.
        index = bisect_right(self._starts, line - 1)
        if index > 0:
            first = self._starts[index - 1]
            last = self._starts[index] if index < len(self._starts) else None
            if (tree := _parsed(self.lines[first:last])) is not None:
                yield tree, first
        self._whole = self._whole or _parsed(self.lines)
        if self._whole is not None:
            yield self._whole, 0


def _global_names_in(lines: Iterable[str]) -> set[str]:
    """Return the names in the ``global`` statements of a file."""
    names: set[str] = set()
    for line in lines:
        if line.lstrip().startswith("global "):
            names.update(re.findall(r"\w+", line.partition("#")[0]))
    return names


def _first_line(node: Any) -> int:
    """Return the number of the first line of a definition, decorators included."""
    decorators = getattr(node, "decorator_list", ())
    return int(decorators[0].lineno if decorators else node.lineno)


_files: dict[str, SourceFile] = {}
_LOCK = threading.Lock()
"""A lock for `linecache` and `ast.parse`, which may fail if two OS threads use them at
the same time.
"""


def source_file(name: str, variables: dict[str, Any]) -> SourceFile:
    """Return the lines and definitions of a source file.

    The file is read again only if its size or modification time has changed.

    Args:
        name: The file name of a code object: a path, or a notebook's name for a cell.
        variables: The variables of the module. They include the module's loader, which
            is needed if the file is in an archive.
    """
    with _LOCK:
        linecache.checkcache(name)
        lines = linecache.getlines(name, variables)
        file = _files.get(name)
        if file is None or file.lines is not lines:
            file = _files[name] = SourceFile(lines, variables)
        return file


def _starts(lines: Sequence[str]) -> Iterator[int]:
    """Yield the index of the first line of each statement of a module.

    The first line of a decorated definition is the line of the first decorator.
    """
    is_decorated = False
    for index, line in enumerate(lines):
        # no mutant: If an index is wrong, the caller searches the whole file.
        if line[:1] not in _LAYOUT:
            if not is_decorated:
                yield index
            is_decorated = line.startswith("@")


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    with _LOCK:
        try:
            return ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # The lines cannot be parsed if they begin or end within a statement, or if
            # the file has changed since it was imported.
            return None


def _class_in(tree: ast.AST, name: str, outer: str = "") -> ast.ClassDef | None:
    """Return the last class with the qualified *name* in *tree*, or None if there is
    none.

    Args:
        tree: A module, or a definition in it.
        name: The qualified name of the class.
        outer: The beginning of the qualified names in *tree*.
    """
    match = None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and outer + node.name == name:
            match = node
        inner = outer
        if isinstance(node, ast.ClassDef):
            inner = f"{outer}{node.name}."
        elif isinstance(node, FUNCTIONS):
            inner = f"{outer}{node.name}.<locals>."
        if name.startswith(inner):
            match = _class_in(node, name, inner) or match
    return match


def _function_in(tree: ast.Module, code: CodeType, offset: int) -> ast.AST | None:
    """Return the function or lambda with *code*, or None if the file has changed."""
    line = code.co_firstlineno - offset
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            if _is_function_of(node, code, line):
                return node
        return None
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    candidates = [
        node for node in lambdas if node.lineno == line and _takes(node.args, code)
    ]
    if len(candidates) == 1:
        return candidates[0]
    return _lambda_at(candidates, code, offset)


def _is_function_of(node: Any, code: CodeType, line: int) -> bool:
    if not isinstance(node, FUNCTIONS) or node.name != code.co_name:
        return False
    return _first_line(node) == line and _takes(node.args, code)


def _takes(arguments: ast.arguments, code: CodeType) -> bool:
    """Return whether *code* has the same parameters as a definition in the file. If it
    does not, the file has changed since *code* was compiled.
    """
    names = [
        parameter.arg
        for parameter in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        )
        if parameter is not None
    ]
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    if len(names) != code.co_argcount + code.co_kwonlyargcount + stars:
        return False
    # Only the ends of the names are compared, because in a class the compiler turns
    # `__private` into `_Class__private`.
    return all(map(str.endswith, code.co_varnames, names))


def _lambda_at(
    lambdas: list[ast.Lambda], code: CodeType, offset: int
) -> ast.AST | None:
    """Return the lambda whose body contains the source positions of all bytecode
    instructions in *code*, or None.

    Args:
        lambdas: The lambdas on one line that may have *code*.
        code: The code of a lambda.
        offset: The number of lines of the file before the tree.
    """
    # Instructions that the compiler adds have the end column 0. They are left out,
    # because they have no source. In Python 3.12, a lambda such as `lambda: 1` then has
    # no instruction left.
    positions: list[Any] = [position for position in code.co_positions() if position[3]]
    match = None
    for node in lambdas:
        if not _contains(node.body, positions, offset):
            continue
        if positions or _has_value(node.body, code):
            # If lambdas are nested, the bodies of several may contain the instructions
            # of *code*. The innermost of them is the right one: *code* of an outer
            # lambda would also have instructions outside the inner body. Inner lambdas
            # come after outer ones, so the last match is taken.
            match = node
    return match


def _contains(body: Any, positions: list[Any], offset: int) -> bool:
    """Return whether all *positions* of instructions lie in the *body* of a lambda."""
    start = (body.lineno, body.col_offset)
    end = (body.end_lineno, body.end_col_offset)
    return all(
        start <= (line - offset, column) and (end_line - offset, end_column) <= end
        for line, end_line, column, end_column in positions
    )


def _has_value(body: Any, code: CodeType) -> bool:
    """Return whether *body* is the constant that *code* returns, or an expression that
    the compiler folds to this constant.
    """
    return ascii(constant_of(body)) == ascii(code.co_consts[-1])
