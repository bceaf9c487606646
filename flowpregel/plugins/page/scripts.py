"""The page's scripts: one module that the server sends, and one inside a report.

The source consists of files that import each other. They are joined into one, because a
browser would send a request for each file at each visit, and these would take the
server as much time as all answers about a run.

``numbers.js`` has an empty table, which gets the rows of `CALL_NUMBERS`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from flowpregel.watching import CALL_NUMBERS

STATIC: Final = Path(__file__).with_name("static")
"""The folder of the page's files."""
MODULES: Final = (
    "dom",
    "format",
    "numbers",
    "fields",
    "query",
    "points",
    "source",
    "place",
    "chips",
    "stream",
    "model",
    "values",
    "columns",
    "compare",
    "markdown",
    "questions",
    "media",
    "series",
    "call",
    "terms",
    "calls",
    "errors",
    "start",
    "status",
    "usage",
    "time",
    "timeline",
    "layout",
    "plot",
    "graph",
    "steps",
    "logs",
    "run",
    "runs",
    "notify",
    "main",
)
"""The names of the page's modules, in an order in which each module comes after those
that it imports.
"""
_EMPTY_TABLE: Final = "CALL_NUMBERS = [];"
"""The table of ``numbers.js`` without its rows."""


def page_script() -> str:
    """Return the page's modules as one module without imports."""
    scripts: list[str] = []
    for name in MODULES:
        text = numbers_module() if name == "numbers" else _module(name)
        script = re.sub(r"^import .*;\n|^export ", "", text, flags=re.MULTILINE)
        scripts.append(script)
    return "\n".join(scripts)


def numbers_module() -> str:
    """Return the module ``numbers.js`` with the table of the numbers that each call
    has.
    """
    rows = json.dumps([number._asdict() for number in CALL_NUMBERS])
    return _module("numbers").replace(_EMPTY_TABLE, f"CALL_NUMBERS = {rows};")


def _module(name: str) -> str:
    """Return the text of a module in the page's folder."""
    return (STATIC / f"{name}.js").read_text(encoding="utf-8")


def report_script() -> str:
    """Return the page's modules, and the library of plots, as one module without
    imports.
    """
    return f"{_library()}\n{page_script()}"


def _library() -> str:
    """Return the library of plots as a script, with its licence as a comment."""
    folder = STATIC / "vendor"
    licence = (folder / "uplot.LICENSE").read_text(encoding="utf-8")
    library = (folder / "uplot.js").read_text(encoding="utf-8")
    # The first line is left out, because it is a comment with a web address, and a
    # report must not refer to the web. The last line is left out, because the library
    # is in one module with the page's scripts, and need not be exported.
    _, _, script = library.partition("\n")
    script = script.removesuffix("export default uPlot;\n")
    return f"/*! uPlot\n{licence}*/\n{script}"
