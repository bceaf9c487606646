"""The command ``logs``, which shows what the calls of a run have printed and logged."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from flowpregel._inspection.output_lines import LEVELS, lines_with_levels
from flowpregel._text import in_one_line, printable
from flowpregel.cli import console, targets
from flowpregel.cli.call_output import output_of_last_run
from flowpregel.cli.console import print_note
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import CallOutput

_PAUSE = 0.2
"""Seconds between two reads of --follow."""


@console.thread_command("logs")
@click.argument("call", required=False)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Follow the output until the run stops.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Show only log records of this level or above, and no printed lines.",
)
def logs_command(
    thread: str,
    call: str | None,
    follow: bool,
    level: str | None,
    store: str | None,
) -> None:
    """Show what the calls of a run have printed and logged.

    The run is the thread's last one. CALL is the id of a call or its text, such as
    "parse('c.txt')", or the beginning of either; all calls that begin so are shown.
    With --json each part is an object in a line of its own.
    """
    printer = _OutputPrinter(call, level or "")
    with targets.open_to_read(store) as saver, suppress(KeyboardInterrupt):
        is_running = True
        while is_running:
            # Whether a process still runs the run is read before the output: the output
            # is complete only if the run had already ended when the read began.
            is_running = follow and saver.owner(thread) is not None
            for output in output_of_last_run(
                saver,
                thread,
                wait=is_running,
            ):
                printer.print_new(output)
            if is_running:
                time.sleep(_PAUSE)
        if printer.has_printed:
            return
        if call is not None and not printer.sizes:
            raise ConfigurationError(f"no call {call!r} has printed anything")
        if printer.sizes:
            print_note(f"no call has logged anything of the level {level} or above")
            return
        print_note("no output is stored; only calls in worker processes have any")


class _OutputPrinter:
    """A printer of calls' output, which prints each part only once.

    Args:
        name: The beginning of the ids or texts of calls, or None for all calls.
        level: The lowest level of the lines to print, or an empty string for all lines.
    """

    def __init__(self, name: str | None, level: str) -> None:
        self._name = name
        self._levels = LEVELS[LEVELS.index(level) :] if level else ()
        """The levels of the lines to print; empty for all lines."""
        self._last_id = ""
        """The id of the call whose output was printed last."""
        self._last_levels: dict[str, str] = {}
        """The level of the last line of each call, by id."""
        self.sizes: dict[str, int] = {}
        """The size, in bytes, of the output that was read, by the call's id."""

    @property
    def has_printed(self) -> bool:
        """True if output of any call was printed."""
        return self._last_id != ""

    def print_new(self, output: CallOutput) -> None:
        """Print the part of a call's output that has not been printed yet."""
        size = self.sizes.get(output.task_id, 0)
        if output.size <= size or not self._is_selected(output):
            return
        self.sizes[output.task_id] = output.size
        text = output.after(size)
        if self._levels:
            text = self._lines_of_levels(output.task_id, text)
        if text:
            self._print(output, text)

    def _lines_of_levels(self, call: str, text: str) -> str:
        """Return the lines of a part of a call's output that have one of the levels."""
        last_level = self._last_levels.get(call, "")
        selected: list[str] = []
        for level, line in lines_with_levels(text, last_level):
            last_level = level
            if level in self._levels:
                selected.append(f"{line}\n")
        self._last_levels[call] = last_level
        return "".join(selected)

    def _print(self, output: CallOutput, text: str) -> None:
        """Print a part of a call's output. If the part that was printed before it is
        from another call, first print which call this part is from.
        """
        if console.has_flag("--json"):
            console.print_json(
                {"id": output.task_id, "call": output.name, "text": text}
            )
        else:
            if output.task_id != self._last_id:
                click.echo(f"[{in_one_line(output.name)}]")
            click.echo(printable(text), nl=not text.endswith("\n"))
        self._last_id = output.task_id

    def _is_selected(self, output: CallOutput) -> bool:
        if self._name is None:
            return True
        candidates = (output.task_id, output.name)
        return any(text.startswith(self._name) for text in candidates)
