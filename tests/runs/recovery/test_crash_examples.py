"""The five examples are killed everywhere: nothing is lost, nothing done twice.

``pytest --crash-everywhere tests/runs/recovery/test_crash_examples.py`` kills them
at every point, in every durability mode and on every executor (``tox -e crash``;
minutes).
The daily run does each of them undisturbed, and kills it at a few points.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowpregel.testing.crash import crash_everywhere
from tests.runs.example_flows import EVERY

pytestmark = pytest.mark.slow

EXPECTED = {
    "study": lambda table: "110" in table and 3 == len(table.splitlines()),
    "words": lambda report: 10 == len(report) and report[0][1] > 20,
    "loop": lambda history: [("result", "124")] == history[6:],
    "files": lambda found: found[0] > 5 and found[1] > 500,
    "claim": lambda receipt: receipt == "paid 1800 for trip",
}


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a workflow sets in the environment ends with the test."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")
    monkeypatch.setenv("FLOWPREGEL_EXECUTOR", "inline")
    monkeypatch.setenv("CENSUS_LOG", "")


@pytest.mark.crash_everywhere
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("example", EVERY)
def test_an_example_in_one_process(
    tmp_path: Path, example: str, durability: Any
) -> None:
    """Every mode, the tasks inline."""
    assert EXPECTED[example](EVERY[example](tmp_path, "inline", durability))


@pytest.mark.crash_everywhere
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("example", EVERY)
def test_an_example_elsewhere(tmp_path: Path, example: str, executor: str) -> None:
    """Tasks in OS threads, and in worker processes, which are killed too."""
    assert EXPECTED[example](EVERY[example](tmp_path, executor, "sync"))


@pytest.mark.crash_everywhere(in_a_row=3, at_most=4)
@pytest.mark.parametrize("example", EVERY)
def test_an_example_three_times_in_a_row(tmp_path: Path, example: str) -> None:
    """A kill, one in the recovery, and one in the recovery from that."""
    assert EXPECTED[example](EVERY[example](tmp_path, "inline", "sync"))


@pytest.mark.parametrize("example", EVERY)
def test_an_example_killed_at_a_few_points(example: str) -> None:
    """What the daily run can afford."""
    workflow = partial(EVERY[example], executor="inline", durability="sync")

    report = crash_everywhere(
        workflow, modules=("tests.runs.example_flows",), at_most=3
    )

    print(example, report)
    assert report.ok, report
    assert report.writes > 0
    assert report.effects > 0
