"""What the commands take and print: common options, results, and exit codes.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from flowpregel import errors
from flowpregel._text import in_one_line, printable
from flowpregel.watching.preview import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COUNT = click.IntRange(min=1)
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s?": 1}
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _SECONDS))
_WIDEST = 1_000_000
_USAGE = (
    errors.ConfigurationError,
    errors.EmptyInputError,
    errors.FlowMismatchError,
    errors.InputMismatchError,
    errors.UnknownInterruptError,
)
"""What is wrong with what was asked."""


def duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option's value, which is written as 3h50m, 7d, 90s or
    90.
    """
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if not value or found is None:
        raise click.BadParameter(
            f"{value!r} is no duration: write 3h50m, 7d, 90s or 90"
        )
    parts = zip(found.groups(), _SECONDS.values(), strict=True)
    return sum(float(each or 0) * unit for each, unit in parts)


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
    AGAIN = 75
    """It was told to end in time, and is to be run again; sysexits.h has it as
    EX_TEMPFAIL.
    """
    STOPPED = 130
    """Ctrl-C or ``cancel``; what had finished is kept."""


STATUSES = {
    Code.OK: "done",
    Code.FAILED: "failed",
    Code.WAITING: "waiting",
    Code.STOPPED: "stopped",
    Code.AGAIN: "stopped",
}
"""How a run stands that ended with a code; of those of one status the last is for a run
that was only looked at.
"""


def code_of(error: BaseException) -> Code:
    """Return the exit code for *error*."""
    if isinstance(error, errors.StoreError):
        return Code.STORE
    return Code.USAGE if isinstance(error, _USAGE) else Code.FAILED


# ---------------------------------------------------------------- options


_STORE = click.Option(
    ["--store"],
    metavar="PATH",
    envvar="FLOWPREGEL_STORE",
    show_envvar=True,
    help="The folder of the store, or its database: postgresql://...",
)


def _flag(name: str, text: str) -> click.Option:
    """Make an option that is asked for with `is_asked`, wherever it matters."""
    return click.Option(
        [name],
        is_flag=True,
        expose_value=False,
        callback=lambda ctx, _, value: ctx.meta.update({f"flowpregel {name}": value}),
        help=text,
    )


INTERNALS = _flag(
    "--internals", "Show the engine's own channels and steps too, by their names."
)
TRUST = _flag(
    "--trust", "Open a store that others own or may write, or that has another key."
)
AS_JSON = _flag("--json", "Print JSON, for programs.")


def is_asked(name: str) -> bool:
    """Return whether the command was called with a flag, such as ``--trust``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"flowpregel {name}"))


def store_command(*more: click.Option) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command with *more* options and those of every command.

    These are ``--store``, ``--trust`` and ``--json``.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        command = click.command(function)
        command.params += [*more, _STORE, TRUST, AS_JSON]
        return command

    return make


def thread_command(
    *more: click.Option,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command as `store_command` does, whose first argument is a thread."""

    def make(function: Callable[..., Any]) -> click.Command:
        command = store_command(*more)(function)
        command.params.insert(0, click.Argument(["thread"]))
        return command

    return make


# ---------------------------------------------------------------- output


def print_json(value: Any) -> None:
    """Print *value*, which JSON has, in one line."""
    click.echo(json.dumps(value, ensure_ascii=True))


def note(text: str) -> None:
    """Print a line that is no result."""
    click.echo(printable(text), err=True)


def print_result(value: Any, *parts: str | Table) -> None:
    """Print a result: *value* if JSON was asked for, otherwise *parts*, texts and
    tables.
    """
    if is_asked("--json"):
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


def print_rows(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """Print *rows* as JSON, or the *columns* of them that are for people."""
    cells = [[row[key] for key in columns] for row in rows]
    heads = [key.removesuffix("_id").upper() for key in columns]
    print_result(rows, table(heads, cells))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return *rows*: fitted to a terminal, or whole lines elsewhere; without *columns*
    no heads.
    """
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


def aligned(pairs: Mapping[str, Any]) -> Table:
    """Return names and values, aligned, without those that are None."""
    there = {name: value for name, value in pairs.items() if value is not None}
    return table(
        (), [(k, v if isinstance(v, str) else one_line(v)) for k, v in there.items()]
    )


def rich_console(*, stderr: bool = False) -> Console:
    """Return rich's console, which breaks lines on terminals only and takes texts as
    they are.
    """
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDEST
    return Console(
        stderr=stderr, width=width, markup=False, highlight=False, emoji=False
    )


def time_of(nanoseconds: int) -> str:
    """Return a moment as ISO 8601 text in UTC, to the second."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size_of(count: int) -> str:
    """Return a number of bytes for people."""
    from rich.filesize import decimal  # noqa: PLC0415 - keeps --help fast

    return decimal(count)
