"""Graphs as LangChain's Runnables, whenever LangChain is imported, and without it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from flowpregel import entrypoint
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.runnables import RunnableMethods, call_after_import

GRAPH = """
import sys
from flowpregel import entrypoint
from flowpregel.pregel import NodeBuilder

@entrypoint()
def double(number: int) -> int:
    return 2 * number

node = NodeBuilder().subscribe_only("a").do(str).build()
"""
WRAP = """
class Wrapper:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, *names):
        return self.finder.find_spec(*names)

sys.meta_path[:] = map(Wrapper, sys.meta_path)
"""
CHECK = """
from langchain_core.runnables import Runnable
from flowpregel.pregel.runnables import LangChainWatcher

print(isinstance(double, Runnable), isinstance(node, Runnable))
print(any(isinstance(finder, LangChainWatcher) for finder in sys.meta_path))
"""


def printed(code: str) -> list[str]:
    """Return what a new Python process prints that runs *code*."""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return process.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        GRAPH + CHECK,
        "import langchain_core.runnables.base\n" + GRAPH + CHECK,
        "import langchain_core\n" + GRAPH + "import langchain_core.tools\n" + CHECK,
        GRAPH + WRAP + CHECK,
    ],
    ids=[
        "imported later",
        "imported before",
        "imported in between",
        "after a tool has wrapped all import hooks",
    ],
)
def test_a_graph_is_a_runnable_whenever_langchain_is_imported(code: str) -> None:
    """The hook that waits for LangChain is gone then."""
    pytest.importorskip("langchain_core")

    assert ["True", "True", "False"] == printed(code)


@pytest.mark.slow
def test_langchain_is_not_imported_for_a_graph() -> None:
    """Neither by the import, nor by a run, nor by asking for a name."""
    code = (
        GRAPH + "double.run(2); double.get_name(); double.config_specs; "
        "print(any(name.startswith('langchain') for name in sys.modules))"
    )

    assert ["False"] == printed(code)


@entrypoint(executor="inline")
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: double | str, r"\|"),
        (lambda: int | double, r"\|"),
        (lambda: {"a": int} | double, r"\|"),
        (lambda: double.bind(stream_mode="updates"), "bind"),
        (lambda: double.as_tool(), "as_tool"),
        (lambda: [*double.transform(iter([1]))], "transform"),
        (lambda: double.with_retry(), "with_retry"),
    ],
)
def test_without_langchain_the_error_names_what_to_install(
    use: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the operation that needs it."""
    monkeypatch.setitem(sys.modules, "langchain_core.runnables", None)

    with pytest.raises(ConfigurationError, match=rf"{name} makes .*\[langchain\]"):
        use()


@pytest.mark.parametrize(
    ("name", "expected"), [("adder", "adder_input"), ("Adder", "AdderInput")]
)
def test_a_name_gets_its_suffix_in_its_own_style(name: str, expected: str) -> None:
    """As LangChain writes names of schemas."""
    assert expected == double.get_name("input", name=name)
    assert "RunnableMethods" == RunnableMethods().get_name()


class SharedLoader:
    """A loader of several modules, as that of an archive is."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def exec_module(self, module: ModuleType) -> None:
        """Note the module."""
        self.executed.append(module.__name__)


def test_only_the_module_of_runnable_is_reported_and_only_once() -> None:
    """A loader may load others before and after it."""
    loader = SharedLoader()
    modules: list[ModuleType] = []
    call_after_import(loader, modules.append)
    names = ["a", "langchain_core.runnables.base", "langchain_core.runnables.base"]

    for name in names:
        loader.exec_module(ModuleType(name))

    assert names == loader.executed
    assert ["langchain_core.runnables.base"] == [module.__name__ for module in modules]


class FixedLoader:
    """A loader that cannot be changed."""

    __slots__ = ()

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


@pytest.mark.parametrize("loader", [FixedLoader(), object()])
def test_a_loader_that_cannot_be_changed_is_left_alone(loader: Any) -> None:
    """The import must not fail because of it."""
    call_after_import(loader, print)

    assert not hasattr(loader, "__dict__")
