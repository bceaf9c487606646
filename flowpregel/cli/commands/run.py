"""``flowpregel run``: run a flow, or go on with what was left unfinished."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from flowpregel.cli.flows import load_flow
from flowpregel.cli.options import run_options
from flowpregel.cli.running import errand_of, perform
from flowpregel.errors import ConfigurationError


@click.command()
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--input",
    "given",
    metavar="JSON|@FILE",
    required=True,
    help="What the flow is given: JSON, @FILE with JSON in it, or @- for stdin.",
)
@click.option(
    "--thread-id", metavar="THREAD", help="The thread to run on; by default the flow's name."
)
@run_options
@click.pass_context
def command(
    ctx: click.Context, /, flow: str, given: str, thread_id: str | None, **options: Any
) -> None:
    """Run a flow, or go on with its thread's unfinished run.

    MODULE:FLOW is package.module:flow or path/to/file.py:flow. A run that was
    stopped or killed is run again by the same command: it goes on, and what
    had finished is not done again.
    """
    value = input_of(given)
    if thread_id is None:
        thread_id = load_flow(flow).name
    ctx.exit(perform(errand_of(flow, thread_id, options), value, resume="auto"))


def input_of(given: str) -> Any:
    """Return the value that ``--input`` names.

    Raises:
        ConfigurationError: It is not JSON, there is no such file, or it is null.
    """
    value = _read(given)
    if value is None:
        raise ConfigurationError(
            "--input is null, and a run needs input to start with; `flowpregel resume` goes on"
        )
    return value


def _read(given: str) -> Any:
    try:
        if given == "@-":
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text("utf-8")
        return json.loads(given)
    except OSError as error:
        raise ConfigurationError(f"--input: {error}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"--input is not JSON: {error}; a text needs quotes of its own: '\"text\"'"
        ) from error
