"""The first screen of a run: what a page shows at first. A new server can send it
without reading the calls of the run.

::

    CallIndex, FailedCalls ── first_answers ──► a file of the reader's cache
                                                   │
    GET api/calls, api/errors ◄── FirstScreen ◄────┘

The calls of a large run are many megabytes. A page first shows the beginning of their
table in the usual order, their counts, and the kinds of errors. These answers are
stored in a file with the index of the calls. The calls are read only when the page asks
for something else: another order, a search, a call, or another view.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowpregel.plugins.page.call_answers import (
    errors_to_json,
    page_to_json,
    positive_counts,
)
from flowpregel.watching import CallIndex, CallQuery, FailedCalls

_FIRST_CALLS: Final = 200
"""The number of calls on the first screen. A tall window shows a hundred."""


def first_answers(index: CallIndex, failed: FailedCalls) -> dict[str, Any]:
    """Return the answers that are stored for a `FirstScreen`.

    Args:
        index: The calls of the run, all of which have been read.
        failed: The failed calls of the run.
    """
    query = CallQuery(count=_FIRST_CALLS)
    page = index.page(query)
    calls = page_to_json(index, page)
    calls["counts"] = positive_counts(index.counts)
    calls["bodies"] = positive_counts(index.body_counts)
    calls["fields"] = sorted(index.table.fields)
    calls["found"] = []
    return {
        "mark": index.mark,
        "calls": calls,
        "errors": errors_to_json(failed),
    }


class FirstScreen:
    """The stored answers for the first screen of a run whose calls have not changed
    since the answers were stored.

    Args:
        answers: The answers that `first_answers` returned.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.mark: int = answers["mark"]
        """The mark (a position in the sequence of all changes of the run's calls) at
        which the answers were stored.
        """
        self.errors: dict[str, Any] = answers["errors"]
        """The answer with the kinds of errors."""
        # The time is used as a new epoch, because an open page may still show rows of
        # an earlier server, in whose epoch a number may have stood for another call.
        epoch = time.time_ns() // 1_000
        self._calls: dict[str, Any] = {
            **answers["calls"],
            "epoch": epoch,
            "version": 0,
            "is_behind": False,
        }

    def calls(
        self,
        query: CallQuery,
        since: str,
        known: Sequence[str],
    ) -> dict[str, Any] | None:
        """Return a part of the table of calls, or None if the screen does not have it.

        Args:
            query: The query for calls, with the order and the part that the page shows.
            since: The epoch and the version of the page's rows.
            known: The numbers of these rows.
        """
        numbers = self._calls["numbers"]
        end = query.offset + query.count
        has_part = end <= len(numbers) or len(numbers) == self._calls["total"]
        usual = CallQuery(offset=query.offset, count=query.count, states=query.states)
        if query.states or query != usual or not has_part:
            return None
        epoch, _, _ = since.partition(".")
        is_same_epoch = int(epoch) == self._calls["epoch"]
        known_numbers = set(map(int, known)) if is_same_epoch else set()
        numbers = numbers[query.offset : end]
        new_numbers = set(numbers) - known_numbers
        rows = [row for row in self._calls["rows"] if row[0] in new_numbers]
        return {**self._calls, "numbers": numbers, "rows": rows}
