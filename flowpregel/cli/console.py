"""What the commands take and print: common options, results, errors and exit codes.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from flowpregel._text import in_one_line, printable
from flowpregel.cli.preview import one_line
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    InputMismatchError,
    StoreError,
    UnknownInterruptError,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_JSON = "flowpregel.json"
_WIDEST = 1_000_000
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


def code_of(error: BaseException) -> Code:
    """Return the exit code for *error*."""
    if isinstance(error, StoreError):
        return Code.STORE
    return Code.USAGE if isinstance(error, _USAGE) else Code.FAILED


# ---------------------------------------------------------------- options


_STORE = click.Option(
    ["--store"],
    metavar="PATH",
    envvar="FLOWPREGEL_STORE",
    show_envvar=True,
    help="The folder of the store.",
)
_AS_JSON = click.Option(
    ["--json"],
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({_JSON: value}),
    help="Print JSON, for programs.",
)


def store_command(*more: click.Option) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command with *more* options and those of every command: ``--store``, ``--json``."""

    def make(function: Callable[..., Any]) -> click.Command:
        command = click.command(function)
        command.params += [*more, _STORE, _AS_JSON]
        return command

    return make


# ---------------------------------------------------------------- output


def wants_json() -> bool:
    """Return whether the command was called with ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_json(value: Any) -> None:
    """Print *value*, which JSON has, in one line."""
    click.echo(json.dumps(value, ensure_ascii=True))


def note(text: str) -> None:
    """Print a line that is no result."""
    click.echo(printable(text), err=True)


def print_result(value: Any, *parts: str | Table) -> None:
    """Print a result: *value* if JSON was asked for, otherwise *parts*, texts and tables."""
    if wants_json():
        print_json(value)
        return
    for part in parts:
        if isinstance(part, str):
            click.echo(printable(part))
            continue
        terminal = rich_console()
        with terminal.capture() as captured:
            terminal.print(part)
        for line in captured.get().splitlines():
            click.echo(line.rstrip())


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print *rows* as JSON, or the *columns* of them, whose keys are given by heading."""
    cells = [[row[key] for key in columns.values()] for row in rows]
    print_result(rows, table([*columns], cells))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return *rows*: fitted to a terminal, or whole lines elsewhere; without *columns* no heads."""
    from rich.table import Table  # noqa: PLC0415 - keeps --help fast
    from rich.text import Text  # noqa: PLC0415 - as above

    shown = Table(*columns, box=None, pad_edge=False, show_header=bool(columns))
    for row in rows:
        shown.add_row(*(Text(in_one_line(_cell(value))) for value in row))
    return shown


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def fields(pairs: Mapping[str, Any]) -> Table:
    """Return names and values, aligned."""
    return table((), [(k, v if isinstance(v, str) else one_line(v)) for k, v in pairs.items()])


def rich_console(*, stderr: bool = False) -> Console:
    """Return rich's console, which breaks lines on terminals only and takes texts as they are."""
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDEST
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def time_of(nanoseconds: int) -> str:
    """Return a moment as ISO 8601 text in UTC, to the second."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size_of(count: int) -> str:
    """Return a number of bytes for people."""
    from rich.filesize import decimal  # noqa: PLC0415 - keeps --help fast

    return decimal(count)
