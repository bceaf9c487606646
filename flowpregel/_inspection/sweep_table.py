"""The calls of several runs as rows of one table: their arguments, the fields of their
results, their metrics, and how they ran.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flowpregel._inspection.call_query import FIELDS, CallQuery, recorded_fields
from flowpregel._inspection.preview import ReprText
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.labels import INPUT
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._inspection.call_index import CallIndex
    from flowpregel._inspection.call_rows import CallRow
    from flowpregel.checkpoint.durable import DurableSaver

_COLUMNS: Final = (
    "task",
    "call",
    "state",
    "error",
    "took",
    "memory",
    "tries",
)
"""The fields of every call that a table has, by their names in `FIELDS`."""


def sweep_rows(saver: DurableSaver, ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return a row for each call of the last runs of threads.

    A run without calls has a row for each node, or for the workflow's body.

    Args:
        saver: The open store. None of the user's code is imported or run.
        ids: The ids of the runs, whose rows follow each other in this order.

    Raises:
        ConfigurationError: The store has no run of this id.
    """
    rows: list[dict[str, Any]] = []
    with closing(StoreReader(saver)) as reader:
        for run_id in ids:
            for call in calls_of_run(reader, run_id):
                row = _sweep_row(run_id, call)
                rows.append(row)
    return rows


def calls_of_run(reader: StoreReader, run_id: str) -> list[CallRow]:
    """Return the calls of a run, or its nodes if there are no calls, in the order of
    their supersteps and, within a superstep, of their positions.

    Args:
        reader: The reader of the store.
        run_id: The id of the run.

    Raises:
        ConfigurationError: The store has no run of this id.
    """
    if reader.run(run_id) is None:
        raise ConfigurationError(
            f"the store has no thread {run_id!r}; `flowpregel ls` lists them"
        )
    rows = _rows_of_run(reader, run_id)
    return ordered_calls(rows)


def ordered_calls(rows: Iterable[CallRow]) -> list[CallRow]:
    """Return the calls among the rows of a run, or its nodes if there are no calls, in
    the order of their supersteps and, within a superstep, of their positions.
    """
    nodes: list[CallRow] = []
    nested: list[CallRow] = []
    for row in rows:
        if row.caller:
            nested.append(row)
        elif row.name != INPUT:
            nodes.append(row)
    return sorted(
        nested or nodes,
        key=lambda row: (row.step, row.path),
    )


def _rows_of_run(reader: StoreReader, run_id: str) -> Collection[CallRow]:
    """Return the rows of a run's tasks."""
    rows: dict[str, CallRow] = {}
    for changes in reader.changes(run_id):
        if changes.is_whole:
            rows.clear()
        for row in changes.rows:
            rows[row.id] = row
    return rows.values()


def _sweep_row(run_id: str, call: CallRow) -> dict[str, Any]:
    """Return the row of a call."""
    row: dict[str, Any] = {"run": run_id}
    for name in _COLUMNS:
        row[name] = getattr(call, FIELDS[name])
    for name, value in recorded_fields(call).items():
        if name in row:
            name = f"call.{name}"
        if isinstance(value, ReprText):
            value = str(value)
        row[name] = value
    return row


def column_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns that at least one row has, in the order of the rows.

    Example:
        >>> column_names([{"n": 1}, {"n": 2, "loss": 0.5}])
        ['n', 'loss']
    """
    names: dict[str, None] = {}
    for row in rows:
        for name in row:
            names[name] = None
    return list(names)


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a CSV file. The first line has the names of the columns.

    Example:
        >>> list(csv_lines([{"n": 1}, {"n": 2, "loss": 0.5}]))
        ['n,loss', '1,', '2,0.5']
    """
    names = column_names(rows)
    yield _csv_line(names)
    for row in rows:
        cells = map(row.get, names)
        yield _csv_line(cells)


def csv_of_calls(
    index: CallIndex,
    query: CallQuery,
    columns: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines of a CSV file with the calls of a run that match a query, in the
    order of the query.

    The first line has the columns' names. A call that changes while the lines are made
    may be written with its new values.

    Args:
        index: The calls of the run.
        query: The query. Its page has no effect.
        columns: The fields, by their names in queries, or nothing for all columns of
            `flowpregel.func.entrypoint.table`.

    Example:
        >>> from flowpregel.watching import CallIndex, CallQuery
        >>> list(csv_of_calls(CallIndex(), CallQuery(), ["call", "took"]))
        ['call,took']
    """
    table = index.table
    names = columns or (*_COLUMNS, *table.fields)
    readers = [table.value_of(name) for name in names]
    yield _csv_line(names)
    for number in index.select(query):
        yield _csv_line([_csv_cell(read(number)) for read in readers])


def _csv_cell(value: Any) -> Any:
    """Return the value of a cell. A duration that is infinite, because the call still
    runs, becomes an empty cell.
    """
    return None if value == math.inf else value


def _csv_line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    writer = csv.writer(
        line,
        lineterminator="",
    )
    writer.writerow(cells)
    return line.getvalue()


def write_parquet(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Write *rows* to a Parquet file.

    A column whose values have different types is written as strings.

    Args:
        rows: The rows, as `sweep_rows` returns them.
        path: The path of the file.

    Raises:
        ConfigurationError: None of the packages that write Parquet is installed.
    """
    columns: dict[str, list[Any]] = {}
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        columns[name] = _with_one_type(values)
    try:
        arrow: Any = import_module("pyarrow")
    except ImportError:
        _write_with_frame(columns, path)
        return
    parquet = import_module("pyarrow.parquet")
    table = arrow.table(columns)
    parquet.write_table(table, path)


def _write_with_frame(columns: Mapping[str, Any], path: str) -> None:
    """Write columns to a Parquet file with polars or pandas."""
    for package, method in (("polars", "write_parquet"), ("pandas", "to_parquet")):
        try:
            frame = import_module(package).DataFrame(columns)
            getattr(frame, method)(path)
        except ImportError:
            continue
        return
    raise ConfigurationError(
        "a Parquet file needs a package that writes it: pip install pyarrow (or "
        "polars), or write --csv"
    )


def _with_one_type(values: Sequence[Any]) -> list[Any]:
    """Return the values of a column with one type: unchanged, all as floats, or all as
    strings.
    """
    types = set(map(type, values))
    types.discard(type(None))
    if len(types) <= 1:
        return list(values)
    convert: Callable[[Any], Any] = str
    if types == {int, float}:
        convert = float
    converted: list[Any] = []
    for value in values:
        if value is not None:
            value = convert(value)
        converted.append(value)
    return converted
