"""`Flow.run` in a program that is killed, and run again. What edits between do: the
working day.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.stores import ROOT

PROGRAM = """
import os
import time
from flowpregel import entrypoint, task

DIES_AT = int(os.environ.get("DIES_AT", "0"))


@task
def double(n: int) -> int:
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    return 2 * n


@entrypoint(checkpointer="runs.lmdb", executor="processes")
def study(numbers: list[int], *, scale: int = 1) -> int:
    total = 0
    for n in numbers:
        if n == DIES_AT:
            time.sleep(1)  # durability is "async": what ended is committed meanwhile
            os._exit(9)
        total += double(n).result()
    return scale * total


if __name__ == "__main__":
    print(study.run([1, 2, 3, 4, 5], id="study", scale=10))
"""


@pytest.mark.slow
def test_only_what_was_in_flight_is_done_again(tmp_path: Path) -> None:
    """And nothing, once the run has ended."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(dies_at: int = 0) -> tuple[str, list[int]]:
        ran = tmp_path / "ran"
        ran.write_text("")
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DIES_AT": str(dies_at)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        return done.stdout.strip(), [int(line) for line in ran.read_text().split()]

    assert ("", [1, 2, 3]) == run(dies_at=4)
    assert ("300", [4, 5]) == run()
    assert ("300", []) == run()


NESTED = """
from flowpregel import entrypoint, task


@task
def again(n: int) -> int:
    return study.run(n, id="study")


@entrypoint(checkpointer="runs.lmdb", executor="processes")
def study(n: int) -> int:
    return again(n).result()
"""


@pytest.mark.slow
def test_a_task_in_a_worker_cannot_run_the_run_it_belongs_to(tmp_path: Path) -> None:
    """It would wait for its own end: an error tells so, as in one process."""
    (tmp_path / "nested.py").write_text(NESTED)

    done = subprocess.run(
        [sys.executable, "-c", "import nested; nested.study.run(1, id='study')"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )

    assert 1 == done.returncode
    assert "the run 'study' was called inside itself" in done.stderr
