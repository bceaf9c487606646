"""The pages of the API reference, as text.

The page of a module in ``docs/reference/api`` lists the names that it describes. The
documentation site adds signatures and docstrings when it is built. Here they come from
the installed modules instead, so they are those of the code that a program would run.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from types import FunctionType
from typing import Any, Final

from flowpregel.cli.pages import Page, sections_of
from flowpregel.errors import ConfigurationError

_FOLDER: Final = "reference/api/"
_DIRECTIVE: Final = re.compile(
    r"^::: ([\w.]+)\n {4}options:\n {6}members:(?: \[\])?\n((?: {8}- \w+\n)*)",
    re.MULTILINE,
)
"""A pattern for the directives of a page: the lines that the documentation site
replaces by entries.
"""
_SECTION: Final = re.compile(r"(Args|Raises|Returns|Yields|Examples?|Attributes):")
_TITLES: Final = {"Args": "Arguments", "Raises": "Errors"}
_ITEM: Final = re.compile(r"(\S[*\w., ]*): +(.*)")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_KEYWORDS: Final = re.compile(r"Unpack\[(\w+)\]")
_IMPORT_ERRORS: Final = (ImportError, ConfigurationError)
"""The errors that importing a module raises if a package that it needs is not
installed.
"""
_WIDTH: Final = 79
_LONGEST_VALUE: Final = 200
_OWN: Final = "flowpregel"
_PROPERTIES: Final = (property, functools.cached_property)


class _Literal(str):
    """A string that a signature shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def is_api_page(page: Page) -> bool:
    """Return whether *page* describes the names of a module."""
    return page.name.startswith(_FOLDER)


def described_names(pages: Iterable[Page]) -> dict[str, list[str]]:
    """Return, for each public name, the modules whose pages describe the name."""
    modules: dict[str, list[str]] = {}
    for page in filter(is_api_page, pages):
        for module, names in _DIRECTIVE.findall(page.text):
            for name in _member_names(names):
                modules.setdefault(name, []).append(module)
    return modules


def entries_named(pages: Sequence[Page], name: str) -> list[str]:
    """Return the entries of the public names that *name* may mean, in Markdown.

    Args:
        pages: All pages.
        name: A public name, or ``Class.method``, with or without a module. If the
            module does not describe the name, any other module may.
    """
    owner, _, last_part = name.rpartition(".")
    modules = described_names(pages).get(last_part, [])
    if modules:
        homes = [module for module in modules if module == owner]
        return [api_entry(module, last_part) for module in homes or modules]
    _, _, class_name = owner.rpartition(".")
    heading = f"{class_name}.{last_part}"
    entries = entries_named(pages, owner) if owner else []
    return [
        "\n".join(section.lines)
        for section in sections_of("\n".join(entries))
        if section.heading == heading
    ]


def _member_names(lines: str) -> list[str]:
    return [line.strip(" -") for line in lines.splitlines()]


def with_entries(text: str) -> str:
    """Return the text of a page with an entry for each name that the page lists."""

    def entries(match: re.Match[str]) -> str:
        """Return the entries that replace a directive."""
        module = match[1]
        texts = [api_entry(module, name) for name in _member_names(match[2])]
        return "\n".join([_module_text(module), *texts])

    return _DIRECTIVE.sub(entries, text)


def _module_text(module: str) -> str:
    try:
        return markdown_of(inspect.getdoc(importlib.import_module(module)))
    except _IMPORT_ERRORS as error:
        return _import_failure(error)


def _import_failure(error: Exception) -> str:
    """Return the text that replaces the entry of a name whose package is not
    installed.
    """
    return f"This cannot be imported here: {error}\n"


def api_entry(module: str, name: str) -> str:
    """Return the signature and the documentation of a public name in Markdown."""
    heading = f"## `{module}.{name}`\n"
    try:
        # Reading an attribute of a module may import another module, if the name is
        # imported on first use.
        value = getattr(importlib.import_module(module), name)
    except _IMPORT_ERRORS as error:
        return f"{heading}\n{_import_failure(error)}"
    if inspect.isclass(value):
        parts = _class_entry(name, value)
    elif isinstance(value, FunctionType):
        parts = _callable_entry(name, value)
    else:
        parts = _value_entry(name, value)
    return "\n".join([heading, *parts])


def _value_entry(name: str, value: Any) -> Iterator[str]:
    """Yield the Markdown that describes a constant, a type, or a callable object."""
    if callable(value) and type(value).__module__.startswith(_OWN):
        yield from _callable_entry(name, value)
        return
    text = _ADDRESS.sub("", repr(value))
    if len(text) > _LONGEST_VALUE:
        text = f"{text[:_LONGEST_VALUE]}..."
    yield _code(f"{name} = {text}")


def _callable_entry(name: str, function: Any, heading: str = "") -> Iterator[str]:
    """Yield the heading, if there is one, the signature and the text of a function."""
    if heading:
        yield f"### `{heading}`\n"
    plain_function = inspect.unwrap(function)
    keyword = "async def" if inspect.iscoroutinefunction(plain_function) else "def"
    yield _code(f"{keyword} {name}{signature_text(function)}")
    yield markdown_of(inspect.getdoc(function))


def _class_entry(name: str, value: type) -> Iterator[str]:
    """Yield the parts of the entry of a class: its fields, properties and methods."""
    is_plain = value.__module__.startswith(_OWN) and not issubclass(value, enum.Enum)
    signature = signature_text(value) if is_plain else ""
    yield _code(f"class {name}{signature}")
    yield markdown_of(inspect.getdoc(value))
    fields = _documented_fields(value)
    if fields:
        yield "**Fields**\n"
        yield _bullets(fields.items())
    for member, definition in _members(value).items():
        heading = f"{name}.{member}"
        if isinstance(definition, _PROPERTIES):
            yield f"### `{heading}`\n"
            yield markdown_of(inspect.getdoc(definition))
        else:
            yield from _callable_entry(member, definition, heading)


def _own_classes(value: type) -> list[type]:
    return [base for base in value.__mro__ if base.__module__.startswith(_OWN)]


def _members(value: type) -> dict[str, Any]:
    """Return the public methods and properties of a class. The tests (``test_...``) of
    a class with which other projects test their savers, stores or caches are left out.
    """
    members: dict[str, Any] = {}
    for base in _own_classes(value):
        for name, definition in vars(base).items():
            if isinstance(definition, staticmethod | classmethod):
                definition = definition.__func__
            is_member = isinstance(definition, (FunctionType, *_PROPERTIES))
            if is_member and not name.startswith(("_", "test_")):
                members.setdefault(name, definition)
    return members


def _documented_fields(value: type) -> dict[str, str]:
    """Return the types and texts of the fields of a class, by name.

    A field is documented by the string below it. Python does not keep this string, so
    it is read from the source.
    """
    fields: dict[str, str] = {}
    for base in reversed(_own_classes(value)):
        with suppress(OSError, TypeError):
            source = textwrap.dedent(inspect.getsource(base))
            fields |= _fields_in(ast.parse(source).body[0])
    return fields


def _fields_in(definition: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each documented field of a class."""
    if not isinstance(definition, ast.ClassDef):
        return
    statements = definition.body
    for statement, following in pairwise(statements):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name))
                | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if not name.startswith("_"):
                yield name, inspect.cleandoc(text)


def signature_text(target: Callable[..., Any]) -> str:
    """Return the signature of a function or class as Python source, with one parameter
    on each line if it is long. Keywords of a ``TypedDict`` are parameters.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return "" if inspect.isclass(target) else "(...)"
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "self":
            parameters += _plain_parameters(parameter, target)
    returned = _plain_annotation(signature.return_annotation)
    if inspect.isclass(target):
        returned = inspect.Signature.empty
    plain = inspect.Signature(parameters, return_annotation=returned)
    text = str(plain)
    if len(text) <= _WIDTH:
        return text
    end = (
        ")"
        if returned is inspect.Signature.empty
        else f") -> {inspect.formatannotation(returned)}"
    )
    lines = [f"    {line},\n" for line in _parameter_lines(plain)]
    return f"(\n{''.join(lines)}{end}"


def _plain_parameters(
    parameter: inspect.Parameter,
    target: Any,
) -> Iterator[inspect.Parameter]:
    """Yield the parameters that a signature shows for *parameter*: the parameter itself
    or, for keyword arguments that a ``TypedDict`` describes, one for each key.
    """
    keywords = _KEYWORDS.fullmatch(str(parameter.annotation))
    if keywords is not None:
        function = target.__init__ if inspect.isclass(target) else target
        namespace = inspect.unwrap(function).__globals__
        names = _annotations_of(namespace[keywords[1]])
        for name, annotation in names.items():
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_Literal("..."),
                annotation=_Literal(annotation),
            )
        return
    default = parameter.default
    if default is not inspect.Parameter.empty:
        default = _Literal(_default_text(default))
    annotation = _plain_annotation(parameter.annotation)
    yield parameter.replace(default=default, annotation=annotation)


def _annotations_of(keywords: type) -> dict[str, str]:
    """Return the annotations of a ``TypedDict`` in source form, inherited ones too."""
    annotations: dict[str, str] = {}
    for name, annotation in inspect.get_annotations(keywords).items():
        annotations[name] = getattr(annotation, "__forward_arg__", str(annotation))
    return annotations


def _plain_annotation(annotation: Any) -> Any:
    return _Literal(annotation) if isinstance(annotation, str) else annotation


def _default_text(default: Any) -> str:
    if isinstance(default, (type, FunctionType)):
        return default.__name__
    return _ADDRESS.sub("", repr(default))


def _parameter_lines(signature: inspect.Signature) -> list[str]:
    """Return the parameters of a signature as text, with the marks / and *."""
    lines: list[str] = []
    positions = 0
    has_star = False
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.POSITIONAL_ONLY:
            positions += 1
        elif parameter.kind == parameter.VAR_POSITIONAL:
            has_star = True
        elif parameter.kind == parameter.KEYWORD_ONLY and not has_star:
            lines.append("*")
            has_star = True
        lines.append(str(parameter))
    if positions:
        lines.insert(positions, "/")
    return lines


# ---------------------------------------------------------------- docstrings


def markdown_of(docstring: str | None) -> str:
    """Return a docstring in Markdown: a list of the arguments, and examples as code."""
    parts: list[str] = []
    lines = (docstring or "").splitlines()
    while lines:
        line = lines.pop(0)
        section = _SECTION.fullmatch(line)
        if section is None:
            parts.append(_plain(line))
            continue
        block: list[str] = []
        while lines and (not lines[0] or lines[0].startswith(" ")):
            block.append(lines.pop(0))
        body = textwrap.dedent("\n".join(block)).strip()
        parts.append(f"**{_TITLES.get(section[1], section[1])}**\n")
        parts.append(_section_body(section[1], body))
    return "\n".join(parts).strip() + "\n"


def _plain(text: str) -> str:
    """Return a docstring's text with code between single backquotes, as in Markdown."""
    return text.replace("``", "`")


def _section_body(section: str, body: str) -> str:
    if section.startswith("Example"):
        return _code(body)
    if section in ("Returns", "Yields"):
        return f"{_plain(body)}\n"
    return _bullets(_items_in(body))


def _items_in(body: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of a section, such as the arguments."""
    name = ""
    lines: list[str] = []
    for line in body.splitlines():
        item = _ITEM.fullmatch(line)
        if item is None:
            lines.append(line.strip())
            continue
        if name:
            yield name, " ".join(lines)
        name = item[1]
        lines = [item[2]]
    yield name, " ".join(lines)


def _bullets(items: Iterable[tuple[str, str]]) -> str:
    lines: list[str] = []
    for name, text in items:
        description = _plain(" ".join(text.split()))
        lines.append(f"- `{name}`: {description}")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"
