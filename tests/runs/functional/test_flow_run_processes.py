"""`Flow.run` from day to day: a program that is killed, run again, corrected, and renamed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.stores import ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import os
import sys
import time
import warnings
from flowpregel import entrypoint, task

warnings.simplefilter("ignore")
DIES_AT = int(os.environ.get("DIES_AT", "0"))


@task
def double(n: int) -> int:
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    return 2 * n


@entrypoint(checkpointer="runs.lmdb", executor="processes" ADOPTS)
def NAME(numbers: list[int], *, scale: int = 1) -> int:
    total = 0
    for n in numbers:
        if n == DIES_AT:
            time.sleep(1)  # durability is "async": what ended is committed meanwhile
            os._exit(9)
        total += double(n).result()
    return scale * total


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1].split(",")]
    print(NAME.run(numbers, id="study", adopt="--adopt" in sys.argv, scale=10))
"""


class Day:
    """A folder with the program, which is run in it by new processes.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write()

    def write(self, name: str = "study", adopts: str = "") -> None:
        """Write the program, with this name of its workflow."""
        text = PROGRAM.replace("NAME", name).replace(" ADOPTS", adopts)
        (self.folder / "program.py").write_text(text)

    def run(self, *arguments: str, dies_at: int = 0) -> tuple[str, list[int]]:
        """Return the last line that the program wrote, and which of its calls ran."""
        ran = self.folder / "ran"
        ran.write_text("")
        done = subprocess.run(
            [sys.executable, "program.py", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DIES_AT": str(dies_at)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        lines = (done.stdout or done.stderr).strip().splitlines() or [""]
        return lines[-1], [int(line) for line in ran.read_text().split()]


def test_finished_work_survives_the_working_day(tmp_path: Path) -> None:
    """What was done is not done again, whatever happens between."""
    day = Day(tmp_path)

    assert ("", [1, 2, 3]) == day.run("1,2,3,4,5", dies_at=4)
    assert ("300", [4, 5]) == day.run("1,2,3,4,5")
    assert ("300", []) == day.run("1,2,3,4,5")

    line, ran = day.run("1,2,3,4,5,6")
    assert "adopt=True" in line
    assert [] == ran
    assert ("", []) == day.run("1,2,3,4,5,6", "--adopt", dies_at=6)
    assert ("420", [6]) == day.run("1,2,3,4,5,6", "--adopt")
    assert ("420", []) == day.run("1,2,3,4,5,6")

    day.write("renamed")
    line, ran = day.run("1,2,3,4,5,6")
    assert "'program:study'" in line
    assert "'program:renamed'" in line
    assert [] == ran
    day.write("renamed", adopts=', adopts="study"')
    assert ("420", []) == day.run("1,2,3,4,5,6")
    assert ("560", [7]) == day.run("1,2,3,4,5,6,7", "--adopt")
