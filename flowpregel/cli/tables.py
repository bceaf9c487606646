"""The commands that show the calls of several runs: table, compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from flowpregel._inspection.call_rows import CALL_NUMBERS
from flowpregel._inspection.run_comparison import (
    CHANGES,
    CallComparison,
    ComparedCall,
    FieldDifference,
    RunComparison,
    RunTotals,
    compare_calls,
    compare_runs,
    text_of_call,
)
from flowpregel._inspection.sweep_table import (
    column_names,
    csv_lines,
    sweep_rows,
    write_parquet,
)
from flowpregel._text import size_text
from flowpregel.cli import console, targets
from flowpregel.cli.wording import duration_text, number_text

_MOST_PRINTED = 100
"""The greatest number of a comparison's calls that are printed; ``--json`` has all."""
_CHANGES = {
    "different": "other result",
    "only a": "only in A",
    "only b": "only in B",
    "same": "the same",
}
"""The words that a table shows for each kind of change."""


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
    """Return a value as the string for a cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@console.store_command("compare", console.INTERNALS)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--calls",
    metavar="CALL CALL",
    nargs=2,
    help="Compare a call of A with a call of B.",
)
def compare_command(
    a: str,
    b: str,
    calls: tuple[str, str] | None,
    store: str | None,
) -> None:
    """Compare two runs, or two calls.

    Calls of the runs are matched by the task and the arguments. The output has the
    parameters that differ, the sums of both runs, and the calls that only one of them
    made or that have another result.
    """
    with targets.open_to_read(store) as saver:
        if calls is not None:
            pair = compare_calls(saver, (a, calls[0]), (b, calls[1]))
            console.print_result(pair.to_json(), *_call_parts(pair))
            return
        comparison = compare_runs(saver, a, b)
    record = comparison.to_json()
    record["calls"] = [call.to_json() for call in comparison.calls]
    console.print_result(record, *_run_parts(comparison))


def _run_parts(comparison: RunComparison) -> Iterable[Any]:
    """Yield the comparison of two runs for a terminal."""
    sums = [_sums_of_run(comparison.a), _sums_of_run(comparison.b)]
    yield _side_by_side("", *sums)
    if comparison.parameters:
        yield ""
        yield _differences_table("INPUT", comparison.parameters)
    counts = [
        f"{comparison.counts[change]:,} {_CHANGES[change]}"
        for change in CHANGES
        if comparison.counts.get(change)
    ]
    yield ""
    yield f"calls: {', '.join(counts) or 'none'}"
    changed = [call for call in comparison.calls if call.change != "same"]
    if changed:
        cells = map(_cells_of_pair, changed[:_MOST_PRINTED])
        yield console.make_table(["", "CALL", "A", "B"], cells)
    hidden = len(changed) - _MOST_PRINTED
    if hidden > 0:
        yield f"{hidden:,} more calls; --json has them"


def _sums_of_run(run: RunTotals) -> dict[str, str]:
    """Return the totals of a run's calls as strings, by name."""
    errors = [f"{count:,} x {error}" for error, count in run.errors.items()]
    return {
        "run": run.run,
        "status": run.status,
        "flow": run.flow,
        "calls": f"{sum(run.states.values()):,}",
        "failed": f"{run.states.get('failed', 0):,}",
        "elapsed": duration_text(run.elapsed),
        "sum of durations": duration_text(run.seconds),
        "CPU": duration_text(run.cpu) if run.cpu else "",
        "peak memory": size_text(run.peak) if run.peak else "",
        "errors": "; ".join(errors[:3]),
    }


def _cells_of_pair(pair: ComparedCall) -> list[str]:
    """Return a row of the table of the calls of two runs."""
    firsts: list[str] = []
    seconds: list[str] = []
    for name, first, second in pair.results:
        firsts.append(f"{name}={_number_or_text(first)}")
        seconds.append(f"{name}={_number_or_text(second)}")
    a_error = "" if pair.a is None else pair.a.error
    b_error = "" if pair.b is None else pair.b.error
    first_text = a_error or " ".join(firsts)
    second_text = b_error or " ".join(seconds)
    return [_CHANGES[pair.change], pair.text, first_text, second_text]


def _call_parts(pair: CallComparison) -> Iterable[Any]:
    """Yield the comparison of two calls for a terminal."""
    facts: list[dict[str, str]] = []
    for call in (pair.a, pair.b):
        fact = {
            "call": text_of_call(call),
            "state": call.state,
            "took": duration_text(call.seconds),
        }
        for number in CALL_NUMBERS:
            value = getattr(call, number.field)
            fact[number.label] = number_text(number, value) if value else ""
        fact["attempts"] = f"{call.attempts:,}"
        fact["error"] = call.error
        facts.append(fact)
    yield _side_by_side("", *facts)
    for title, fields, is_same in (
        ("ARGUMENT", pair.arguments, pair.is_same_input),
        ("RESULT", pair.results, pair.is_same_result),
    ):
        yield ""
        if fields:
            yield _differences_table(title, fields)
        elif is_same:
            yield f"{title.lower()}: the same"
        else:
            yield f"{title.lower()}: different, where the preview does not show it"


def _side_by_side(title: str, a: Mapping[str, str], b: Mapping[str, str]) -> Any:
    """Return a table of the values that at least one of two dicts has."""
    rows = [(name, a[name], b[name]) for name in a if a[name] or b[name]]
    return console.make_table([title, "A", "B"], rows)


def _differences_table(title: str, fields: Iterable[FieldDifference]) -> Any:
    """Return a table of the fields that differ."""
    rows: list[tuple[str, str, str]] = []
    for name, first, second in fields:
        rows.append((name, _number_or_text(first), _number_or_text(second)))
    return console.make_table([title, "A", "B"], rows)
