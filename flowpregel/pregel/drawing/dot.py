"""Pictures of a graph, made by the ``dot`` program of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from flowpregel.errors import ConfigurationError
from flowpregel.pregel.drawing.styles import STYLES

if TYPE_CHECKING:
    from flowpregel.pregel.drawing.graph import Graph


def render(
    graph: Graph,
    form: Literal["svg", "png"],
    *,
    program: str = "dot",
    classes: Mapping[str, str] | None = None,
) -> bytes:
    """Return a picture of *graph*.

    Args:
        graph: What to draw.
        form: The format of the picture.
        program: The name or path of Graphviz's program.
        classes: The style class of nodes that have one; see `STYLES`.

    Raises:
        ConfigurationError: The program is not installed, or failed.
    """
    import shutil  # noqa: PLC0415 - seldom needed, and it makes the start slower
    import subprocess  # noqa: PLC0415 - as above

    path = shutil.which(program)
    if path is None:
        raise ConfigurationError(
            f"draw_{form} needs the program {program!r} of Graphviz, and it is not installed; "
            "install Graphviz, or use draw_mermaid() or draw_ascii()"
        )
    made = subprocess.run(
        [path, f"-T{form}"], input=source(graph, classes).encode(), capture_output=True, check=False
    )
    if made.returncode:
        raise ConfigurationError(
            f"{program!r} could not draw the graph: {made.stderr.decode(errors='replace').strip()}"
        )
    return made.stdout


def source(graph: Graph, classes: Mapping[str, str] | None = None) -> str:
    """Return *graph* in Graphviz's language, its nodes in the styles of their *classes*."""
    flat = graph.flat()
    lines = [
        "digraph {",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
        *_members(graph, "", _looks(flat, classes or {}), "  "),
    ]
    for edge in flat.edges:
        styles = [f"label={_quoted(edge.data)}"] if edge.data else []
        styles += ["style=dashed"] if edge.conditional else []
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [{', '.join(styles)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _looks(flat: Graph, classes: Mapping[str, str]) -> dict[str, str]:
    """Return how each node that is drawn looks, beside its label."""
    looks = {}
    for id_, node in flat.nodes.items():
        shape = "" if node.kind == "node" else ", shape=oval"
        style = STYLES.get(classes.get(id_, ""))
        looks[id_] = f"{shape}, {style.to_dot()}" if style else shape
    return looks


def _members(graph: Graph, prefix: str, looks: Mapping[str, str], indent: str) -> Iterator[str]:
    for id_, node in graph.nodes.items():
        full = prefix + id_
        if node.subgraph is not None:
            # A cluster is a box because its name begins with this word.
            yield f"{indent}subgraph {_quoted('cluster ' + full)} {{"
            yield f"{indent}  label={_quoted(node.name)};"
            yield from _members(node.subgraph, f"{full}:", looks, indent + "  ")
            yield f"{indent}}}"
        elif full in looks:
            yield f"{indent}{_quoted(full)} [label={_quoted(node.name)}{looks[full]}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
