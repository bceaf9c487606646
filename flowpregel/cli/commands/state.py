"""``flowpregel state``: what a thread's channels hold."""

from __future__ import annotations

import click

from flowpregel.cli.options import (
    all_option,
    full_option,
    json_option,
    store_option,
    thread_argument,
)
from flowpregel.cli.output import table, tell_json
from flowpregel.cli.points import find
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.stores import reading


@click.command()
@thread_argument
@click.argument("checkpoint", required=False)
@full_option
@all_option
@store_option
@json_option
def command(
    thread: str,
    checkpoint: str | None,
    full: bool,
    show_all: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Show what a thread's channels hold.

    CHECKPOINT is a step, an id or its beginning; by default the newest. What
    tasks of an unfinished superstep wrote is not in it: `show` lists that.
    """
    from flowpregel.cli.status import values_of  # noqa: PLC0415 - keeps --help fast

    with reading(store) as saver:
        saved = find(saver, thread, checkpoint)
    values = values_of(saved, show_all=show_all)
    limits = FULL if full else Limits()
    if as_json:
        shown = {name: plain(value, limits) for name, value in values.items()}
        tell_json({"checkpoint": saved.checkpoint.id, "values": shown})
    else:
        table(("CHANNEL", "VALUE"), [(k, one_line(v, limits)) for k, v in values.items()])
