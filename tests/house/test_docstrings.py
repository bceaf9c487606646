"""The docstrings of public names: complete, with examples that are true."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import doctest
import functools
import importlib
import inspect
import itertools
import re
import symtable
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, is_typeddict

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors import ProcessExecutor
from flowpregel.graph import StateGraph
from tests.house.test_public_names import BUILT

PROPERTIES = (property, functools.cached_property)
ROOT = Path(__file__).parents[2]
RUN = re.compile(r"(?m)^ *>>> (?!.*\+SKIP)")
JOINED_LIST = re.compile(r"[.,;:] \* \S")
"""An item of a list within a line."""
WITH_EXAMPLES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "flowpregel").rglob("*.py"))
    if RUN.search(file.read_text("utf-8"))
]
"""The modules that have examples to run."""


def unwrapped(member: Any) -> Any:
    """Return the function behind a class member: a method of any kind, or a decorated
    function.
    """
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return inspect.unwrap(member) if callable(member) else member


def name_of(target: Any) -> str:
    """Return the name under which a class or function is listed."""
    if isinstance(target, property):
        target = target.fget
    elif isinstance(target, functools.cached_property):
        target = target.func
    return f"{target.__module__}.{target.__qualname__}"


def public_targets() -> dict[str, tuple[Any, type | None]]:
    """Return each public class and function, and each public method with the class that
    has it, by name.
    """
    targets: dict[str, tuple[Any, type | None]] = {}
    for module in BUILT:
        loaded = importlib.import_module(module)
        for public in loaded.__all__:
            value = getattr(loaded, public)
            if inspect.isclass(value) and is_ours(value):
                targets.setdefault(name_of(value), (value, None))
                for method in methods_of(value):
                    targets.setdefault(name_of(method), (method, value))
            elif inspect.isfunction(value):
                function = inspect.unwrap(value)
                targets.setdefault(name_of(function), (function, None))
    return targets


def is_ours(target: type) -> bool:
    """Return whether a class is defined in the package."""
    return target.__module__.partition(".")[0] == "flowpregel"


def methods_of(owner: type) -> Iterator[Any]:
    """Yield the public methods and properties of a class. The tests of a contract suite
    are left out, because their names are sentences.
    """
    for base in filter(is_ours, owner.__mro__):
        for name, member in vars(base).items():
            method = unwrapped(member)
            is_method = inspect.isfunction(method) or isinstance(method, PROPERTIES)
            if is_method and not name.startswith(("_", "test_")):
                yield method


def docs_of(target: Any, owner: type | None) -> str:
    """Return the docstring of a class, function or method.

    The docstrings of a method include those of the methods that it overrides, and for
    an async form (`aget`) those of the sync form (`get`).
    """
    if owner is None or isinstance(target, PROPERTIES):
        return target.__doc__ or ""
    name = target.__name__
    names = [name, name.removeprefix("a")] if name.startswith("a") else [name]
    texts = [
        getattr(unwrapped(vars(base)[form]), "__doc__", None) or ""
        for base in owner.__mro__
        for form in names
        if form in vars(base) and is_ours(base)
    ]
    return "\n".join([target.__doc__ or "", *texts])


def parameters_of(target: Any) -> list[str]:
    """Return the names of the parameters that a caller passes.

    No caller creates a protocol or an enum, and none passes a value that has the type
    ``Never``.
    """
    function = target
    if inspect.isclass(target):
        if is_protocol(target) or issubclass(target, Enum):
            return []
        function = target.__init__
    if not inspect.isfunction(function):
        return []
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
        and not name.startswith("_")
        and parameter.annotation != "Never"
    ]


def keys_of(target: Any, name: str) -> set[str]:
    """Return the keys of a parameter such as ``**parts: Unpack[GraphParts]``, or no
    keys for any other parameter.
    """
    function = target.__init__ if inspect.isclass(target) else target
    annotation = inspect.signature(function).parameters[name].annotation
    unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(annotation))
    if unpacked is None:
        return set()
    return set(function.__globals__[unpacked[1]].__annotations__)


def names_in(docs: str) -> set[str]:
    """Return the names that have an entry in *docs*, alone or with others (``tags,
    metadata: ...``), or that the text names with asterisks.
    """
    entries = re.findall(r"(?m)^ +([*\w]+(?:, [*\w]+)*):", docs)
    names = set(re.findall(r"\w+", " ".join(entries)))
    names.update(re.findall(r"\*(\w+)\*", docs))
    return names


def unnamed_parameters(target: Any, owner: type | None) -> list[str]:
    """Return the parameters that the docstring names neither in *Args* nor in the
    text. If it names all keys of a dict that is unpacked, it need not name the dict.
    """
    if isinstance(target, PROPERTIES):
        return []
    if inspect.isclass(target) and (
        dataclasses.is_dataclass(target) or issubclass(target, BaseException)
    ):
        return []
    docs = docs_of(target, owner)
    named = names_in(docs)
    named.update(re.findall(r"``(\w+)(?:=[^`]*)?``", docs))
    unnamed = [name for name in parameters_of(target) if name not in named]
    return [name for name in unnamed if not named >= (keys_of(target, name) or {name})]


def lacks_example(target: Any, owner: type | None) -> bool:
    """Return whether a class, or a function with arguments, has no example, and is of
    no kind that needs none.
    """
    if isinstance(target, PROPERTIES):
        return False
    if inspect.isclass(target):
        if needs_no_example(target):
            return False
    elif not parameters_of(target) or (owner and is_shown_elsewhere(target, owner)):
        return False
    return ">>>" not in docs_of(target, owner)


def unknown_names(target: Any, owner: type | None) -> list[str]:
    """Return the names in an example that a reader cannot know, because they are
    neither built in, nor imported or defined in the example, nor described by it.
    """
    examples = doctest.DocTestParser().get_examples(target.__doc__ or "")
    code = "".join(
        example.source for example in examples if doctest.SKIP not in example.options
    )
    known = {*dir(builtins), name_of(target).rpartition(".")[2]}
    if owner is not None:
        known.add(owner.__name__)
    module = symtable.symtable(code, "example", "exec")
    known.update(
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    )
    names = {
        symbol.get_name()
        for scope in scopes_of(module)
        for symbol in scope.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
    }
    return sorted(names - known)


def scopes_of(scope: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """Yield a scope and all scopes inside it."""
    yield scope
    for child in scope.get_children():
        yield from scopes_of(child)


FOR_PLUG_INS = (
    "flowpregel._core.tracing",
    "flowpregel._stores",
    "flowpregel.checkpoint.leases",
    "flowpregel.checkpoint.tables",
    "flowpregel.executors.base",
    "flowpregel.executors.cluster",
    "flowpregel.executors.processes.coordinator.task_pool",
    "flowpregel.plugins.langgraph",
    "flowpregel.storage",
    "flowpregel.testing.cache_contract",
    "flowpregel.testing.saver_",
    "flowpregel.testing.store_",
)
"""The modules whose classes are parts of plug-ins and of their tests. The methods of
such a class need no example, and neither do the methods that override them: the library
or pytest calls them, or a plug-in does in an order that only a whole plug-in shows. The
pages *Write a store* and *Publish a plug-in* have whole ones, which run.
"""


def is_shown_elsewhere(method: Any, owner: type) -> bool:
    """Return whether a method is used in the example of its class, or on a page about
    plug-ins, or in classes that implement it.
    """
    name = method.__name__
    bases = [base for base in owner.__mro__ if name in vars(base)]
    return (
        any(base.__module__.startswith(FOR_PLUG_INS) for base in bases)
        or is_implemented(name, owner)
        or is_in_class_example(name, owner)
    )


def needs_no_example(target: type) -> bool:
    """Return whether a class is of a kind that needs no example.

    Callers do not create errors and typed dicts. A record is a list of fields, and each
    field is described; but callers write the policies, so these have examples. An
    abstract class or a protocol has examples in the classes that implement it.
    """
    return (
        issubclass(target, BaseException)
        or is_typeddict(target)
        or (is_record(target) and target.__module__ != "flowpregel.policies")
        or inspect.isabstract(target)
        or is_protocol(target)
    )


def is_record(target: type) -> bool:
    """Return whether a class is a dataclass or a named tuple."""
    return dataclasses.is_dataclass(target) or issubclass(target, tuple)


def is_protocol(target: type) -> bool:
    """Return whether a class is a protocol itself."""
    return Protocol in target.__bases__


def is_implemented(name: str, owner: type) -> bool:
    """Return whether a method implements an abstract class or a protocol. The library
    calls such methods, and callers seldom do.
    """
    return any(
        getattr(vars(base).get(name), "__isabstractmethod__", False)
        or (is_protocol(base) and name in vars(base))
        for base in owner.__mro__
    )


def is_in_class_example(name: str, owner: type) -> bool:
    """Return whether the example of a class calls or defines a method, or the sync form
    of it.
    """
    docs = "\n".join(base.__doc__ or "" for base in owner.__mro__ if is_ours(base))
    code = "\n".join(re.findall(r"(?m)^ *(?:>>>|\.\.\.)(.*)", docs))
    forms = f"(?:{name}|{name.removeprefix('a')})" if name.startswith("a") else name
    return re.search(rf"(?:\.|\bdef ){forms}\(", code) is not None


def undescribed_fields(target: Any, _: type | None) -> list[str]:
    """Return the fields of a record that neither have a docstring below them nor are
    named in the docstring of the class. The fields of an error are in its message.
    """
    if not inspect.isclass(target) or issubclass(target, BaseException):
        return []
    if not (is_record(target) or is_typeddict(target)):
        return []
    body = ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]
    assert isinstance(body, ast.ClassDef)
    named = names_in(target.__doc__ or "")
    missing = []
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        described = isinstance(following, ast.Expr) or name in named
        if not described and not name.startswith("_"):
            missing.append(name)
    return missing


def names_stored_by(assignment: ast.AnnAssign | ast.Assign) -> list[str]:
    """Return the names that an assignment stores."""
    return [
        node.id
        for node in ast.walk(assignment)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


Check = Callable[[Any, "type | None"], "list[str] | bool"]
CHECKS: dict[str, Check] = {
    "parameters": unnamed_parameters,
    "fields": undescribed_fields,
    "examples": lacks_example,
    "names": unknown_names,
}


def incomplete(check: Check) -> set[str]:
    """Return the names for which *check* finds something, with what it finds."""
    names: set[str] = set()
    for name, (target, owner) in public_targets().items():
        result = check(target, owner)
        if isinstance(result, list):
            names.update(f"{name}({part})" for part in result)
        elif result:
            names.add(name)
    return names


def test_every_public_name_has_a_docstring() -> None:
    """Each public class, function, method and property says what it does."""
    targets = public_targets()

    assert [] == [
        name
        for name, (target, owner) in targets.items()
        if not docs_of(target, owner).strip()
    ]


def test_every_public_value_has_a_docstring() -> None:
    """Each constant and type alias has a text below its definition."""
    is_described: dict[str, bool] = {}
    for file in (ROOT / "flowpregel").rglob("*.py"):
        body = ast.parse(file.read_text("utf-8")).body
        for statement, following in itertools.pairwise([*body, None]):
            if isinstance(statement, ast.AnnAssign | ast.Assign):
                for name in names_stored_by(statement):
                    has_text = isinstance(following, ast.Expr)
                    is_described[name] = has_text or is_described.get(name, False)
    values = {
        name
        for module in map(importlib.import_module, BUILT)
        for name in module.__all__
        if not inspect.isclass(getattr(module, name))
        and not inspect.isfunction(getattr(module, name))
    }

    assert [] == sorted(name for name in values if not is_described.get(name, True))


def test_no_list_in_a_docstring_is_joined_to_a_paragraph() -> None:
    """A tool that wraps paragraphs does so to a list without an empty line above it."""
    joined: list[str] = []
    for file in sorted((ROOT / "flowpregel").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if JOINED_LIST.search(node.value):
                joined.append(f"{file.name}:{node.lineno}")

    assert [] == joined


@pytest.mark.parametrize("check", CHECKS)
def test_docstrings_are_complete(check: str) -> None:
    """Each parameter and field is described, and there is an example for each class,
    and for each function with arguments. The example imports the names that it uses.
    """
    assert [] == sorted(incomplete(CHECKS[check])), "describe these"


@pytest.mark.parametrize(
    ("owner", "name", "is_shown"),
    [
        (StateGraph, "add_node", True),
        (StateGraph, "add_sequence", False),
        (LMDBSaver, "load", True),
        (LMDBSaver, "prune", False),
        (ProcessExecutor, "warn", True),
        (ProcessExecutor, "submit", False),
    ],
)
def test_only_some_methods_need_no_example_of_their_own(
    owner: type, name: str, is_shown: bool
) -> None:
    """A method in the example of its class, one that an abstract class demands, or one
    that overrides a method for plug-ins.
    """
    assert is_shown is is_shown_elsewhere(getattr(owner, name), owner)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_docstrings_are_true(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example gives the result that its docstring shows."""
    monkeypatch.chdir(tmp_path)

    result = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.ELLIPSIS
    )

    assert result.attempted > 0
    assert 0 == result.failed
