"""What Mermaid and Graphviz need to draw a graph: colours, ids, quoted labels, and a program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from flowpregel._text import printable
from flowpregel.errors import ConfigurationError


class Style(NamedTuple):
    """The colours of a box."""

    fill: str
    stroke: str
    text: str
    dashed: bool = False


STYLES: Final = {
    "marker": Style("#eceff1", "#90a4ae", "#37474f"),
    "done": Style("#e8f5e9", "#43a047", "#1b5e20"),
    "failed": Style("#ffebee", "#e53935", "#b71c1c"),
    "waiting": Style("#fff8e1", "#ffb300", "#ff6f00"),
    "open": Style("#e3f2fd", "#1e88e5", "#0d47a1"),
    "idle": Style("#fafafa", "#bdbdbd", "#9e9e9e", dashed=True),
}
"""The colours of markers, and of the nodes of a run by what became of them."""

_RESERVED = frozenset({
    "call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph",
    "href", "linkstyle", "style", "subgraph",
})  # fmt: skip
_ESCAPED = {
    ord("#"): "#35;", ord('"'): "#quot;", ord("<"): "#lt;", ord(">"): "#gt;", ord("&"): "#38;",
    ord("%"): "#37;", ord("`"): "#96;", ord("\\"): "#92;", ord("\n"): "<br/>",
}  # fmt: skip


def mermaid_label(text: str) -> str:
    """Return *text* as a label in Mermaid's language."""
    return f'"{printable(text).translate(_ESCAPED)}"'


def mermaid_ids(names: Sequence[str]) -> dict[str, str]:
    """Return ids that Mermaid takes: the names themselves where they are words to it."""
    words = {
        name
        for name in names
        if name.isascii() and name.isidentifier() and name.lower() not in _RESERVED
    }
    numbered = (f"n{number}" for number in range(2 * len(names) + 1) if f"n{number}" not in words)
    return {name: name if name in words else next(numbered) for name in names}


def quoted(text: str) -> str:
    """Return *text* as a name or label in Graphviz's language."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def render(source: str, form: Literal["svg", "png"], *, program: str = "dot") -> bytes:
    """Return a picture made by Graphviz.

    Args:
        source: What to draw, in its language.
        form: The format of the picture.
        program: The name or path of its program.

    Raises:
        ConfigurationError: The program is not installed, or failed.
    """
    path = shutil.which(program)
    if path is None:
        raise ConfigurationError(
            f"draw_{form} needs the program {program!r} of Graphviz, and it is not installed; "
            "install Graphviz, or use draw_mermaid() or draw_ascii()"
        )
    command = [path, f"-T{form}"]
    made = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if made.returncode:
        raise ConfigurationError(
            f"{program!r} could not draw the graph: {made.stderr.decode(errors='replace').strip()}"
        )
    return made.stdout
