"""``flowpregel stats``: how much a store keeps, and for what."""

from __future__ import annotations

from dataclasses import asdict

import click

from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import fields, size_of, table, tell, tell_json
from flowpregel.cli.stores import reading


@click.command()
@store_option
@json_option
def command(store: str | None, as_json: bool) -> None:
    """Show how much a store keeps, and for what."""
    with reading(store) as saver:
        found = saver.stats()
        path = saver.path
    if as_json:
        tell_json({"path": path, **asdict(found)})
        return
    fields(
        {
            "store": path,
            "file": size_of(found.bytes),
            "threads": f"{found.threads:,}",
            "namespaces": f"{found.namespaces:,}",
            "checkpoints": f"{found.checkpoints:,} ({size_of(found.bytes_of_checkpoints)})",
            "pending writes": size_of(found.bytes_of_writes),
        }
    )
    if found.bytes_of_channels:
        largest = sorted(found.bytes_of_channels.items(), key=lambda item: -item[1])
        tell()
        table(("CHANNEL", "BYTES"), [(name, f"{size:,}") for name, size in largest])
