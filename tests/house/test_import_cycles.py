"""No two files import each other, at whatever time: not lazily, not for type checkers
alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.house.measure import module_name, package_files


def imports_of(module: str, source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield which of *modules* the *source* of *module* imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                wanted = [alias.name for alias in names]
            case ast.ImportFrom(module=str(parent), names=names, level=0):
                children = [f"{parent}.{alias.name}" for alias in names]
                # `from package import module` needs the module, any other name the
                # package.
                wanted = [child if child in modules else parent for child in children]
            case _:
                continue
        yield from (name for name in wanted if name in modules and name != module)


def cycle_in(modules: Mapping[str, str]) -> list[str]:
    """Return modules that import each other in a circle; none: there is no circle."""
    graph = {
        name: set(imports_of(name, source, modules)) for name, source in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other() -> None:
    """Each file can be read after those that it imports."""
    files = package_files()

    assert [] == cycle_in(
        {module_name(file): file.read_text("utf-8") for file in files}
    )


@pytest.mark.parametrize(
    "source",
    [
        "import a.b",
        "from a import b",
        "def f():\n    from a.b import c",
        "if TYPE_CHECKING:\n    from a.b import c",
    ],
)
def test_a_circle_is_found(source: str) -> None:
    """The check itself: lazy imports and those for type checkers close a circle too."""
    assert {"a.b", "x"} == set(cycle_in({"a": "", "a.b": "import x", "x": source}))
