"""One HTML file with the comparison of two runs, as the page shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.plugins.page.pages import report_page
from flowpregel.watching import compare_runs

_MOST_PAIRS: Final = 5_000
"""The maximum number of pairs of calls in a report, for each kind of change."""


def comparison_report(
    saver: DurableSaver,
    a: str,
    b: str,
) -> str:
    """Return the comparison of the last runs of two threads, as one HTML file.

    Args:
        saver: The open store.
        a: The id of the first thread.
        b: The id of the second thread.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    comparison = compare_runs(saver, a, b)
    numbers: dict[str, int] = {}
    calls: list[dict[str, Any]] = []
    for call in comparison.calls:
        number = numbers.get(call.change, 0)
        numbers[call.change] = number + 1
        if number < _MOST_PAIRS:
            calls.append(call.to_json())
    store_name = Path(saver.path).name
    answers = {
        "runs:": {
            "store": store_name,
            "runs": [],
            "actions": False,
            "restart": "",
        },
        "compare:": {
            **comparison.to_json(),
            "calls": calls,
        },
    }
    return report_page(answers)
