"""The benchmark of queues runs our side, and counts what a kill costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import queues
from tests.benchmarks.queue_programs import JOBS, LINES


@pytest.mark.slow
def test_our_queue_loses_no_run_when_its_process_is_killed(tmp_path: Path) -> None:
    """At most the calls under way are made again."""
    queues.enqueue("flowpregel", tmp_path, 30)

    drained = queues.drain("flowpregel", tmp_path, 30, kill=True)

    assert drained.lost == 0
    assert drained.twice <= JOBS
    assert drained.per_second > 0


def test_an_enqueued_run_is_one_commit() -> None:
    """The benchmark counts the commits, and measures the time beside them."""
    assert queues.commits_of_enqueue(count=5) > 1


def test_lines_that_are_being_written_are_not_counted(tmp_path: Path) -> None:
    """Their time is not whole yet."""
    (tmp_path / LINES).write_text("0 1.5\n1 2.5\n2 3")

    assert queues.lines_in(tmp_path) == [(0, 1.5), (1, 2.5)]


def test_a_folder_without_lines_has_no_calls(tmp_path: Path) -> None:
    """No run has begun."""
    assert queues.lines_in(tmp_path) == []
