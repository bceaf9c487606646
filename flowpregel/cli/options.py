"""The options of the commands that run flows, and the parsing of their values."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from flowpregel.cli import console
from flowpregel.errors import ConfigurationError

FLOW_OPTION = click.Option(
    ["--flow"],
    metavar="MODULE:FLOW",
    help="The flow; by default the one that `flowpregel run` recorded.",
)


INPUT_OPTIONS = (
    click.Option(
        ["--input", "flow_input"],
        metavar="JSON|@FILE",
        help="The input of the flow: JSON, @FILE with JSON in it, or @- for stdin.",
    ),
    click.Option(
        ["--arguments"],
        metavar="JSON|@FILE",
        help=(
            "The arguments of the flow by name, in place of --input: JSON, which is "
            "converted to the annotations of the parameters."
        ),
    ),
    click.Option(
        ["--folder"],
        metavar="FOLDER",
        default="",
        help=(
            "The folder from which the flow's module is imported; by default the "
            "working directory."
        ),
    ),
)
"""The options from which `load_flow_with_input` reads."""


def parse_value(value: str, *, text: bool) -> Any:
    """Return the value of an argument VALUE, which is JSON or text.

    Args:
        value: The argument on the command line.
        text: True if the argument is text even if it looks like JSON.
    """
    if not text:
        with suppress(ValueError):
            return json.loads(value)
    return value


def load_json(option: str, value: str) -> Any:
    """Return the value of an option, which is JSON, ``@FILE`` or ``@-`` for stdin.

    Raises:
        ConfigurationError: The file cannot be read, or the text is not JSON. The
            message names *option*.
    """
    try:
        if value == "@-":
            source = sys.stdin.read()
        elif value.startswith("@"):
            source = Path(value[1:]).read_text("utf-8")
        else:
            source = value
        return json.loads(source)
    except OSError as error:
        raise ConfigurationError(
            f"{option}: {value[1:]} cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{option} is not JSON: {error}; text needs its own quotes: '\"text\"'"
        ) from error


def load_input(value: str | None, arguments: str | None = None) -> Any:
    """Return the value of ``--input``, which must not be null, or of ``--arguments``.

    Raises:
        ConfigurationError: Both options are given, or none of them, or the value cannot
            be used.
    """
    if value is not None and arguments is not None:
        raise ConfigurationError("pass --input or --arguments, not both")
    if arguments is not None:
        return load_json("--arguments", arguments)
    if value is None:
        raise ConfigurationError("with what input? pass --input or --arguments")
    flow_input = load_json("--input", value)
    if flow_input is None:
        raise ConfigurationError(
            "--input is null, but a run needs an input to start; `flowpregel resume` "
            "resumes a run without one"
        )
    return flow_input


def _metadata(
    _: click.Context,
    __: click.Parameter,
    pairs: tuple[str, ...],
) -> dict[str, Any] | None:
    """Return the items of all ``--metadata NAME=VALUE`` options as a dict.

    None is returned if there are no such options.
    """
    metadata: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        metadata[name] = parse_value(value, text=False)
    return metadata or None


def _context(
    _: click.Context,
    __: click.Parameter,
    value: str | None,
) -> Any:
    """Return the value of ``--context``, or None without this option."""
    if value is None:
        return None
    return load_json("--context", value)


RUN_OPTIONS = (
    click.Option(
        ["--quiet"],
        is_flag=True,
        help="Show no progress.",
    ),
    click.Option(
        ["--traceback"],
        is_flag=True,
        help="Show where a failed run failed.",
    ),
    click.Option(
        ["--max-concurrency"],
        type=console.COUNT,
        metavar="N",
        help="Run at most N tasks at a time.",
    ),
    click.Option(
        ["--durability"],
        type=click.Choice(["sync", "async", "exit"]),
        help="When results are written to disk: sync, async (default) or exit.",
    ),
    click.Option(
        ["--metadata"],
        multiple=True,
        metavar="NAME=VALUE",
        callback=_metadata,
        help=(
            "Metadata of the run's checkpoints: NAME=VALUE, with VALUE as JSON or "
            "text; repeatable."
        ),
    ),
    click.Option(
        ["--tag", "tags"],
        multiple=True,
        metavar="TAG",
        help="A tag for the run's checkpoints, which tasks can read; repeatable.",
    ),
    click.Option(
        ["--context"],
        metavar="JSON|@FILE",
        callback=_context,
        help="The context for tasks: JSON, or @FILE with JSON in it.",
    ),
    click.Option(
        ["--on-code-change"],
        type=click.Choice(["keep", "rerun", "error"]),
        default="keep",
        help=(
            "What to do with recorded results of other code: "
            "keep (default), rerun, error."
        ),
    ),
    click.Option(
        ["--on-unreadable"],
        type=click.Choice(["error", "rerun"]),
        default="error",
        help=(
            "What to do with recorded results whose class is gone: "
            "error (default), rerun."
        ),
    ),
    click.Option(
        ["--on-unmatched"],
        type=click.Choice(["run", "error"]),
        default="run",
        help=(
            "What to do if no recorded call of a task matches its first new one: run "
            "(default), error."
        ),
    ),
    click.Option(
        ["--check-mutations"],
        is_flag=True,
        default=None,
        help="Give a notice if a task changes an argument in place.",
    ),
    click.Option(
        ["--on-conflict"],
        type=click.Choice(["wait", "raise", "takeover"]),
        help=(
            "What to do if another process has the run: wait for its result, raise, "
            "or takeover."
        ),
    ),
    click.Option(
        ["--stop-after"],
        metavar="TIME",
        callback=console.duration,
        help=(
            "Stop after this long (3h50m), with exit code 75; the same command "
            "resumes the run. By default soon before the end of a SLURM job."
        ),
    ),
    click.Option(
        ["--stop-grace"],
        metavar="TIME",
        callback=console.duration,
        help=(
            "How long running tasks may take to end after that, or after SIGTERM (20s)."
        ),
    ),
)
