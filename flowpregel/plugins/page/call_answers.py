"""Conversions for the answers about calls: from parameters to queries, and from rows to
JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from flowpregel.errors import ConfigurationError
from flowpregel.watching import (
    CallGraph,
    CallIndex,
    CallPage,
    CallQuery,
    CallRow,
    FailedCalls,
)

COLUMNS: Final = (*CallRow._fields[:-1], "fields")
"""The names of the cells of a row: the fields of `CallRow`, except that ``fields``
replaces the last one, the preview.
"""
_MOST_KINDS: Final = 50
"""The maximum number of kinds of errors in an answer."""


def query_of(parameters: Mapping[str, str]) -> CallQuery:
    """Return the query that a request describes.

    Raises:
        ConfigurationError: There is no such parameter, or a value is wrong.
    """
    values = dict(parameters)
    text = values.pop("q", "")
    task = values.pop("task", "")
    order = values.pop("sort", "urgency")
    states = values.pop("state", "")
    offset = values.pop("offset", "0")
    count = values.pop("count", "100")
    query = CallQuery(
        text=text,
        states=parameter_words(states),
        task=task,
        order=order,
        offset=int(offset),
        count=int(count),
    )
    if values:
        names = ", ".join(values)
        raise ConfigurationError(f"a query of calls has no parameter {names}")
    return query


def page_to_json(index: CallIndex, page: CallPage) -> dict[str, Any]:
    """Convert a part of the table of calls to JSON values.

    Args:
        index: The calls of the run.
        page: The part of the table to convert.
    """
    rows: list[Any] = []
    for number in page.rows:
        cells = row_cells(index, number)
        rows.append([number, *cells])
    return {
        "columns": COLUMNS,
        "epoch": page.epoch,
        "version": page.version,
        "total": page.total,
        "numbers": page.numbers,
        "rows": rows,
        "is_behind": page.is_behind,
    }


def graph_to_json(graph: CallGraph) -> dict[str, Any]:
    """Return the tasks of a run, and the edges between them."""
    nodes = [
        {
            "id": node.id,
            "name": node.name,
            "parent": node.parent,
            "states": node.states,
        }
        for node in graph.nodes
    ]
    answer = graph._asdict()
    answer["nodes"] = nodes
    return answer


def row_cells(index: CallIndex, number: int) -> tuple[Any, ...]:
    """Return the cells of a call's row. The last one has the fields of the call's
    arguments, result and reports, in place of the preview.
    """
    fields: dict[str, Any] = {}
    for name, values in index.table.fields.items():
        if number in values:
            fields[name] = values[number]
    row = index.table.row(number)
    cells = row[:-1]
    return (*cells, fields)


def found_cells(index: CallIndex, call_id: str) -> tuple[Any, ...] | None:
    """Return the cells of a call's row, or None if the call is unknown, or if it ran
    and has left no record.
    """
    number = index.table.number_of(call_id)
    if number is None:
        return None
    urgency = index.table.urgency[number]
    if urgency < 0:
        return None
    return row_cells(index, number)


def positive_counts(counts: Counter[str]) -> dict[str, int]:
    """Return the number of calls in each state, without the states that no call has."""
    positive = +counts
    return dict(positive)


def parameter_words(text: str) -> list[str]:
    """Return the items of a parameter that is a comma-separated list."""
    return [word for word in text.split(",") if word]


def errors_to_json(failed: FailedCalls) -> dict[str, Any]:
    """Return the failed calls of a run by kind of error."""
    kinds = failed.kinds()
    first_kinds = kinds[:_MOST_KINDS]
    return {
        "kinds": [kind.to_json() for kind in first_kinds],
        "more": len(kinds) - len(first_kinds),
        "is_behind": False,
    }
