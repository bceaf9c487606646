"""What the commands take and print: common options, results, values, and exit codes.

Results go to stdout, everything else to stderr. A preview of a big value is small, and
never fails.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from flowpregel._text import in_one_line, printable
from flowpregel.cli.inert import Shown
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    FlowMismatchError,
    InputMismatchError,
    StoreError,
    UnknownInterruptError,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COUNT = click.IntRange(min=1)
_WIDEST = 1_000_000
_OTHER_RUN = (FlowMismatchError, InputMismatchError)
_USAGE = (ConfigurationError, EmptyInputError, UnknownInterruptError, *_OTHER_RUN)


def duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option's value, which is written as 3h50m, 90s or 90."""
    if value is None:
        return None
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", value)
    if not value or found is None:
        raise click.BadParameter(f"{value!r} is no duration: write 3h50m, 90s or 90")
    units = 86_400, 3_600, 60, 1
    return sum(float(each or 0) * unit for each, unit in zip(found.groups(), units, strict=True))


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
    """It was told to end in time, and is to be run again; sysexits.h has it as EX_TEMPFAIL."""
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


INTERNALS = _flag("--internals", "Show the engine's own channels and steps too, by their names.")
TRUST = _flag("--trust", "Open a store that others own or may write, or that has another key.")
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


# ---------------------------------------------------------------- output


def wants_json() -> bool:
    """Return whether the command was called with ``--json``."""
    return is_asked("--json")


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


def print_rows(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """Print *rows* as JSON, or the *columns* of them that are for people."""
    cells = [[row[key] for key in columns] for row in rows]
    heads = [key.removesuffix("_id").upper() for key in columns]
    print_result(rows, table(heads, cells))


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


def aligned(pairs: Mapping[str, Any]) -> Table:
    """Return names and values, aligned, without those that are None."""
    there = {name: value for name, value in pairs.items() if value is not None}
    return table((), [(k, v if isinstance(v, str) else one_line(v)) for k, v in there.items()])


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


# ---------------------------------------------------------------- values


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of a value is shown."""

    depth: int = 4
    """Levels of containers."""
    count: int = 12
    """Items of each container."""
    size: int = 200
    """Characters of a text, or bytes."""
    total: int = 300
    """Items in all."""


PREVIEW = Limits()
FULL = Limits(depth=100, count=1 << 40, size=1 << 40, total=1 << 40)
"""Everything; only a value that contains itself is cut off."""


class Fields(dict[str, Any]):
    """What an object holds, by name; for people it is shown as ``Report(words=3)``.

    Args:
        name: The object's class.
    """

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        super().__init__(parts)
        self.name = name


class Written(str):
    """How an object, or what was left out, is written: no text of the user's."""

    __slots__ = ()


def plain(value: Any, limits: Limits = PREVIEW) -> Any:
    """Return *value* as dicts, lists, texts and numbers that JSON has.

    An object is a dict of what it holds, or, if that has no names, its ``repr``.
    What is left out is counted in a text that begins with an ellipsis.
    """
    return _Cutter(limits).cut(value, 0)


def one_line(value: Any, limits: Limits = PREVIEW) -> str:
    """Return *value* in one line for a terminal."""
    return line_of(plain(value, limits), limits)


def line_of(shown: Any, limits: Limits) -> str:
    """Return the beginning of what `plain` returned, in one line."""
    text = _written(shown, partial(json.dumps, ensure_ascii=False))
    return in_one_line(clipped(text, 4 * limits.size))


def _written(shown: Any, write: Callable[[Any], str]) -> str:
    """Return what `plain` returned as one text; *write* writes texts and numbers."""
    match shown:
        case Fields():
            return _call_of(shown.name, (), shown)
        case dict():
            items = (f"{write(key)}: {_written(value, write)}" for key, value in shown.items())
            return f"{{{', '.join(items)}}}"
        case list():
            return f"[{', '.join(_written(each, write) for each in shown)}]"
        case Written():
            return str(shown)
    return write(shown)


def _call_of(name: str, args: Iterable[Any], fields: Mapping[str, Any]) -> str:
    named = (f"{key}={_written(value, repr)}" for key, value in fields.items())
    return f"{name}({', '.join([*(_written(each, repr) for each in args), *named])})"


def clipped(text: str, size: int) -> str:
    """Return the first *size* characters of *text*, and how many more there are."""
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more)"


class _Cutter:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.total

    def cut(self, value: Any, depth: int) -> Any:
        self._left -= 1
        size = self._limits.size
        # Not `str` alone and the like: subclasses are shown as what JSON has.
        match value:
            case None | bool():
                return value
            case str():
                return clipped(str(value), size)
            case bytes() | bytearray() | memoryview():
                text = clipped(repr(bytes(value[:size])), size)
                return Written(f"{text} ({len(value):,} bytes)")
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case int():
                bits = value.bit_length()
                return int(value) if bits <= 1_024 else Written(f"an int of {bits:,} bits")
        parts = _parts(value, full=self._limits is FULL)
        if parts is None:
            return Written(clipped(_text_of(value), size))
        if depth >= self._limits.depth:
            return Written(f"… {getattr(parts, 'name', type(value).__name__)} of {len(parts)}")
        if isinstance(value, Shown) and (value.args or not parts):
            args = self._container(value.args, depth)
            return Written(
                clipped(_call_of(type(value).__name__, args, self._container(parts, depth)), size)
            )
        return self._container(parts, depth)

    def _container(self, parts: dict[Any, Any] | list[Any], depth: int) -> Any:
        shown = max(0, min(len(parts), self._limits.count, self._left))
        more = [f"{len(parts) - shown:,} more"] if len(parts) > shown else []
        if isinstance(parts, list):
            left_out = [Written(f"… {each}") for each in more]
            return [self.cut(each, depth + 1) for each in parts[:shown]] + left_out
        result = Fields(parts.name, {}) if isinstance(parts, Fields) else {}
        for key in islice(parts, shown):
            name = key if isinstance(key, str) else _text_of(key)
            result[clipped(name, self._limits.size)] = self.cut(parts[key], depth + 1)
        if more:
            result["…"] = Written(more[0])
        return result


def _parts(value: Any, *, full: bool) -> dict[Any, Any] | list[Any] | None:
    """Return what a container holds, or None for what is none."""
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": _text_of(value, str)}
    if isinstance(value, Mapping):
        return dict(value)
    name = type(value).__name__
    if isinstance(value, Shown):
        return Fields(name, {**value.fields, **(value.data if full else {})})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Fields(name, dict(zip(value._fields, value, strict=False)))
    if isinstance(value, list | tuple | Set):
        return [*value]
    if is_dataclass(value) and not isinstance(value, type):
        return Fields(name, {each.name: getattr(value, each.name, None) for each in fields(value)})
    if isinstance(names := getattr(type(value), "model_fields", None), Mapping):  # of pydantic
        return Fields(name, {name: getattr(value, name, None) for name in names})
    return None


def _text_of(value: Any, form: Any = repr) -> str:
    try:
        return str(form(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"
