"""``flowpregel history``: a thread's checkpoints."""

from __future__ import annotations

from typing import Any

import click

from flowpregel.cli.options import json_option, store_option, thread_argument
from flowpregel.cli.output import table, tell_json, time_of
from flowpregel.cli.stores import newest, reading


@click.command()
@thread_argument
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many."
)
@store_option
@json_option
def command(thread: str, limit: int, store: str | None, as_json: bool) -> None:
    """List a thread's checkpoints, newest first."""
    from flowpregel._core.records import Address  # noqa: PLC0415 - keeps --help fast
    from flowpregel.cli.status import is_engines  # noqa: PLC0415 - keeps --help fast

    with reading(store) as saver:
        newest(saver, thread)
        found = [
            (each.checkpoint, len({write.task_id for write in each.writes}))
            for each in saver.history(Address(thread), limit=limit)
        ]
    rows: list[dict[str, Any]] = [
        {
            "checkpoint": checkpoint.id,
            "parent": checkpoint.parent_id,
            "step": checkpoint.step,
            "source": checkpoint.source,
            "at": time_of(checkpoint.at),
            "run_id": checkpoint.metadata.get("run_id"),
            "changed": sorted(name for name in checkpoint.changed if not is_engines(name)),
            "tasks": tasks,
        }
        for checkpoint, tasks in found
    ]
    if as_json:
        tell_json(rows)
        return
    table(
        ("CHECKPOINT", "STEP", "SOURCE", "AT", "TASKS", "CHANGED"),
        [
            (
                row["checkpoint"],
                str(row["step"]),
                row["source"],
                row["at"],
                str(row["tasks"]),
                ", ".join(row["changed"]),
            )
            for row in rows
        ],
    )
