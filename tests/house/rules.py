"""The rules of the house that ruff cannot check: functions that yield breaches.

A breach is counted by file and rule. ``broken.toml`` beside this module holds how many
breaches each file still has; `python -m tests.house --shrink` lowers the counts to what
is left. They may never grow.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from tests.house.measure import PACKAGE, ROOT, is_layout

BROKEN: Final = Path(__file__).with_name("broken.toml")
FILE_LINES: Final = 450
LINE_COLUMNS: Final = 88
FUNCTION_LINES: Final = 40
TEST_LINES: Final = 60
COMPLEXITY: Final = 12
FIELDS: Final = 12
DENSITY: Final = 7.0
SMALL_ROOM: Final = 30
"""Code lines up to which the density of a room is left to chance."""
CLAUSE_WORDS: Final = frozenset(
    {
        *("Also", "And", "As", "By", "For", "How", "If", "In", "Its", "Of", "On"),
        *("Such", "That", "Those", "What", "When", "Where", "Who", "Whose", "With"),
    }
)
"""First words of docstrings that begin with a clause instead of a verb or a noun."""
BANNED: Final = re.compile(
    r"\b(very many|so many|as (?:it|they) (?:is|are|was|were)\b|"
    r"of (?:its|theirs)\b(?! own)|(?:is|are|was|were) to (?!be\b)[a-z]+|"
    r"whoever|nobody|somebody|anybody|anew|besides|meanwhile|beneath|for ever\b|"
    r"goes on with|belongs? into|by chance|is told|are told|"
    r"(?:says?|said|tells?|told|looks?|looked) "
    r"(?:of|what|how|whether|at|for|that)\b)",
    re.IGNORECASE,
)
"""Phrases that a native speaker would not write; see ``docs/contributing.md``."""
BANNED_IN_MESSAGES: Final = re.compile(
    r"\b(anew|for ever|goes on with|go on with|nobody|somebody|anybody|whoever|"
    r"besides|meanwhile|beneath|belongs? into|not asked for|(?:is|are|was) told|"
    r"to be had|any more\b|no (?:plain|regular) file|(?:is|has|had) to be\b)",
    re.IGNORECASE,
)
"""Phrases that no message to the user has."""
NO_NOUNS: Final = frozenset(
    {
        *("around", "asked", "each", "found", "given", "kept", "left", "made"),
        *("one", "own", "place", "said", "shown", "taken", "there", "told"),
        *("wanted", "what"),
    }
)
"""Names that say nothing about the value of a local or a parameter."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCK_FIELDS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_BLOCKS: Final = (ast.stmt, ast.ExceptHandler, ast.match_case)
_BRANCHES: Final = (
    ast.If,
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
)


@dataclass
class Source:
    """A Python file with its syntax tree."""

    name: str
    """The path below the root of the project, or a name for messages."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def statements(self) -> list[ast.AST]:
        """All nodes with statements in them, without the expressions."""
        blocks: list[ast.AST] = [self.tree]
        for block in blocks:  # the list grows during the loop
            for name in _BLOCK_FIELDS:
                children = getattr(block, name, ())
                blocks += [child for child in children if isinstance(child, _BLOCKS)]
        return blocks

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """All tokens of the file."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """The lines and texts of all comments."""
        return [
            (token.start[0], token.string)
            for token in self.tokens
            if token.type == tokenize.COMMENT
        ]

    @cached_property
    def code_tokens(self) -> list[tokenize.TokenInfo]:
        """The tokens of code: no comments, docstrings or blank lines."""
        prose: set[int] = set()
        for statement in self._docstring_statements:
            prose.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
        return [
            token
            for token in self.tokens
            if not is_layout(token) and token.start[0] not in prose
        ]

    @cached_property
    def code_lines(self) -> list[int]:
        """The numbers of the lines that hold code, in order."""
        lines: set[int] = set()
        for token in self.code_tokens:
            lines.update(range(token.start[0], token.end[0] + 1))
        return sorted(lines)

    @property
    def is_test(self) -> bool:
        """Return whether the file belongs to the tests."""
        return self.name.startswith("tests/")

    @cached_property
    def functions(self) -> list[Function]:
        """All functions, inner ones and methods too."""
        return [node for node in self.statements if isinstance(node, Function)]

    @cached_property
    def docstrings(self) -> list[tuple[int, str]]:
        """The first lines and texts of all docstrings, those of attributes too."""
        return [
            (statement.lineno, " ".join(ast.literal_eval(statement.value).split()))
            for statement in self._docstring_statements
        ]

    @cached_property
    def strings(self) -> list[tuple[int, str]]:
        """The lines and texts of all strings that are no docstrings; each text between
        the fields of an f-string is one of its own.
        """
        prose = {id(statement.value) for statement in self._docstring_statements}
        return [
            (node.lineno, node.value)
            for node in self.nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in prose
        ]

    @cached_property
    def _docstring_statements(self) -> list[ast.Expr]:
        """The statements that are nothing but a string."""
        statements: list[ast.Expr] = []
        for node in self.statements:
            for statement in getattr(node, "body", ()):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str())):
                        statements.append(statement)
        return statements


def complexity(function: Function) -> int:
    """Return the branches a reader has to hold, each weighted by its nesting.

    Ternaries and comprehensions count like statements; each chain of ``and`` and ``or``
    counts 1.
    """
    total = 0
    pending: list[tuple[ast.AST, int]] = [(function, 0)]
    while pending:
        node, depth = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*_BRANCHES,)):
                total += 1 + depth
                pending.append((child, depth + 1))
            elif isinstance(child, (Function, ast.Lambda)):
                pending.append((child, depth + 1))
            else:
                total += isinstance(child, ast.BoolOp)
                pending.append((child, depth))
    return total


def function_length(function: Function, source: Source) -> int:
    """Return the code lines of *function*."""
    first = bisect_left(source.code_lines, function.lineno)
    last = bisect_right(source.code_lines, function.end_lineno or function.lineno)
    return last - first


def large_file(source: Source) -> Iterator[str]:
    """Yield a breach if a file has more than 450 code lines: it holds two ideas."""
    if source.text.count("\n") <= FILE_LINES:
        return  # a file of tests is not read any further: that takes time
    lines = len(source.code_lines)
    if lines > FILE_LINES:
        yield f"{source.name}: {lines} code lines (limit {FILE_LINES})"


def long_function(source: Source) -> Iterator[str]:
    """Yield functions of more than 40 code lines, in tests of more than 60."""
    limit = TEST_LINES if source.is_test else FUNCTION_LINES
    if source.text.count("\n") <= limit:
        return
    for function in source.functions:
        if (function.end_lineno or 0) - function.lineno < limit:
            continue
        lines = function_length(function, source)
        if lines > limit:
            yield (
                f"{source.name}:{function.lineno} {function.name}: "
                f"{lines} code lines (limit {limit})"
            )


def complex_function(source: Source) -> Iterator[str]:
    """Yield functions of a cognitive complexity over 12."""
    for function in source.functions:
        count = complexity(function)
        if count > COMPLEXITY:
            yield (
                f"{source.name}:{function.lineno} {function.name}: "
                f"complexity {count} (limit {COMPLEXITY})"
            )


def large_record(source: Source) -> Iterator[str]:
    """Yield mutable classes with more than 12 annotated fields.

    A descriptor (``name: Descriptor[int] = Descriptor()``) is no field, because its
    value is stored elsewhere.
    """
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = sum(
            isinstance(statement, ast.AnnAssign) and not _is_descriptor(statement)
            for statement in node.body
        )
        bases = {ast.unparse(base) for base in node.bases}
        is_frozen = any("frozen" in ast.unparse(item) for item in node.decorator_list)
        # A `TypedDict` that extends another one is known by its keyword.
        is_dict = "TypedDict" in bases or any(
            keyword.arg == "total" for keyword in node.keywords
        )
        is_mutable = not (is_frozen or is_dict or "NamedTuple" in bases)
        if fields > FIELDS and is_mutable:
            yield f"{source.name}:{node.lineno} {node.name}: {fields} fields"


def _is_descriptor(field: ast.AnnAssign) -> bool:
    """Return whether a field's value is a new object of the class it is annotated
    with.
    """
    return (
        isinstance(field.annotation, ast.Subscript)
        and isinstance(field.value, ast.Call)
        and ast.unparse(field.annotation.value) == ast.unparse(field.value.func)
    )


def clause_docstring(source: Source) -> Iterator[str]:
    """Yield docstrings that begin with neither a verb nor a noun phrase."""
    for line, text in source.docstrings:
        if text and text.split()[0].strip(",.:`") in CLAUSE_WORDS:
            yield f"{source.name}:{line} {text[:60]}"


def banned_phrase(source: Source) -> Iterator[str]:
    """Yield docstrings and comments with a phrase of `BANNED`."""
    for line, text in source.docstrings + source.comments:
        phrase = BANNED.search(text)
        if phrase:
            yield f"{source.name}:{line} {phrase.group()!r} in {text[:60]}"


def banned_message(source: Source) -> Iterator[str]:
    """Yield strings of the package with a phrase of `BANNED_IN_MESSAGES`."""
    if not source.name.startswith("flowpregel/"):
        return
    for line, text in source.strings:
        phrase = BANNED_IN_MESSAGES.search(text)
        if phrase:
            yield f"{source.name}:{line} {phrase.group()!r} in {text[:60]!r}"


def no_noun(source: Source) -> Iterator[str]:
    """Yield locals and parameters whose name is in `NO_NOUNS`.

    The parameters ``left`` and ``right`` are the two operands of a function, as in
    LangGraph's reducers.
    """
    operands: set[ast.AST] = set()
    for node in source.nodes:
        match node:
            case ast.arguments(
                args=[ast.arg(arg="left") as left, ast.arg(arg="right")]
            ):
                operands.add(left)
            case ast.Name(id=name, ctx=ast.Store()) if name in NO_NOUNS:
                yield f"{source.name}:{node.lineno} local {name}"
            case ast.arg(arg=name) if name in NO_NOUNS and node not in operands:
                yield f"{source.name}:{node.lineno} parameter {name}"


def long_line(source: Source) -> Iterator[str]:
    """Yield lines of more than 88 columns.

    ruff does not count a trailing ``# noqa`` or ``# type: ignore`` with its reason. The
    reason of a long line stands on a line of its own above.
    """
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > LINE_COLUMNS:
            yield f"{source.name}:{number} {len(line)} columns"


def skipped_format(source: Source) -> Iterator[str]:
    """Yield comments that keep the formatter away."""
    if "fmt:" not in source.text:
        return
    for line, text in source.comments:
        if text.lstrip("# ").startswith("fmt:"):
            yield f"{source.name}:{line} {text}"


RULES: Final[dict[str, Callable[[Source], Iterator[str]]]] = {
    "large_file": large_file,
    "long_function": long_function,
    "complex_function": complex_function,
    "large_record": large_record,
    "clause_docstring": clause_docstring,
    "banned_phrase": banned_phrase,
    "banned_message": banned_message,
    "no_noun": no_noun,
    "long_line": long_line,
    "skipped_format": skipped_format,
}
FOR_ALL_FILES: Final = ("large_file", "long_function", "skipped_format")
"""The rules that hold for tests and examples too; the others hold for the package."""


@cache
def sources() -> list[Source]:
    """Return every Python file of the package, the tests and the examples."""
    folders = ("flowpregel", "tests", "examples")
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return [
        Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
        for file in files
    ]


def breaches(source: Source) -> dict[str, list[str]]:
    """Return what each rule finds in a file, without the rules that it keeps."""
    rules = RULES if source.name.startswith(PACKAGE.name + "/") else FOR_ALL_FILES
    found = {rule: list(RULES[rule](source)) for rule in rules}
    return {rule: lines for rule, lines in found.items() if lines}


def dense_rooms(files: list[Source]) -> dict[str, int]:
    """Return the rooms over 7.0 tokens a code line, and by how many tenths of a token.

    A room is a folder of the package. Its files are counted together, so that a dense
    table in one of them is no breach.
    """
    rooms: defaultdict[str, list[Source]] = defaultdict(list)
    for source in files:
        rooms[source.name.rpartition("/")[0] + "/"].append(source)
    excess: dict[str, int] = {}
    for room, members in rooms.items():
        lines = sum(len(source.code_lines) for source in members)
        tokens = sum(len(source.code_tokens) for source in members)
        tenths = round((tokens / max(lines, 1) - DENSITY) * 10)
        if lines > SMALL_ROOM and tenths > 0:
            excess[room] = tenths
    return excess


def package_sources() -> list[Source]:
    """Return every Python file of the package."""
    return [file for file in sources() if file.name.startswith(PACKAGE.name + "/")]


def shared_function_names(files: list[Source]) -> Iterator[str]:
    """Yield the module functions of the package whose name several files use."""
    owners: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for source in files:
        for node in source.tree.body:
            if isinstance(node, Function) and not node.name.startswith("__"):
                owners[node.name][source.name] = None
    for name, modules in sorted(owners.items()):
        if len(modules) > 1:
            yield f"{name}: {', '.join(modules)}"


def known_breaches() -> dict[str, dict[str, int]]:
    """Return how many breaches of each rule a file or room may still have.

    The name of a room ends with a slash.
    """
    return tomllib.loads(BROKEN.read_text(encoding="utf-8"))


def write_breaches(counts: dict[str, dict[str, int]]) -> None:
    """Write `BROKEN` anew, in the order of the file names."""
    lines = ["# Breaches of the house's rules that are left. Counts may only shrink:"]
    lines.append("# python -m tests.house --shrink")
    for name, rules in sorted(counts.items()):
        lines.append(f'\n["{name}"]')
        lines += [f"{rule} = {count}" for rule, count in sorted(rules.items())]
    BROKEN.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shrink() -> Counter[str]:
    """Lower the counts of `BROKEN` to what is left; return what is left by rule."""
    known = known_breaches()
    remaining: dict[str, dict[str, int]] = {}
    total: Counter[str] = Counter()
    for source in sources():
        for rule, lines in breaches(source).items():
            count = min(len(lines), known.get(source.name, {}).get(rule, 0))
            if count:
                remaining.setdefault(source.name, {})[rule] = count
                total[rule] += count
    for room, tenths in dense_rooms(package_sources()).items():
        count = min(tenths, known.get(room, {}).get("dense_room", 0))
        if count:
            remaining[room] = {"dense_room": count}
            total["dense_room"] += count
    write_breaches(remaining)
    return total
