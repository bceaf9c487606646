"""The command and the table of its commands, each imported only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from flowpregel import __version__

_COMMANDS = {
    "run": "Run a flow, or go on with its thread's unfinished run.",
    "resume": "Go on with a thread's unfinished run.",
    "answer": "Answer what a thread's run asks, and go on.",
    "cancel": "Stop a thread's run, in whatever process it is.",
    "ls": "List the threads of a store.",
    "show": "Show how a thread stands, and what its last run did.",
    "history": "List a thread's checkpoints, newest first.",
    "state": "Show what a thread's channels hold.",
    "diff": "Show what changed between two checkpoints.",
    "fork": "Copy a thread, as it is or as it was.",
    "rm": "Delete threads.",
    "gc": "Drop history that is not to be kept.",
    "verify": "Read everything in a store, and say what is damaged.",
    "backup": "Copy a store, which may be in use.",
    "encrypt": "Encrypt a store, change its key, or decrypt it.",
    "stats": "Show how much a store keeps, and for what.",
    "graph": "Draw a flow, or what a thread's run did.",
    "doctor": "Check this machine and a store's folder.",
}
"""Their help is here, so that listing them imports none of them."""


class Commands(click.Group):
    """A group that imports a command when it is used, and names our errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which people need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command by its name."""
        if name not in _COMMANDS:
            return None
        found: click.Command = import_module(f"flowpregel.cli.commands.{name}").command
        found.help = found.help or _COMMANDS[name]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of ours is a line and an exit code, not a traceback."""
        from flowpregel.cli.codes import code_of  # noqa: PLC0415 - keeps --help fast
        from flowpregel.cli.output import tell_error  # noqa: PLC0415 - keeps --help fast
        from flowpregel.errors import FlowPregelError  # noqa: PLC0415 - keeps --help fast

        try:
            return super().invoke(ctx)
        except FlowPregelError as error:
            code = code_of(error)
            tell_error(error, code, as_json=bool(ctx.meta.get("json")))
            ctx.exit(code)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 waits for an answer, 4 the store "
    "cannot be used, 130 stopped by Ctrl-C or `cancel`.",
)
@click.version_option(__version__, prog_name="flowpregel")
def app() -> None:
    """Run durable flows, and look after what they keep."""
