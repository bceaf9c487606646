"""The command that shows what calls have printed and logged: logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from flowpregel._core.records import Address
from flowpregel._text import in_one_line, printable
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import CallOutput
    from flowpregel.checkpoint.durable import DurableSaver

_PAUSE = 0.2
"""Seconds between two looks of --follow."""


@console.thread_command()
@click.argument("call", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until no run has the thread.")
def logs(thread: str, call: str | None, follow: bool, store: str | None) -> None:
    """Show what the calls of a thread's last run have printed and logged.

    CALL is the id of a call or its text, such as "parse('c.txt')", or the beginning of either;
    all that begin so are shown. With --json each part is an object in a line of its own.
    """
    seen: dict[str, int] = {}
    shown = ""
    with targets.reading(store) as saver, suppress(KeyboardInterrupt):
        is_running = True
        while is_running:
            # Before the look: what a run has printed is there once it has ended.
            is_running = follow and saver.owner(thread) is not None
            for output in _of_last_run(saver, thread, wait=is_running):
                known = seen.get(output.task_id, 0)
                is_meant = call is None or output.task_id.startswith(call)
                if output.size > known and (is_meant or output.name.startswith(str(call))):
                    _print(output, known, is_new=shown != output.task_id)
                    shown, seen[output.task_id] = output.task_id, output.size
            if is_running:
                time.sleep(_PAUSE)
        if call is not None and not seen:
            raise ConfigurationError(f"no call {call!r} has printed anything")


def _of_last_run(saver: DurableSaver, thread_id: str, *, wait: bool) -> Iterator[CallOutput]:
    """Yield the output of the calls of a thread's last run, nested ones included."""
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    history = last_run(saver, Address(thread_id))
    if not history and not wait:
        targets.newest(saver, thread_id)
    for address in saver.namespaces(thread_id) if history else ():
        for output in saver.kept_output(address):
            if output.began >= history[0].checkpoint.at:
                yield output


def _print(output: CallOutput, known: int, *, is_new: bool) -> None:
    """Print what came of a call after its first *known* bytes."""
    text = output.after(known)
    if console.wants_json():
        console.print_json({"id": output.task_id, "call": output.name, "text": text})
        return
    if is_new:
        click.echo(f"[{in_one_line(output.name)}]")
    click.echo(printable(text), nl=not text.endswith("\n"))
