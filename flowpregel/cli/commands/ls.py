"""``flowpregel ls``: the threads of a store."""

from __future__ import annotations

import click

from flowpregel.cli.flows import FLOW
from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import table, tell_json, time_of
from flowpregel.cli.stores import newest, reading


@click.command()
@click.option(
    "--status",
    type=click.Choice(["running", "interrupted", "failed", "stopped", "idle"]),
    help="Only threads that stand like this.",
)
@store_option
@json_option
def command(status: str | None, store: str | None, as_json: bool) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; interrupted (it waits for an answer); failed; stopped
    (a superstep had begun and was not ended: resume it); or idle.
    """
    from flowpregel.cli.status import status_of  # noqa: PLC0415 - keeps --help fast

    rows = []
    with reading(store) as saver:
        for info in saver.threads():
            saved = newest(saver, info.thread_id)
            found = status_of(saved, running=info.status == "running")
            if status in (None, found):
                flow = str(saved.checkpoint.metadata.get(FLOW) or "")
                rows.append((info, found, flow))
    rows.sort(key=lambda row: row[0].updated, reverse=True)
    if as_json:
        tell_json(
            [
                {
                    "thread_id": info.thread_id,
                    "status": found,
                    "step": info.step,
                    "created": time_of(info.created),
                    "updated": time_of(info.updated),
                    "flow": flow or None,
                }
                for info, found, flow in rows
            ]
        )
        return
    table(
        ("THREAD", "STATUS", "STEP", "CREATED", "UPDATED", "FLOW"),
        [
            (
                info.thread_id,
                found,
                str(info.step),
                time_of(info.created),
                time_of(info.updated),
                flow,
            )
            for info, found, flow in rows
        ],
    )
