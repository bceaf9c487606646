"""What happens to a program between two runs, and how much of its work is done again: nothing.

Each row edits a program that has failed at one of five items, and runs it again in a new process,
in worker processes and with a store on disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.runs.stores import ROOT

pytestmark = pytest.mark.slow

PROGRAM = '''
import os
import sys
from functools import partial

from flowpregel import entrypoint, task

SCALE = 10


def clean(n):
    # A helper of the task.
    return int(n)


@task(executor="processes")
def double(n, factor=2):
    """Double it."""
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    if str(n) == os.environ.get("FAILS_AT"):
        raise ValueError("a bug")
    value = factor * clean(n)
    return value * SCALE


@entrypoint(checkpointer="runs.lmdb")
def study(numbers):
    futures = [double(n) for n in numbers]
    return [future.result() for future in futures]


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1].split(",")]
    print(study.run(numbers, id="study", adopt="--adopt" in sys.argv))
'''


class Ran(NamedTuple):
    """What came of the program."""

    printed: str
    """The last line of its stdout."""
    ran: list[int]
    """The items that were worked on, in order."""
    told: str
    """What it wrote on stderr."""


class Day:
    """A folder with the program, which is run in it by new processes.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def edit(self, *edits: tuple[str, str]) -> None:
        """Replace texts in the program, each of which stands in it once."""
        path = self.folder / "program.py"
        text = path.read_text()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)

    def run(self, *arguments: str, python: str = sys.executable, **environment: str) -> Ran:
        """Run the program."""
        ran = self.folder / "ran"
        ran.write_text("")
        done = subprocess.run(
            [python, "program.py", *(arguments or ("1,2,3,4,5",))],
            cwd=self.folder, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip
        printed = (done.stdout.strip().splitlines() or [""])[-1]
        return Ran(printed, sorted(int(line) for line in ran.read_text().split()), done.stderr)


@pytest.fixture(scope="module")
def first_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the program has failed at item 4."""
    day = Day(tmp_path_factory.mktemp("first"))
    (day.folder / "program.py").write_text(PROGRAM)
    printed, ran, told = day.run(FAILS_AT="4")
    assert ("", [1, 2, 3, 4, 5]) == (printed, ran)
    assert "ValueError: a bug" in told
    return day.folder


@pytest.fixture
def day(first_day: Path, tmp_path: Path) -> Day:
    """Return the second day of that program."""
    return Day(shutil.copytree(first_day, tmp_path / "day"))


RESULTS = "[20, 40, 60, 80, 100]"
KEPT = "4 results were made by other code"


class Row(NamedTuple):
    """An edit, and what the second run is to do."""

    name: str
    edits: Sequence[tuple[str, str]] = ()
    given: Sequence[str] = ()
    ran: Sequence[int] = (4,)
    printed: str = RESULTS
    told: str = ""
    """What it says on stderr; nothing: it must say nothing."""


RERUN = ('@task(executor="processes")', '@task(executor="processes", on_code_change="rerun")')
ROWS = [
    Row("nothing"),
    Row("task fixed", [('    if str(n) == os.environ.get("FAILS_AT"):\n        raise ValueError("a bug")\n', "")], told=KEPT),
    Row("log line", [("    value = factor", '    print("working on", n)\n    value = factor')], told=KEPT),
    Row("assertion", [("    value = factor", "    assert n > 0\n    value = factor")], told=KEPT),
    Row("local renamed", [("    value = factor * clean(n)\n    return value *", "    product = factor * clean(n)\n    return product *")]),
    Row("comment of a helper", [("# A helper of the task.", "# Makes it a number.")]),
    Row("docstring and annotations", [('"""Double it."""', '"""Return twice the number."""'), ("def clean(n):", "def clean(n: int) -> int:")]),
    Row("layout", [("double(n) for n in numbers", "\n        double(\n            n\n        )\n        for n in numbers\n    ")]),
    Row("helper fixed", [("return int(n)", "return int(n) + 100")], printed="[20, 40, 60, 2080, 100]", told=KEPT),
    Row("helper fixed, rerun", [("return int(n)", "return int(n) + 100"), RERUN], ran=[1, 2, 3, 4, 5], printed="[2020, 2040, 2060, 2080, 2100]"),
    Row("default changed", [("factor=2", "factor=3")], printed="[20, 40, 60, 120, 100]", told=KEPT),
    Row("default changed, rerun", [("factor=2", "factor=3"), RERUN], ran=[1, 2, 3, 4, 5], printed="[30, 60, 90, 120, 150]"),
    Row("constant changed", [("SCALE = 10", "SCALE = 1")], printed="[20, 40, 60, 8, 100]", told=KEPT),
    Row("task renamed", [("def double(", "def twice("), ("[double(n)", "[twice(n)")], ran=[1, 2, 3, 4, 5], told="5 calls were not asked for again"),
    Row("task renamed, adopts", [("def double(", "def twice("), ("[double(n)", "[twice(n)"), ('@task(executor="processes")', '@task(executor="processes", adopts="double")')]),
    Row("flow renamed", [("def study(", "def renamed("), ("print(study.", "print(renamed.")], ran=[], printed="", told="'program:study'"),
    Row("flow renamed, adopts", [("def study(", "def renamed("), ("print(study.", "print(renamed."), ('@entrypoint(checkpointer="runs.lmdb")', '@entrypoint(checkpointer="runs.lmdb", adopts="study")')]),
    Row("call added in front", [("futures = [", "futures = [double(9), *["), ("in numbers]\n    return", "in numbers]]\n    return")], ran=[4, 9], printed="[180, 20, 40, 60, 80, 100]", told="answered"),
    Row("call added in the middle", [("double(n) for n in numbers]", "double(n) for n in [*numbers[:2], 9, *numbers[2:]]]")], ran=[4, 9], printed="[20, 40, 180, 60, 80, 100]", told="answered"),
    Row("call added behind", [("double(n) for n in numbers]", "double(n) for n in [*numbers, 9]]")], ran=[4, 9], printed="[20, 40, 60, 80, 100, 180]", told="answered"),
    Row("item skipped", [("double(n) for n in numbers]", "double(n) for n in numbers if n != 2]")], printed="[20, 60, 80, 100]", told="not asked"),
    Row("reordered", [("double(n) for n in numbers]", "double(n) for n in numbers[::-1]]")], printed="[100, 80, 60, 40, 20]"),
    Row("more items", given=["1,2,3,4,5,6,7", "--adopt"], ran=[4, 6, 7], printed="[20, 40, 60, 80, 100, 120, 140]", told="answered"),
    Row("more items, not adopted", given=["1,2,3,4,5,6,7"], ran=[], printed="", told="adopt=True"),
    Row("input corrected", given=["1,2,3,8,5", "--adopt"], ran=[8], printed="[20, 40, 60, 160, 100]", told="answered"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_is_done_is_not_done_again(row: Row, day: Day) -> None:
    """What failed is; and the program is told where old results are among new ones."""
    day.edit(*row.edits)

    printed, ran, told = day.run(*row.given)

    assert (printed, ran) == (row.printed, list(row.ran)), told
    assert row.told in told
    assert bool(told) is bool(row.told), told
    if printed:
        assert day.run(*row.given)[:2] == (row.printed, [])
