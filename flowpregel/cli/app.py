"""The command and its subcommands."""

from __future__ import annotations

from typing import Any

import click

from flowpregel import __version__
from flowpregel.cli import looking, maintenance, running
from flowpregel.cli.console import code_of, print_error
from flowpregel.errors import FlowPregelError

_COMMANDS: list[click.Command] = [
    running.run,
    running.resume,
    running.answer,
    running.cancel,
    looking.ls,
    looking.show,
    looking.history,
    looking.state,
    looking.diff,
    maintenance.fork,
    maintenance.rm,
    maintenance.gc,
    maintenance.verify,
    maintenance.backup,
    maintenance.encrypt,
    looking.stats,
    looking.graph,
    maintenance.doctor,
]
"""In the order in which people need them."""


class CommandGroup(click.Group):
    """A group that lists its commands in their order, and prints our errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return [*self.commands]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and exit with the code that it returns or that its error stands for."""
        try:
            code = super().invoke(ctx)
        except FlowPregelError as error:
            code = code_of(error)
            print_error(error, code)
        ctx.exit(code or 0)


@click.command(
    cls=CommandGroup,
    commands={str(each.name): each for each in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 waits for an answer, 4 the store "
    "cannot be used, 130 stopped by Ctrl-C or `cancel`.",
)
@click.version_option(__version__, prog_name="flowpregel")
def app() -> None:
    """Run durable flows, and look after what they keep."""
