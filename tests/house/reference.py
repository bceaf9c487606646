"""The pages of the API reference, one for each public module.

`python -m tests.house.reference` writes `docs/reference/api/`, and links each name in
the index of the reference, `docs/reference/api.md`, to its entry.

A page lists the names that it describes; signatures and docstrings are added by
mkdocstrings when the site is built. A name that several modules offer is described
once, in its home, so that a search finds it once.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.house.test_public_names import PUBLIC

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
INDEX = REFERENCE / "api.md"
PAGES = REFERENCE / "api"

RE_EXPORTING = {
    "flowpregel",
    "flowpregel.checkpoint.langgraph_methods",
    "flowpregel.constants",
}
"""The modules that are a home only for names that no other module offers."""

NOT_IN_ALL = {"flowpregel": ("map",)}
"""Public names that `import *` leaves out, since they would hide Python's own."""


def offered(module: str) -> list[str]:
    """Return the public names of *module*."""
    loaded = importlib.import_module(module)
    names = [name for name in NOT_IN_ALL.get(module, ()) if hasattr(loaded, name)]
    return sorted({*loaded.__all__, *names}, key=lambda name: (name.lower(), name))


@cache
def homes() -> dict[tuple[str, str], str]:
    """Return the module that describes each (module, name)."""
    modules: dict[tuple[int, str], list[str]] = defaultdict(list)
    for module in PUBLIC:
        for name in offered(module):
            value = getattr(importlib.import_module(module), name)
            modules[id(value), name].append(module)

    found: dict[tuple[str, str], str] = {}
    for (_, name), candidates in modules.items():
        defining = [item for item in candidates if item not in RE_EXPORTING]
        home = (defining or candidates)[-1]
        found |= {(module, name): home for module in candidates}
    return found


def page(module: str) -> str:
    """Return the text of the page of *module*."""
    described = [name for name in offered(module) if homes()[module, name] == module]
    elsewhere = [
        f"[`{name}`]({entry(module, name)})"
        for name in offered(module)
        if homes()[module, name] != module
    ]
    lines = [f"# `{module}`", "", f"::: {module}", "    options:", "      members:"]
    lines += [f"        - {name}" for name in described]
    if not described:
        lines[-1] += " []"
    if elsewhere:
        lines += ["", "The module also offers " + ",\n".join(elsewhere) + "."]
    return "\n".join(lines) + "\n"


def entry(module: str, name: str) -> str:
    """Return the link to the entry of a name, from another page of the folder."""
    home = homes()[module, name]
    return f"{home}.md#{home}.{name}"


def linked(index: str) -> str:
    """Return the index with a link to its entry for each public name."""
    lines: list[str] = []
    module = ""
    for line in index.splitlines():
        if heading := re.fullmatch(r"## (?:\[)?`([\w.]+)`(?:\].*)?", line):
            module = heading[1]
            line = f"## [`{module}`](api/{module}.md)"
        row = re.match(r"\| (?:\[)?`(\w+)`(?:\]\([^)]*\))? \|", line)
        if row and (module, row[1]) in homes():
            link = f"| [`{row[1]}`](api/{entry(module, row[1])}) |"
            line = link + line[row.end() :]
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages and the links of the index."""
    PAGES.mkdir(exist_ok=True)
    for path in PAGES.glob("*.md"):
        path.unlink()
    for module in PUBLIC:
        (PAGES / f"{module}.md").write_text(page(module), encoding="utf-8")
    INDEX.write_text(linked(INDEX.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
