"""What the command prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from flowpregel.cli.preview import printable


def tell_json(value: Any) -> None:
    """Print *value*, which JSON has, in one line."""
    click.echo(json.dumps(value, ensure_ascii=True))


def tell(text: str = "") -> None:
    """Print a line of a result."""
    click.echo(printable(text))


def note(text: str) -> None:
    """Print a line that is no result."""
    click.echo(printable(text), err=True)


def tell_error(error: BaseException, code: int, *, as_json: bool) -> None:
    """Print what went wrong."""
    if as_json:
        tell_json({"error": {"type": type(error).__name__, "message": str(error)}, "code": code})
    else:
        note(f"error: {error}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows*: fitted to a terminal, or whole lines with two spaces between columns."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
        return
    widths = [max(len(row[i]) for row in (columns, *cells)) for i in range(len(columns))]
    for row in (columns, *cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - 30 ms, for terminals only
    from rich.table import Table  # noqa: PLC0415 - 30 ms, for terminals only
    from rich.text import Text  # noqa: PLC0415 - 30 ms, for terminals only

    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)


def fields(pairs: Mapping[str, str]) -> None:
    """Print names and values, aligned."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        tell(f"{name.ljust(width)}  {value}")


def time_of(nanoseconds: int) -> str:
    """Return a moment as ISO 8601 text in UTC, to the second."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size_of(count: int) -> str:
    """Return a number of bytes for people."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} TB"
