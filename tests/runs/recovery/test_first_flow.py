"""The first example: killed half-way, and run again as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "first_flow.py")],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def lines_until_killed(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return what *process* prints until *count* lines are there, and kill it."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    process.kill()
    return lines + (process.communicate()[0] or "").splitlines(keepends=True)


def seed_of(line: str) -> int:
    """Return which simulation a line is about, whatever the worker puts before it."""
    return int(line.rsplit(maxsplit=1)[-1])


@pytest.mark.slow
def test_a_flow_that_is_killed_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    """It does the rest, and the result is that of all."""
    first = lines_until_killed(started(tmp_path), 6)
    second = started(tmp_path).communicate(timeout=60)[0].splitlines(keepends=True)

    assert "the mean is 0.492\n" == second[-1]
    assert set(range(12)) == {*map(seed_of, first), *map(seed_of, second[:-1])}
    # Two run at a time: those in flight when it was killed are simulated again, no
    # others.
    again = {*map(seed_of, first)} & {*map(seed_of, second[:-1])}
    assert len(again) <= 2 * (os.cpu_count() or 1)
