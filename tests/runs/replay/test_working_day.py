"""What happens to a program between two runs, and how much of its work is done again:
nothing.

Each row edits a program that has failed at one of five items, and runs it again in a
new process, in worker processes, with a store on disk, and with another home folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from flowpregel.storage.headers import KEY_VARIABLE
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


@task()
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
    for _ in range(int(os.environ.get("TIMES", "1"))):
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

    def run(
        self,
        *arguments: str,
        python: str = sys.executable,
        **environment: str,
    ) -> Ran:
        """Run the program, as a user whose home folder is this one."""
        kept = {
            name: value for name, value in os.environ.items() if name != KEY_VARIABLE
        }
        ran = self.folder / "ran"
        ran.write_text("")
        done = subprocess.run(
            [python, "program.py", *(arguments or ("1,2,3,4,5",))],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **kept,
                "PYTHONPATH": str(ROOT),
                "HOME": str(self.folder),
                "FLOWPREGEL_EXECUTOR": "processes",
                **environment,
            },
        )
        printed = (done.stdout.strip().splitlines() or [""])[-1]
        return Ran(
            printed, sorted(int(line) for line in ran.read_text().split()), done.stderr
        )


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


KEPT = "double: 4 results were computed by other code"
ANSWERED = "4 answered from the record, 1 executed"
ALL = [1, 2, 3, 4, 5]


class Row(NamedTuple):
    """An edit, and what the second run is to do."""

    name: str
    edits: Sequence[tuple[str, str]] = ()
    given: Sequence[str] = ()
    ran: Sequence[int] = (4,)
    results: Sequence[int] = (20, 40, 60, 80, 100)
    told: str = ""
    """What it says on stderr; nothing: it must say nothing."""
    apart: bool = False
    """Whether it is asked for once more in a process of its own, not at once."""


DECORATOR = "@task()"
RERUN = DECORATOR, '@task(on_code_change="rerun")'
ADOPTS = DECORATOR, '@task(adopts="double")'
FLOW_ADOPTS = '"runs.lmdb")', '"runs.lmdb", adopts="study")'
FAILURE = """    if str(n) == os.environ.get("FAILS_AT"):
        raise ValueError("a bug")
"""
HELPER = "return int(n)", "return int(n) + 100"
DEFAULT = "factor=2", "factor=3"
TASK_RENAMED = [("def double(", "def twice("), ("[double(n)", "[twice(n)")]
FLOW_RENAMED = [("def study(", "def renamed("), ("print(study.", "print(renamed.")]
CALLS = "[double(n) for n in numbers]"

ROWS = [
    Row("nothing", apart=True),
    Row("task fixed", [(FAILURE, "")], told=KEPT, apart=True),
    Row("log line", [("    value =", '    print("at", n)\n    value =')], told=KEPT),
    Row("assertion", [("    value =", "    assert n > 0\n    value =")], told=KEPT),
    Row(
        "local renamed",
        [("    value =", "    product ="), ("return value", "return product")],
    ),
    Row("comment of a helper", [("# A helper of the task.", "# Makes it a number.")]),
    Row("docstring", [("Double it.", "Return twice the number.")]),
    Row("annotations", [("def clean(n):", "def clean(n: int) -> int:")]),
    Row(
        "layout",
        [(CALLS, "[\n        double(\n            n\n        ) for n in numbers]")],
    ),
    Row(
        "helper fixed", [HELPER], results=[20, 40, 60, 2080, 100], told=KEPT, apart=True
    ),
    Row(
        "helper, rerun",
        [HELPER, RERUN],
        ran=ALL,
        results=[2020, 2040, 2060, 2080, 2100],
    ),
    Row("default changed", [DEFAULT], results=[20, 40, 60, 120, 100], told=KEPT),
    Row("default, rerun", [DEFAULT, RERUN], ran=ALL, results=[30, 60, 90, 120, 150]),
    Row(
        "constant changed",
        [("SCALE = 10", "SCALE = 1")],
        results=[20, 40, 60, 8, 100],
        told=KEPT,
    ),
    Row("task renamed", TASK_RENAMED, ran=ALL, told="5 executed, 4 not made again"),
    Row("task renamed, adopts", [*TASK_RENAMED, ADOPTS], told=ANSWERED, apart=True),
    Row("flow renamed", FLOW_RENAMED, ran=[], results=[], told="'program:study'"),
    Row("flow renamed, adopts", [*FLOW_RENAMED, FLOW_ADOPTS]),
    Row(
        "call added in front",
        [(CALLS, "[double(n) for n in [9, *numbers]]")],
        ran=[4, 9],
        results=[180, 20, 40, 60, 80, 100],
        told="4 answered from the record, 2 executed",
    ),
    Row(
        "call added in the middle",
        [(CALLS, "[double(n) for n in [*numbers[:2], 9, *numbers[2:]]]")],
        ran=[4, 9],
        results=[20, 40, 180, 60, 80, 100],
        told="4 answered from the record, 2 executed",
    ),
    Row(
        "call added behind",
        [(CALLS, "[double(n) for n in [*numbers, 9]]")],
        ran=[4, 9],
        results=[20, 40, 60, 80, 100, 180],
        told="4 answered from the record, 2 executed",
    ),
    Row(
        "item skipped",
        [(CALLS, "[double(n) for n in numbers if n != 2]")],
        results=[20, 60, 80, 100],
        told="3 answered from the record, 1 executed, 1 not made again",
    ),
    Row(
        "reordered",
        [(CALLS, "[double(n) for n in numbers[::-1]]")],
        results=[100, 80, 60, 40, 20],
        told=ANSWERED,
    ),
    Row(
        "more items",
        given=["1,2,3,4,5,6,7", "--adopt"],
        ran=[4, 6, 7],
        results=[20, 40, 60, 80, 100, 120, 140],
        told="4 answered from the record, 3 executed",
    ),
    Row(
        "more items, not adopted",
        given=["1,2,3,4,5,6,7"],
        ran=[],
        results=[],
        told="adopt=True",
    ),
    Row(
        "input corrected",
        given=["1,2,3,8,5", "--adopt"],
        ran=[8],
        results=[20, 40, 60, 160, 100],
        told="4 answered from the record, 1 executed",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_is_done_is_not_done_again(row: Row, day: Day) -> None:
    """What failed is; and the program is told where old results are among new ones."""
    day.edit(*row.edits)

    printed, ran, told = day.run(*row.given, TIMES="1" if row.apart else "2")

    results = str([*row.results]) if row.results else ""
    assert (printed, ran) == (results, [*row.ran]), told
    assert row.told in told
    assert bool(told) is bool(row.told), told
    if results and row.apart:
        assert day.run(*row.given)[:2] == (results, [])
