"""What the commands take and print: common options, results, errors and exit codes.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, TypeVar

import click

from flowpregel.cli.preview import printable
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    InputMismatchError,
    StoreError,
    UnknownInterruptError,
)

Function = TypeVar("Function", bound=Callable[..., Any])
_JSON = "flowpregel.json"
_USAGE = (ConfigurationError, EmptyInputError, InputMismatchError, UnknownInterruptError)


class Code(IntEnum):
    """How the command ended."""

    OK = 0
    FAILED = 1
    """The run failed, or a check did."""
    USAGE = 2
    """What was asked cannot be done: an unknown thread, a wrong input, no such flow."""
    WAITING = 3
    """The run waits for an answer."""
    STORE = 4
    """The store cannot be used, is damaged, or its thread is in use."""
    STOPPED = 130
    """Ctrl-C or ``cancel``; what had finished is kept."""


def is_refusal(error: BaseException) -> bool:
    """Return whether *error* refuses what was asked; otherwise a task failed."""
    return isinstance(error, (StoreError, *_USAGE))


def code_of(error: BaseException) -> Code:
    """Return the exit code for *error*."""
    if isinstance(error, StoreError):
        return Code.STORE
    return Code.USAGE if isinstance(error, _USAGE) else Code.FAILED


# ---------------------------------------------------------------- options


def store_command(function: Callable[..., Code | None]) -> click.Command:
    """Make a command with the options that every command has: ``--store`` and ``--json``."""
    command: click.Command = click.command()(function)
    command.params += [
        click.Option(
            ["--store"],
            metavar="PATH",
            envvar="FLOWPREGEL_STORE",
            show_envvar=True,
            help="The folder of the store.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=lambda ctx, _, value: ctx.meta.update({_JSON: value}),
            help="Print JSON, for programs.",
        ),
    ]
    return command


thread_argument = click.argument("thread")
full_option = click.option("--full", is_flag=True, help="Print values whole, not just previews.")
all_option = click.option("--all", "show_all", is_flag=True, help="Show the engine's channels too.")


def flow_option(help: str) -> Callable[[Function], Function]:
    """Return the option ``--flow MODULE:FLOW``."""
    return click.option("--flow", metavar="MODULE:FLOW", help=help)


def limit_option(default: int, help: str) -> Callable[[Function], Function]:
    """Return the option ``--limit N``."""
    kind = click.IntRange(min=1)
    return click.option("--limit", type=kind, default=default, show_default=True, help=help)


# ---------------------------------------------------------------- output


def wants_json() -> bool:
    """Return whether the command was called with ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_json(value: Any) -> None:
    """Print *value*, which JSON has, in one line."""
    click.echo(json.dumps(value, ensure_ascii=True))


def print_line(text: str = "") -> None:
    """Print a line of a result."""
    click.echo(printable(text))


def print_result(value: Any, text: str) -> None:
    """Print a result: *value* if JSON was asked for, otherwise *text*."""
    if wants_json():
        print_json(value)
    else:
        print_line(text)


def note(text: str) -> None:
    """Print a line that is no result."""
    click.echo(printable(text), err=True)


def print_error(error: BaseException, code: int) -> None:
    """Print what went wrong."""
    if wants_json():
        told = {"type": type(error).__name__, "message": str(error)}
        print_json({"error": told, "code": code})
    else:
        note(f"error: {error}")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print *rows* as JSON, or the *columns* of them, whose keys are given by heading."""
    if wants_json():
        print_json(rows)
    else:
        table([*columns], [[_cell(row[key]) for key in columns.values()] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows*: fitted to a terminal, or whole lines with two spaces between columns."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _print_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - 30 ms, for terminals only
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)


def print_fields(pairs: Mapping[str, str]) -> None:
    """Print names and values, aligned."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        print_line(f"{name.ljust(width)}  {value}")


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
