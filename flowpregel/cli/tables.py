"""The command that shows the calls of runs as one table: table."""

from __future__ import annotations

from typing import Any

import click

from flowpregel._inspection.sweep_table import (
    column_names,
    csv_lines,
    sweep_rows,
    write_parquet,
)
from flowpregel.cli import console, targets


@console.store_command("table", console.INTERNALS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--csv", "prints_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--parquet",
    metavar="FILE",
    help="Write a Parquet file, with pyarrow, polars or pandas.",
)
def table_command(
    ids: tuple[str, ...],
    prints_csv: bool,
    parquet: str | None,
    store: str | None,
) -> None:
    """Show the calls of runs as one table.

    A row has the arguments of a call, the fields of the result, the metrics, and the
    state, error, seconds, peak memory in bytes and attempts of the call.
    """
    if prints_csv and parquet is not None:
        raise click.UsageError("write --csv or --parquet FILE, not both")
    with targets.open_to_read(store) as saver:
        rows = sweep_rows(saver, ids)
    if parquet is not None:
        write_parquet(rows, parquet)
        console.print_result(
            {"file": parquet, "rows": len(rows)}, f"{parquet}: {len(rows):,} rows"
        )
        return
    if prints_csv:
        for line in csv_lines(rows):
            click.echo(line)
        return
    names = column_names(rows)
    cells = [[_number_or_text(row.get(name)) for name in names] for row in rows]
    console.print_result(rows, console.make_table([*map(str.upper, names)], cells))


def _number_or_text(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
