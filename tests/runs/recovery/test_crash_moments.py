"""A kill at a chosen moment, and what exactly runs afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowpregel import _fault
from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.crash import crash_everywhere
from tests.runs.crash_flows import HUNDRED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FLOWS = "tests.runs.crash_flows"
KEY = "the tests' key"
EXPECTED = sum(n * n for n in range(HUNDRED))


def run(name: str, folder: Path, fault: str = "") -> tuple[int, str, list[list[str]]]:
    """Run a workflow in a process; return its exit code, its result, and the points it
    passed.
    """
    log = folder / f"log {fault or 'clean'}"
    env = {_fault.TRACE: str(log), _fault.FAULT: fault, "FLOWPREGEL_STORE_KEY": KEY}
    code = (
        f"import sys, pathlib\nfrom {FLOWS} import "
        f"{name}\nprint({name}(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line.split("\t", 3) for line in log.read_text().splitlines()]
    return done.returncode, done.stdout.strip(), lines


def started(lines: list[list[str]]) -> list[str]:
    """Return the tasks that were begun, in order."""
    return [line[3] for line in lines if line[0] == "task.before"]


def kept(lines: list[list[str]]) -> set[str]:
    """Return the tasks of which the engine was told that they are committed."""
    return {
        each
        for line in lines
        if line[0] == "committer.commit.after"
        for each in line[3].split()
    }


@pytest.mark.parametrize("name", ["hundred", "hundred_sends"])
def test_of_a_hundred_tasks_exactly_the_unfinished_run_again(
    tmp_path: Path, name: str
) -> None:
    """Killed in the middle of the superstep, after a commit that was acknowledged."""
    code, _, before = run(name, tmp_path, "committer.commit.after:30:kill")
    assert -signal.SIGKILL == code
    finished = kept(before)
    assert 0 < len(finished) < HUNDRED

    code, result, after = run(name, tmp_path)

    assert (0, str(EXPECTED)) == (code, result)
    again = started(after)
    assert len(again) == len({*again})
    assert not finished & {*again}
    tasks = {*again} | finished
    # And what made them: the body, which is replayed, or the edge that sent them.
    assert HUNDRED + 1 == len(tasks)


def test_a_run_that_was_killed_before_its_first_task_is_there(tmp_path: Path) -> None:
    """Its input is kept, and it goes on without being given it again."""
    code, _, lines = run("short", tmp_path, "task.submitted:1:kill")
    assert -signal.SIGKILL == code
    assert [] == started(lines)
    with LMDBSaver(tmp_path / "store") as saver:
        assert ["1"] == [info.thread_id for info in saver.threads()]

    code, result, lines = run("short", tmp_path)

    assert (0, "1") == (code, result)
    # It is not begun anew: there is one checkpoint of the input.
    with LMDBSaver(tmp_path / "store") as saver:
        sources = [saved.checkpoint.source for saved in saver.history(Address("1"))]
    assert 1 == sources.count("input")


def test_forks_survive_kills() -> None:
    """The past that was changed, and what came of it, whenever the process was
    killed.
    """
    report = crash_everywhere(f"{FLOWS}:forking", modules=(FLOWS,), at_most=16)

    print(report)
    assert report.ok, report
