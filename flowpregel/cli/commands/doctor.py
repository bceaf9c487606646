"""``flowpregel doctor``: this machine, and a store's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowpregel.cli.codes import Code
from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import table, tell_json

if TYPE_CHECKING:
    from flowpregel.cli.checks import Finding


@click.command()
@store_option
@json_option
@click.pass_context
def command(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check this machine, and a store's folder if one is named.

    Exits with 0 if all is well, 4 if the store's folder is not, 1 if anything
    else is not.
    """
    from flowpregel.cli.checks import machine, store_folder  # noqa: PLC0415 - keeps --help fast

    of_machine = machine()
    of_store = [] if store is None else store_folder(store)
    if as_json:
        tell_json([_as_json(each) for each in (*of_machine, *of_store)])
    else:
        rows = [(f.name, "ok" if f.ok else "BAD", f.says) for f in (*of_machine, *of_store)]
        table(("CHECK", "", "FOUND"), rows)
    if not all(each.ok for each in of_store):
        ctx.exit(Code.STORE)
    ctx.exit(Code.OK if all(each.ok for each in of_machine) else Code.FAILED)


def _as_json(finding: Finding) -> dict[str, object]:
    return {"check": finding.name, "ok": finding.ok, "found": finding.says}
