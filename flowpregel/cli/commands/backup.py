"""``flowpregel backup``: copy a store."""

from __future__ import annotations

import os

import click

from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.stores import reading


@click.command()
@click.argument("path")
@store_option
@json_option
def command(path: str, store: str | None, as_json: bool) -> None:
    """Copy a store, which may be in use, into the new folder PATH."""
    with reading(store) as saver:
        saver.backup(path)
    if as_json:
        tell_json({"path": os.path.realpath(path)})
    else:
        tell(f"copied to {path}")
