"""The command and its subcommands."""

from __future__ import annotations

import re
from typing import Any

import click

from flowpregel.cli import calls, looking, maintenance, running
from flowpregel.cli.console import Code, code_of, is_asked, note, print_json
from flowpregel.errors import FlowPregelError
from flowpregel.watching.preview import FULL, to_json

_COMMANDS = [
    command
    for module in (running, calls, looking, maintenance)
    for command in vars(module).values()
    if isinstance(command, click.Command)
]
"""In the order in which they are defined."""

_HINTS = {
    "extra argument": "a store is named with --store PATH",
    "No such option '--store'": "here the store is named by itself, without the option",
    r"No such option '-\d": "what begins so comes last, after two dashes: -- -5",
}
"""What to do, by a pattern of what a usage error says."""


class CommandGroup(click.Group):
    """A group that lists its commands in their order, and prints our errors in one
    line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return [*self.commands]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and exit with the code that it returns or that its error
        stands for.
        """
        try:
            code = super().invoke(ctx)
        except click.UsageError as error:
            hints = [
                hint
                for words, hint in _HINTS.items()
                if re.search(words, error.message)
            ]
            if not hints:
                raise
            text = f"{error.message.rstrip('.')}; {hints[0]}"
            raise click.UsageError(text, error.ctx) from error
        except FlowPregelError as error:
            code = code_of(error)
            if is_asked("--json"):
                print_json({"error": to_json(error, FULL), "code": code})
            else:
                note(f"error: {error}")
        except KeyboardInterrupt:
            code = Code.STOPPED
        ctx.exit(code or 0)


@click.command(
    cls=CommandGroup,
    commands={str(each.name): each for each in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 waits for an answer, "
    "4 the store cannot be used, 75 ended in time and to be run again, "
    "130 stopped by Ctrl-C or `cancel`.",
)
@click.version_option(package_name="flowpregel", prog_name="flowpregel")
def app() -> None:
    """Run durable flows, and look after what they keep."""
