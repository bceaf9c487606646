"""The messages of errors, with advice for the command line in place of that for a
program.
"""

from __future__ import annotations

import click

from flowpregel._shell import command_line, command_words
from flowpregel.errors import FlowPregelError, InputMismatchError, ThreadBusyError


def message_of(error: FlowPregelError) -> str:
    """Return the message of an error for a person who has run a command.

    Args:
        error: The error that ends the command.

    Example:
        >>> from flowpregel.errors import ThreadBusyError
        >>> message_of(ThreadBusyError("study", "", "process 7 on here"))
        "thread 'study' is being run by process 7 on here; wait for it"
    """
    if isinstance(error, ThreadBusyError):
        return f"{error.summary}; {_advice_if_busy()}"
    if isinstance(error, InputMismatchError):
        return f"{error.summary}; {_advice_on_input(error)}"
    return str(error)


def _advice_if_busy() -> str:
    """Return advice for the case that another process is running the run."""
    advice = "wait for it"
    if _has_option("on_conflict"):
        advice += ", or pass --on-conflict wait or --on-conflict takeover"
    return advice


def _advice_on_input(error: InputMismatchError) -> str:
    """Return advice for the case that the run was started with other input."""
    advice = "pass the same input"
    if not error.adopts:
        resume = command_line(command_words("resume", error.thread_id))
        advice += f", or resume with the recorded one (`{resume}`)"
    elif _has_option("adopt"):
        advice += (
            ", or pass --adopt to resume with the new one (recorded calls keep their "
            "results)"
        )
    return f"{advice}, or start a new run under another --id"


def _has_option(name: str) -> bool:
    """Return whether the command on the command line has the parameter *name*."""
    context = click.get_current_context(silent=True)
    if context is None:
        return False
    command: click.Command | None = context.command
    subcommand = context.invoked_subcommand
    if isinstance(command, click.Group) and subcommand is not None:
        command = command.get_command(context, subcommand)
    if command is None:
        return False
    return any(parameter.name == name for parameter in command.params)
