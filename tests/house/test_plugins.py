"""Plug-ins use public names only, as those of other packages have to."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_public_names import PUBLIC

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "flowpregel" / "plugins"
FILES = sorted(set(PLUGINS.rglob("*.py")) - {PLUGINS / "__init__.py"})
"""The modules of plug-ins. `flowpregel.plugins` itself is the contract of stores."""


def is_public(module: str, name: str) -> bool:
    """Return whether *name* of *module* is in the reference."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and name in importlib.import_module(module).__all__


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield each import from flowpregel in a module: the module, the name, or an empty
    text for the module itself, and the name in this module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def private_names(tree: ast.AST, plugin: str) -> Iterator[str]:
    """Yield the private names of flowpregel that a module of *plugin* uses."""
    modules: dict[str, str] = {}
    for module, name, local_name in imports_of(tree):
        full_name = f"{module}.{name}".rstrip(".")
        if not is_inside(module, "flowpregel") or is_inside(full_name, plugin):
            continue
        modules[local_name] = full_name
        if full_name not in PUBLIC and not is_public(module, name):
            yield full_name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if module in PUBLIC and not is_public(module, node.attr):
                yield f"{module}.{node.attr}"


def is_inside(name: str, package: str) -> bool:
    """Return whether *name* is *package*, or the name of something in it."""
    return f"{name}.".startswith(f"{package}.")


def name_of(file: Path) -> str:
    """Return the path of *file* inside of the repository."""
    return file.relative_to(ROOT).as_posix()


def plugin_of(file: Path) -> str:
    """Return the full name of the plug-in that *file* is a part of."""
    return (
        f"flowpregel.plugins.{file.relative_to(PLUGINS).parts[0].removesuffix('.py')}"
    )


def test_plugins_use_public_names_only() -> None:
    """What a plug-in here uses is documented, so others can write the same plug-in."""
    names: dict[str, list[str]] = {}
    for file in FILES:
        tree = ast.parse(file.read_text("utf-8"))
        names[name_of(file)] = [*private_names(tree, plugin_of(file))]

    assert len(names) > 20
    assert {} == {file: found for file, found in names.items() if found}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from flowpregel._text import printable", "flowpregel._text.printable"),
        (
            "from flowpregel.storage.codec import Codec",
            "flowpregel.storage.codec.Codec",
        ),
        ("import flowpregel._text as text", "flowpregel._text"),
        (
            "from flowpregel.checkpoint import base\nbase.FLOW",
            "flowpregel.checkpoint.base.FLOW",
        ),
    ],
)
def test_a_private_name_is_found(line: str, name: str) -> None:
    """The check itself works: for names, modules, and the attributes of modules."""
    assert [name] == [*private_names(ast.parse(line), "flowpregel.plugins.mine")]


@pytest.mark.parametrize(
    "line",
    [
        "from flowpregel.storage import Codec",
        "from flowpregel.plugins.mine.rest import anything",
        "from flowpregel.checkpoint import base\nbase.Address",
        "from os import path",
    ],
)
def test_a_public_name_is_no_finding(line: str) -> None:
    """Names in the reference, of the plug-in itself and of other packages are used."""
    assert [] == [*private_names(ast.parse(line), "flowpregel.plugins.mine")]
