"""Figures in README and docs are what the benchmarks wrote, and every goal has its
row.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import charts, order, pages, results

GOALS = [
    "W1a",
    "W1b",
    "W1c",
    "W2a",
    "W2b",
    "W2c",
    "W2d",
    "W3a",
    "W3b",
    "W4",
    "W5a",
    "W5b",
    "W5c",
    "W6a",
    "W6b",
    "W6c",
    "W7",
    "W8",
    "W9",
    "W10",
    "W11",
    "G1a",
    "G1b",
    "G1c",
    "G2a",
    "G2b",
    "G2c",
    "G3a",
    "G3b",
    "G3c",
    "G4a",
    "G4b",
    "G4c",
    "census",
    "RT",
    "LIM",
]
"""The names of the goals that were set; a row may add a word to its name."""

COMMITTED = results.load(results.FILE)


def without_row(name: str) -> bool:
    """Say whether the committed results lack a row for a goal."""
    return not any(row.split(" ")[0] == name for row in COMMITTED["rows"])


def test_every_goal_has_a_result() -> None:
    """Nothing that was promised is left unmeasured."""
    assert [] == [name for name in GOALS if without_row(name)]


def test_every_row_that_is_measured_has_a_result() -> None:
    """The file knows each row of the workloads, and no row that is no more."""
    assert order.names() == [*COMMITTED["rows"]]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_file(page: Path) -> None:
    """Each marked block says what the committed results say."""
    text = page.read_text("utf-8")

    assert pages.BLOCK.search(text) is not None
    assert text == pages.rewritten(text, COMMITTED)


def test_the_charts_show_the_figures_of_the_file() -> None:
    """Each chart carries the digest of what it was drawn from."""
    drawn = {
        chart.name: "".join(
            re.findall("figures ([0-9a-f]{16})", chart.read_text("utf-8"))
        )
        for chart in results.FIGURES.glob("*.svg")
    }

    assert {
        name: charts.digest(data) for name, data in charts.shown(COMMITTED).items()
    } == drawn


def test_another_figure_is_noticed() -> None:
    """The check itself works: a block that was changed by hand is put right."""
    page = (
        "a\n<!-- figures: verdict -->\n99 of 99 rows hold.\n<!-- figures end -->\nb\n"
    )

    text = pages.rewritten(
        page, {"rows": {"W1a": {"holds": True}, "W1b": {"holds": False}}}
    )

    assert (
        "a\n<!-- figures: verdict -->\n1 of 2 rows hold. Missed: W1b.\n<!-- figures "
        "end -->\nb\n"
    ) == text
