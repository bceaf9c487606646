"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def _note(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.meta["json"] = value  # an error is told in the same form
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note, help="Print JSON, for programs."
)

store_option = click.option(
    "--store",
    metavar="PATH",
    envvar="FLOWPREGEL_STORE",
    show_envvar=True,
    help="The folder of the store.",
)

full_option = click.option("--full", is_flag=True, help="Print values whole, not just previews.")

all_option = click.option("--all", "show_all", is_flag=True, help="Show the engine's channels too.")

thread_argument = click.argument("thread")


def flow_option(help: str) -> Callable[[Function], Function]:
    """Return the option ``--flow MODULE:FLOW``."""
    return click.option("--flow", "flow", metavar="MODULE:FLOW", help=help)


def run_options(function: Function) -> Function:
    """Add the options of the commands that run something."""
    for option in (
        click.option("--quiet", is_flag=True, help="Show no progress."),
        click.option("--traceback", is_flag=True, help="Show where a failed run failed."),
        click.option(
            "--max-concurrency",
            type=click.IntRange(min=1),
            metavar="N",
            help="At most so many tasks at a time.",
        ),
        json_option,
        store_option,
    ):
        function = option(function)
    return function
