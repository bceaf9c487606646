"""The command and its subcommands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import click

from flowpregel._entry_points import COMMANDS, load_plugin, plugin_hint, plugin_names
from flowpregel.errors import ConfigurationError, FlowPregelError

_HOMES = {
    "running": (
        "run",
        "resume",
        "answer",
        "cancel",
        "signal",
        "wake",
    ),
    "working": ("work",),
    "recovering": ("recover",),
    "pausing": ("pause", "unpause"),
    "pool_sizes": ("pool",),
    "scheduling": ("schedule",),
    "starting": ("signature",),
    "enqueueing": ("enqueue",),
    "calls": (
        "check",
        "debug",
        "why",
        "retry",
        "redo",
    ),
    "logs": ("logs",),
    "threads": ("ls", "show", "watch"),
    "tables": ("table", "compare"),
    "looking": (
        "history",
        "state",
        "diff",
        "stats",
        "graph",
    ),
    "maintenance": (
        "fork",
        "rm",
        "gc",
        "rename",
        "verify",
        "backup",
        "encrypt",
    ),
    "doctor": ("doctor",),
    "moving": ("export", "import"),
    "docs": ("docs",),
}
"""The names of the commands, by the module that defines them, in the order in which the
help lists them. The function of the command ``ls`` is ``ls_command``.
"""


class BuiltinCommands(Mapping[str, click.Command]):
    """The built-in commands by name.

    The module of a command is imported when the command is first read, so that a
    process imports only what its command needs.
    """

    def __init__(self) -> None:
        self._modules = {name: home for home in _HOMES for name in _HOMES[home]}

    def __getitem__(self, name: str) -> click.Command:
        module = import_module(f"flowpregel.cli.{self._modules[name]}")
        return cast("click.Command", getattr(module, f"{name}_command"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


_HINTS = {
    # Before version 8.4, click wrote the message without quotation marks around the
    # name of the option.
    "No such option:? '?--store": "give the store as an argument, without --store",
    r"No such option:? '?-\d": "put this value last, after two dashes: -- -5",
    "No such command 'submit'": "flowpregel enqueue --remote hands a run to a cluster",
}
"""Advice for a usage error, by a pattern of the error's message."""
_EXTRA_ARGUMENTS = "extra argument"
_STORE_HINT = "name the store with --store PATH"
_INPUT_HINT = "pass the input with --input JSON, and the store with --store PATH"
_UNKNOWN_COMMAND = re.compile(r"No such command '(.*)'")


class CommandGroup(click.Group):
    """A group with commands in a fixed order, which prints an error in one line.

    The commands of plug-ins, which are found by entry point, follow the built-in
    commands.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the built-in commands, followed by those of plug-ins."""
        plugin_commands = [
            name for name in plugin_names(COMMANDS) if name not in self.commands
        ]
        return [*self.commands, *plugin_commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None. A plug-in is imported for it."""
        command = self.commands.get(cmd_name)
        if command is not None:
            return command
        if cmd_name not in plugin_names(COMMANDS):
            return None
        try:
            plugin: click.Command = load_plugin(COMMANDS, cmd_name)
        except ConfigurationError as error:
            return _failing_command(cmd_name, error)
        return plugin

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and exit with the exit code for its result or error."""
        try:
            code = super().invoke(ctx)
        except click.UsageError as error:
            raise _with_hint(error) from error
        except (FlowPregelError, KeyboardInterrupt) as error:
            from flowpregel.cli import console  # noqa: PLC0415 - keeps --version fast

            code = console.report_error(error)
        ctx.exit(code or 0)


def _failing_command(name: str, error: ConfigurationError) -> click.Command:
    """Return a command that only raises *error*. It replaces a command that cannot be
    loaded, so that all other commands can still be used.
    """

    def fail(**_options: Any) -> None:
        raise error

    return click.Command(
        name,
        callback=fail,
        help=f"(Cannot be loaded: {error})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Return a usage error with advice, or *error* itself if there is no advice."""
    hints = {_EXTRA_ARGUMENTS: _hint_on_extra_arguments(error.ctx), **_HINTS}
    for pattern, hint in hints.items():
        if re.search(pattern, error.message):
            text = f"{error.message.rstrip('.')}; {hint}"
            return click.UsageError(text, error.ctx)
    name = _UNKNOWN_COMMAND.match(error.message)
    if name is not None and (advice := plugin_hint(COMMANDS, name[1])):
        return click.UsageError(error.message.rstrip(".") + advice, error.ctx)
    return error


def _hint_on_extra_arguments(context: click.Context | None) -> str:
    """Return the options that may have been meant by arguments which the command of
    *context* does not have.
    """
    parameters = [] if context is None else context.command.params
    takes_input = any("--input" in parameter.opts for parameter in parameters)
    return _INPUT_HINT if takes_input else _STORE_HINT


@click.command(
    cls=CommandGroup,
    # This mapping has only the built-in commands. `CommandGroup` finds the commands of
    # plug-ins by entry point.
    commands=cast("dict[str, click.Command]", BuiltinCommands()),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 waiting for an answer, 4 the "
        "store cannot be used, 75 stopped at a time limit (run it again), 130 "
        "stopped by Ctrl-C or `cancel`."
    ),
)
@click.version_option(package_name="flowpregel", prog_name="flowpregel")
def app() -> None:
    """Run durable flows, and maintain their stores."""
