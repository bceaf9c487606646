"""The live view on a terminal: below what the program and its tasks print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.screens import run_on_terminal

PROGRAM = """
import sys
import time

from flowpregel.func import entrypoint, task


@task
def work(n: int) -> int:
    print(f"line {n} of a task")
    print(f"error {n} of a task", file=sys.stderr)
    time.sleep(0.005)
    return n


@entrypoint(executor="EXECUTOR")
def flow(count: int) -> int:
    print("the body begins")
    return sum(future.result() for future in work.map(range(count)))


if __name__ == "__main__":
    print(flow.run(200, progress=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_what_is_printed_stands_above_the_view(executor: str, tmp_path: Path) -> None:
    """Each line once, and one view below."""
    lines = run_on_terminal(PROGRAM.replace("EXECUTOR", executor), tmp_path)

    for n in range(200):
        assert 1 == sum(f"line {n} of a task" in line for line in lines), n
        assert 1 == sum(f"error {n} of a task" in line for line in lines), n
    assert 1 == lines.count("the body begins")
    (view,) = (number for number, line in enumerate(lines) if line.startswith("flow: "))
    assert "  work: 200 done," in lines[view + 1]
    assert not any("of a task" in line for line in lines[view:])
    assert ["19900"] == [line for line in lines[view + 2 :] if line]


SIDE_BY_SIDE = """
import threading

from flowpregel.func import entrypoint, task

both = threading.Barrier(2)


@task
def work(n: int) -> int:
    both.wait()
    print(f"line {n} of a task")
    return n


@entrypoint(executor="threads")
def first(n: int) -> int:
    return work(n).result()


@entrypoint(executor="threads")
def second(n: int) -> int:
    return work(n).result()


handles = [first.start(1, progress=True), second.start(2, progress=True)]
print([handle.result() for handle in handles])
"""


@pytest.mark.slow
def test_runs_side_by_side_share_the_terminal(tmp_path: Path) -> None:
    """Each has its view, once; rich has one display for a terminal."""
    lines = run_on_terminal(SIDE_BY_SIDE, tmp_path)

    assert 1 == sum(line.startswith("first: ") for line in lines)
    assert 1 == sum(line.startswith("second: ") for line in lines)
    assert 2 == sum("of a task" in line for line in lines)
    assert 1 == lines.count("[1, 2]")


@pytest.mark.slow
def test_a_terminal_without_rich_gets_lines(tmp_path: Path) -> None:
    """Nothing is written over, so nothing that was printed is erased."""
    without = "import sys; sys.modules['rich.live'] = None\n"
    lines = run_on_terminal(without + PROGRAM.replace("EXECUTOR", "threads"), tmp_path)

    for n in range(200):
        assert 1 == "\n".join(lines).count(f"line {n} of a task"), n
    assert any("flow: " in line and "work: 200 done" in line for line in lines)


@pytest.mark.slow
def test_what_is_printed_into_a_file_stays_there(tmp_path: Path) -> None:
    """Only what goes to the terminal is put above the view."""
    program = PROGRAM.replace("EXECUTOR", "threads").replace(
        'if __name__ == "__main__":',
        'if __name__ == "__main__":\n    sys.stdout = open("o", "w")',
    )
    lines = run_on_terminal(program, tmp_path)

    printed = (tmp_path / "o").read_text().splitlines()
    assert 200 == sum("line" in line for line in printed)
    assert not any("line" in line for line in lines)
