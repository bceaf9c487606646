"""The public face: each public module says what it offers, in order, and has it."""

from __future__ import annotations

import importlib
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import flowpregel

ROOT = Path(__file__).parents[2]

PUBLIC = [
    "flowpregel",
    "flowpregel.cache.base",
    "flowpregel.cache.durable",
    "flowpregel.cache.lmdb",
    "flowpregel.cache.memory",
    "flowpregel.channels",
    "flowpregel.checkpoint.base",
    "flowpregel.checkpoint.durable",
    "flowpregel.checkpoint.langgraph_methods",
    "flowpregel.checkpoint.lmdb",
    "flowpregel.checkpoint.memory",
    "flowpregel.cli.base",
    "flowpregel.config",
    "flowpregel.constants",
    "flowpregel.errors",
    "flowpregel.executors",
    "flowpregel.executors.cluster",
    "flowpregel.func",
    "flowpregel.graph",
    "flowpregel.plugins",
    "flowpregel.plugins.joblib",
    "flowpregel.plugins.langchain",
    "flowpregel.plugins.langgraph",
    "flowpregel.plugins.opentelemetry",
    "flowpregel.plugins.postgres",
    "flowpregel.plugins.sqlite",
    "flowpregel.managed",
    "flowpregel.pregel",
    "flowpregel.runtime",
    "flowpregel.storage",
    "flowpregel.store.base",
    "flowpregel.store.durable",
    "flowpregel.store.lmdb",
    "flowpregel.store.memory",
    "flowpregel.testing",
    "flowpregel.testing.clock",
    "flowpregel.testing.crash",
    "flowpregel.tracing",
    "flowpregel.types",
    "flowpregel.units",
    "flowpregel.watching",
]
BUILT = [module for module in PUBLIC if importlib.util.find_spec(module) is not None]


def order(name: str) -> tuple[int, str]:
    """Return the sort key of *name*: constants, then classes, then the rest (ruff's
    RUF022).
    """
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


def public_names(module: str) -> list[str]:
    """Return what *module* says it offers; a package that is still empty offers
    nothing.
    """
    loaded = importlib.import_module(module)
    defined = [
        name
        for name, value in vars(loaded).items()
        # A submodule that was imported hangs on its package without being offered by
        # it.
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]
    if not defined and not hasattr(loaded, "__all__"):
        return []
    assert hasattr(loaded, "__all__"), f"{module} defines {defined} but has no __all__"
    return list(loaded.__all__)


@pytest.mark.parametrize("module", BUILT)
def test_public_names_are_sorted_and_unique(module: str) -> None:
    """``__all__`` can be read like an index."""
    names = public_names(module)

    assert sorted(set(names), key=order) == names


@pytest.mark.parametrize("module", BUILT)
def test_every_public_name_can_be_imported(module: str) -> None:
    """Nothing is promised that is not there."""
    loaded = importlib.import_module(module)

    assert [] == [name for name in public_names(module) if not hasattr(loaded, name)]


def test_the_version_has_one_place() -> None:
    """The package's version is stated in one file, which the build reads too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    source = project["tool"]["hatch"]["version"]["path"]

    assert ["readme", "urls", "version"] == project["project"]["dynamic"]
    assert "version" not in project["project"]
    assert f'__version__ = "{flowpregel.__version__}"' in (ROOT / source).read_text(
        "utf-8"
    )
