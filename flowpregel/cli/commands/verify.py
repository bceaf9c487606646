"""``flowpregel verify``: read everything in a store."""

from __future__ import annotations

import os

import click

from flowpregel.cli.codes import Code
from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.stores import existing, reading, writing


@click.command()
@store_option
@json_option
@click.pass_context
def command(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Read everything in a store, and say what is damaged.

    Nothing is decoded. In a folder that can be written, the pages of the file
    are looked at too, and writers wait meanwhile.
    """
    # To look at the pages nobody may write, which only a writer can see to.
    opened = writing if os.access(existing(store), os.W_OK) else reading
    with opened(store) as saver:
        found = saver.verify()
    if as_json:
        tell_json({"ok": found.ok, "records": found.records, "problems": [*found.problems]})
    else:
        for problem in found.problems:
            tell(problem)
        what = "all is well" if found.ok else f"{len(found.problems)} problems"
        tell(f"{found.records:,} records read: {what}")
    ctx.exit(Code.OK if found.ok else Code.STORE)
