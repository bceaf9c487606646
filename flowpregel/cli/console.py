"""The options, the output and the exit codes that all commands share.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from flowpregel import errors
from flowpregel._inspection.preview import FULL, one_line, to_json
from flowpregel._text import in_one_line, printable
from flowpregel.cli.advice import message_of
from flowpregel.cli.wording import StyledText
from flowpregel.units import seconds_in

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

COUNT = click.IntRange(min=1)
_WIDEST = 1_000_000
"""The number of columns of output that does not go to a terminal. It is so large that
lines never wrap.
"""
_USAGE_ERRORS = (
    errors.ConfigurationError,
    errors.EmptyInputError,
    errors.FlowMismatchError,
    errors.InputMismatchError,
    errors.UnknownInterruptError,
)
"""The errors that end a command with `Code.USAGE`, unless an error of a store is their
cause.
"""


def duration(
    _: click.Context,
    __: click.Parameter,
    value: str | None,
) -> float | None:
    """Return the seconds in an option's value, such as 3h50m, 90s, 90 or 03:50:00."""
    if value is None:
        return None
    seconds = seconds_in(value)
    if seconds is None:
        raise click.BadParameter(
            f"{value!r} is not a duration: write 3h50m, 7d, 90s, 90 or 03:50:00"
        )
    return seconds


class Code(IntEnum):
    """The exit code of the command."""

    OK = 0
    FAILED = 1
    """The run or a check failed."""
    USAGE = 2
    """The request cannot be fulfilled: the thread or flow is unknown, or the input
    wrong.
    """
    WAITING = 3
    """The run waits for an answer."""
    STORE = 4
    """The store is damaged or cannot be used, or another process runs the thread."""
    AGAIN = 75
    """The command stopped cleanly before a time limit and must be run again. In
    sysexits.h, this is EX_TEMPFAIL.
    """
    STOPPED = 130
    """Ctrl-C or ``cancel`` stopped the run; the results so far are stored."""


STATUSES = {
    Code.OK: "done",
    Code.FAILED: "failed",
    Code.WAITING: "waiting",
    Code.STOPPED: "stopped",
    Code.AGAIN: "stopped",
}
"""The status of a run, by the exit code of the command that ran it."""


def code_of_status(status: str) -> Code:
    """Return the exit code of ``watch`` for the status of a run in another process.

    A stopped run must be run again, whatever stopped it. A run that is enqueued must
    still be run.
    """
    if status == "enqueued":
        return Code.AGAIN
    codes = [code for code, name in STATUSES.items() if name == status]
    return codes[-1]


def exit_code_of(error: BaseException) -> Code:
    """Return the exit code for *error*."""
    if isinstance(error, errors.StoreError):
        return Code.STORE
    if isinstance(error, _USAGE_ERRORS):
        # If a flow cannot be imported because its module cannot open the store, the
        # error of the store is the cause of *error*. The cause of a task's error is not
        # checked, because the run has failed with that error.
        is_of_store = isinstance(error.__cause__, errors.StoreError)
        return Code.STORE if is_of_store else Code.USAGE
    return Code.FAILED


# ---------------------------------------------------------------- options


_STORE = click.Option(
    ["--store"],
    metavar="PATH",
    envvar="FLOWPREGEL_STORE",
    show_envvar=True,
    help="The folder of the store, or its database: postgresql://...",
)


def _flag(name: str, text: str) -> click.Option:
    """Return an option that any function can read with `has_flag`."""

    def record(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        """Record whether the flag is on the command line."""
        ctx.meta[f"flowpregel {name}"] = value

    return click.Option(
        [name],
        is_flag=True,
        expose_value=False,
        callback=record,
        help=text,
    )


INTERNALS = _flag(
    "--internals",
    "Also show the internal channels and steps of the engine.",
)
TRUST_OPTION = _flag(
    "--trust",
    "Open a store that other users own or can write to, or that has another key.",
)
"""The flag ``--trust``, for a command that is not made by `store_command`."""
AS_JSON = _flag(
    "--json",
    "Print JSON, for programs.",
)


def has_flag(name: str) -> bool:
    """Return whether a flag, such as ``--trust``, is on the command line.

    Args:
        name: The name of the flag.

    Example:
        >>> import click
        >>> from flowpregel.cli.base import TRUST_OPTION
        >>> def greet() -> None:
        ...     print(has_flag("--trust"))
        >>> command = click.Command("greet", callback=greet, params=[TRUST_OPTION])
        >>> command(["--trust"], standalone_mode=False)
        True
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return False
    return bool(context.meta.get(f"flowpregel {name}"))


CommandMaker = Callable[[Callable[..., Any]], click.Command]
"""A decorator that turns a function into a command."""


def store_command(
    name: str,
    *options: click.Option,
    trust: click.Option = TRUST_OPTION,
) -> CommandMaker:
    """Return a decorator for commands with ``--store``, ``--trust``, ``--json`` and
    *options*.

    Args:
        name: The name of the command.
        options: Further options of the command.
        trust: The option ``--trust``, if it has another meaning.

    Example:
        >>> @store_command("size")
        ... def size(store: str | None) -> None:
        ...     print(f"The store is {store}.")
        >>> size(["--store", "runs.lmdb"], standalone_mode=False)
        The store is runs.lmdb.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        """Return the command that calls *function*."""
        command = click.command(name)(function)
        command.params += [*options, _STORE, trust, AS_JSON]
        return command

    return make


def thread_command(name: str, *options: click.Option) -> CommandMaker:
    """Return a decorator as `store_command` does, for commands whose first argument is
    a thread.

    Args:
        name: The name of the command.
        options: Further options of the command.

    Example:
        >>> @thread_command("steps")
        ... def steps(thread: str, store: str | None) -> None:
        ...     print(f"The thread {thread} is in {store}.")
        >>> steps(["study-1", "--store", "runs.lmdb"], standalone_mode=False)
        The thread study-1 is in runs.lmdb.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        """Return the command that calls *function*."""
        command = store_command(name, *options)(function)
        thread = click.Argument(["thread"])
        command.params.insert(0, thread)
        return command

    return make


# ---------------------------------------------------------------- output


def print_json(value: Any) -> None:
    """Print *value*, which has types that JSON supports, in one line."""
    text = json.dumps(value, ensure_ascii=True)
    click.echo(text)


def report_error(error: errors.FlowPregelError | KeyboardInterrupt) -> Code:
    """Print the error that ends a command, and return the exit code for it. Ctrl-C is
    not printed.
    """
    if isinstance(error, KeyboardInterrupt):
        return Code.STOPPED
    code = exit_code_of(error)
    if has_flag("--json"):
        record = to_json(error, FULL)
        record["message"] = message_of(error)
        print_json({"error": record, "code": code})
    else:
        print_note(f"error: {message_of(error)}")
    return code


def print_note(text: str) -> None:
    """Print a line to stderr.

    Args:
        text: The text of the line.

    Example:
        >>> print_note("2 threads were skipped")  # to stderr
    """
    click.echo(printable(text), err=True)


def print_result(value: Any, *parts: str | StyledText | Table) -> None:
    """Print the result of a command.

    Args:
        value: The result for programs, which is printed if ``--json`` was passed.
        parts: The strings and tables that are printed otherwise.

    Example:
        >>> print_result({"threads": 2}, "2 threads")
        2 threads
    """
    if has_flag("--json"):
        print_json(value)
        return
    for part in parts:
        if isinstance(part, str):
            click.echo(printable(part))
        elif isinstance(part, StyledText):
            _print_with_rich(_cell(part, is_cut=False))
        else:
            _print_with_rich(part)


def _print_with_rich(renderable: Table | Text) -> None:
    """Print a table or a string without the spaces that rich adds at ends of lines."""
    terminal = rich_console()
    with terminal.capture() as captured:
        terminal.print(renderable)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_rows(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """Print *rows* as JSON with ``--json``, otherwise as a table of *columns*."""
    cells = [[row[column] for column in columns] for row in rows]
    titles = [column.removesuffix("_id").upper() for column in columns]
    print_result(rows, make_table(titles, cells))


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    flexible: Collection[str] = (),
) -> Table:
    """Return a table of *rows*, which rich fits to the width of a terminal.

    Args:
        columns: The titles of the columns. Without titles, the table has no header.
        rows: The cells of each row.
        flexible: The titles of the columns that a narrow terminal cuts, so that each
            row has one line. Without any, all columns are wrapped.
    """
    from rich.table import Table  # noqa: PLC0415 - keeps --help fast

    table = Table(
        box=None,
        pad_edge=False,
        show_header=bool(columns),
    )
    for title in columns:
        is_fixed = bool(flexible) and title not in flexible
        table.add_column(title, no_wrap=is_fixed)
    for row in rows:
        table.add_row(*[_cell(value, is_cut=bool(flexible)) for value in row])
    return table


def _cell(value: Any, *, is_cut: bool) -> Text:
    """Return the cell of a table.

    Args:
        value: The value of the cell.
        is_cut: True to cut a string that is too long instead of wrapping it.
    """
    from rich.text import Text  # noqa: PLC0415 - keeps --help fast

    style = ""
    if isinstance(value, StyledText):
        value, style = value
    return Text(
        in_one_line(_cell_text(value)),
        style,
        no_wrap=is_cut,
        overflow="ellipsis" if is_cut else None,
    )


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def aligned(pairs: Mapping[str, Any]) -> Table:
    """Return a table of names and values, without the values that are None."""
    rows: list[tuple[str, str]] = []
    for name, value in pairs.items():
        if isinstance(value, str):
            rows.append((name, value))
        elif value is not None:
            rows.append((name, one_line(value)))
    return make_table((), rows)


def rich_console(*, stderr: bool = False) -> Console:
    """Return a rich console that wraps lines only on a terminal.

    The console prints texts literally, without markup, highlighting or emoji.
    """
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDEST
    return Console(
        stderr=stderr,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )


def utc_text(nanoseconds: int) -> str:
    """Return a moment as an ISO 8601 string in UTC, to the second."""
    moment = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
