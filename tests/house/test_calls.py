"""Python calls in the coordinator: the cost of a step that no machine disturbs."""

from __future__ import annotations

import pytest

from tests.benchmarks.calls import ROWS, CountedRow, count_calls

MEASURED = (108, 193, 72, 116)
"""Calls of each row when its bound was set; a change may add 5 %."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "measured"),
    list(zip(ROWS, MEASURED, strict=True)),
    ids=[row.name for row in ROWS],
)
def test_a_step_makes_no_more_python_calls(
    row: CountedRow, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects and layers between two functions of the user are what a step costs."""
    # The plugin checks the arguments of calls in tests; a program does not.
    monkeypatch.setenv("FLOWPREGEL_CHECK_MUTATIONS", "0")
    # Another test may have imported LangChain. Nodes then get its callback manager.
    monkeypatch.setattr("flowpregel.executors.attempt.MANAGER_MODULE", "")
    assert count_calls(row.ours()) <= measured * 1.05
