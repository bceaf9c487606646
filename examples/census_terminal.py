"""The report of a census for a terminal, drawn with rich."""

from __future__ import annotations

from typing import Any

from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

FIGURES = ("files", "lines", "classes", "functions", "copied functions", "copied lines")


def show(found: dict[str, Any]) -> None:
    """Print the report."""
    Console().print(report(found))


def report(found: dict[str, Any]) -> RenderableType:
    """Return the report for rich to print."""
    figures = [Panel(f"[bold cyan]{found[key]:>12,}[/]", title=key) for key in FIGURES]
    largest = bars("largest packages (lines)", found["packages"][:10])
    names = bars("most frequent names", found["names"][:10])
    return Group(
        Columns(figures),
        "",
        Columns([largest, names], padding=(0, 4)),
        "",
        bars("functions by complexity (up to)", found["complexity"]),
        "",
        places(found),
    )


def bars(title: str, values: list[tuple[str, int]]) -> Table:
    """Return labels, numbers and bars."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None)
    drawn.show_header = False
    most = max((value for _, value in values), default=0) or 1
    for label, value in values:
        drawn.add_row(
            escape(label[:24]),
            f"{value:,}",
            Bar(most, 0, value, width=24, color="cyan"),
        )
    drawn.columns[1].justify = "right"
    return drawn


def places(found: dict[str, Any]) -> Table:
    """Return the functions with the most ways through them."""
    drawn = Table(
        title="most complex functions",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    drawn.add_column("ways", justify="right", style="cyan")
    drawn.add_column("function", style="bold")
    drawn.add_column("place", overflow="fold")
    for complexity, name, path, line in found["most complex"][:10]:
        drawn.add_row(str(complexity), escape(name), escape(f"{path}:{line}"))
    return drawn
