"""The text of a drawing: Mermaid, Graphviz's DOT, and a list for a terminal.

A `Drawing` gives a `Picture`, plain data in which nested graphs are clusters of boxes;
the functions here turn that into text.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel.errors import ConfigurationError

Kind: TypeAlias = Literal["node", "start", "end"]
Direction: TypeAlias = Literal["TD", "LR", "BT", "RL"]
Charset: TypeAlias = Literal["unicode", "ascii"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another."""

    source: str
    target: str
    data: str | None = None
    """The label: the channel, or the answer that leads this way."""
    conditional: bool = False
    """Whether the source decides, each time, if it goes this way."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node in a picture."""

    id: str
    label: str
    kind: Kind = "node"
    style: str = ""
    """A key of `STYLES`; empty: the usual look."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A nested graph in a picture: a frame around its nodes."""

    id: str
    label: str
    members: Sequence[Box | Cluster]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: boxes, in clusters where graphs are nested, and edges between boxes."""

    members: Sequence[Box | Cluster]
    edges: Sequence[Edge]

    def walk(self) -> Iterator[Box | Cluster]:
        """Yield every cluster and every box, those in clusters too."""
        waiting = [*self.members]
        while waiting:
            member = waiting.pop(0)
            yield member
            if isinstance(member, Cluster):
                waiting[:0] = member.members


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
"""How boxes look that are more than nodes: markers, and the nodes of a run."""


class Drawing(ABC):
    """Something that draws itself; in a notebook it shows itself."""

    @abstractmethod
    def picture(self) -> Picture:
        """Return what Mermaid and Graphviz are to draw."""

    @abstractmethod
    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return it as text for a terminal."""

    def print_ascii(self) -> None:
        """Print `draw_ascii`."""
        print(self.draw_ascii())

    def draw_mermaid(self, *, direction: Direction = "TD") -> str:
        """Return it in Mermaid's language; nested graphs are boxes around their nodes.

        Args:
            direction: Top down, left to right, bottom to top or right to left.
        """
        return to_mermaid(self.picture(), direction)

    def draw_dot(self) -> str:
        """Return it in Graphviz's language."""
        return to_dot(self.picture())

    def draw_svg(self) -> str:
        """Return it as an SVG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return render(self.draw_dot(), "svg").decode()

    def draw_png(self) -> bytes:
        """Return it as a PNG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return render(self.draw_dot(), "png")

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(self.draw_ascii())}</pre>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": self.draw_ascii(),
            "text/html": self._repr_html_(),
            "text/vnd.mermaid": self.draw_mermaid(),
        }


# ---------------------------------------------------------------- text


def to_list(labels: Mapping[str, str], edges: Sequence[Edge], charset: Charset) -> str:
    """Return a list of nodes, each followed by the edges that leave it.

    Args:
        labels: The label of each node, by its id.
        edges: The edges between them.
        charset: Line-drawing characters, or nothing but ASCII.
    """
    branch, corner, solid, dashed = "├└─┄" if charset == "unicode" else "++-."
    names = {id_: " ".join(label.split("\n")) for id_, label in labels.items()}
    leaving: dict[str, list[Edge]] = {id_: [] for id_ in labels}
    for edge in edges:
        leaving[edge.source].append(edge)
    lines = []
    for id_, name in names.items():
        lines.append(name)
        for number, edge in enumerate(leaving[id_], 1):
            fork = corner if number == len(leaving[id_]) else branch
            line = dashed if edge.conditional else solid
            label = f" {edge.data} {line}" if edge.data else ""
            lines.append(f"  {fork}{line}{label}> {names[edge.target]}")
    return "\n".join(lines) or "(no nodes)"


# ---------------------------------------------------------------- Mermaid

_RESERVED = frozenset({
    "call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph",
    "href", "linkstyle", "style", "subgraph",
})  # fmt: skip
_ESCAPED = {
    ord("#"): "#35;", ord('"'): "#quot;", ord("<"): "#lt;", ord(">"): "#gt;",
    ord("`"): "#96;", ord("\\"): "#92;", ord("\n"): "<br/>",
}  # fmt: skip


def to_mermaid(picture: Picture, direction: Direction = "TD") -> str:
    """Return *picture* as a Mermaid flowchart."""
    boxes = [each for each in picture.walk() if isinstance(each, Box)]
    clusters = [each.id for each in picture.walk() if isinstance(each, Cluster)]
    ids = _mermaid_ids([*(box.id for box in boxes), *clusters])
    lines = [f"flowchart {direction}", *_mermaid_members(picture.members, ids, "    ")]
    for edge in picture.edges:
        label = f' "{edge.data.translate(_ESCAPED)}" ' if edge.data else ""
        start, end = ("-.", ".->" if label else "->") if edge.conditional else ("--", "-->")
        arrow = f"{start}{label}{end}" if label or edge.conditional else end
        lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
    for name, style in STYLES.items():
        members = [ids[box.id] for box in boxes if _mermaid_style(box) == name]
        if members:
            look = f"fill:{style.fill},stroke:{style.stroke},color:{style.text}"
            dashes = ",stroke-dasharray:4" * style.dashed
            lines += [
                f"    classDef {name} {look}{dashes}",
                f"    class {','.join(members)} {name}",
            ]
    return "\n".join(lines) + "\n"


def _mermaid_style(box: Box) -> str:
    return box.style or ("" if box.kind == "node" else "marker")


def _mermaid_members(
    members: Sequence[Box | Cluster], ids: Mapping[str, str], indent: str
) -> Iterator[str]:
    for member in members:
        label = f'"{member.label.translate(_ESCAPED)}"'
        if isinstance(member, Cluster):
            yield f"{indent}subgraph {ids[member.id]}[{label}]"
            yield from _mermaid_members(member.members, ids, indent + "    ")
            yield f"{indent}end"
        else:
            shape = f"[{label}]" if member.kind == "node" else f"([{label}])"
            yield f"{indent}{ids[member.id]}{shape}"


def _mermaid_ids(names: Sequence[str]) -> dict[str, str]:
    """Return ids that Mermaid takes: the names themselves where they are words to it."""
    words = {
        name
        for name in names
        if name.isascii() and name.isidentifier() and name.lower() not in _RESERVED
    }
    numbered = (f"n{number}" for number in range(2 * len(names) + 1) if f"n{number}" not in words)
    return {name: name if name in words else next(numbered) for name in names}


# ---------------------------------------------------------------- Graphviz


def to_dot(picture: Picture) -> str:
    """Return *picture* in Graphviz's language."""
    lines = [
        "digraph {",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
        *_dot_members(picture.members, "  "),
    ]
    for edge in picture.edges:
        looks = [f"label={_quoted(edge.data)}"] if edge.data else []
        looks += ["style=dashed"] if edge.conditional else []
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [{', '.join(looks)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_members(members: Sequence[Box | Cluster], indent: str) -> Iterator[str]:
    for member in members:
        label = f"label={_quoted(member.label)}"
        if isinstance(member, Cluster):
            # Graphviz draws a frame around a subgraph whose name begins with this word.
            yield f"{indent}subgraph {_quoted('cluster ' + member.id)} {{"
            yield f"{indent}  {label};"
            yield from _dot_members(member.members, indent + "  ")
            yield f"{indent}}}"
            continue
        shape = "" if member.kind == "node" else ", shape=oval"
        if style := STYLES.get(member.style):
            lines = "rounded,filled,dashed" if style.dashed else "rounded,filled"
            shape += f', style="{lines}", fillcolor="{style.fill}", color="{style.stroke}"'
            shape += f', fontcolor="{style.text}"'
        yield f"{indent}{_quoted(member.id)} [{label}{shape}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
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
