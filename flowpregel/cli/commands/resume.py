"""``flowpregel resume``: go on with what was left unfinished."""

from __future__ import annotations

from typing import Any

import click

from flowpregel.cli.options import flow_option, run_options, thread_argument
from flowpregel.cli.running import errand_of, perform, recorded_flow
from flowpregel.errors import ConfigurationError, EmptyInputError


@click.command()
@thread_argument
@flow_option("The flow; by default the one that `flowpregel run` recorded.")
@run_options
@click.pass_context
def command(ctx: click.Context, /, thread: str, flow: str | None, **options: Any) -> None:
    """Go on with a thread's unfinished run."""
    found = recorded_flow(thread, flow, options["store"])
    try:
        code = perform(errand_of(found, thread, options), None)
    except EmptyInputError as error:
        raise ConfigurationError(f"thread {thread!r} has no run to go on with") from error
    ctx.exit(code)
