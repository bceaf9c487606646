"""A queue beside its peers: ``python -m tests.benchmarks.queues [--runs 1000]``.

For flowpregel, huey on SQLite and DBOS's queue on SQLite, in one run: how many runs are
enqueued a second, how many one process begins and ends a second, and what becomes of
them when that process is killed with SIGKILL half-way and another one starts. A run is
lost if its call was never made, and its call was made twice if the process died before
it was recorded. The first row is the price of an enqueued run in commits.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowpregel import LMDBSaver
from flowpregel.checkpoint.base import Batch
from tests.benchmarks.queue_programs import LINES, SIDES, note_run
from tests.benchmarks.work import folder, seconds_of

PATIENCE: Final = 20.0
"""Seconds without a new line after which the remaining runs are lost."""
PROGRAM: Final = (sys.executable, "-m", "tests.benchmarks.queue_programs")


@dataclass(frozen=True, kw_only=True)
class Drained:
    """A queue that was drained."""

    per_second: float
    """The runs between the first line and the last one."""
    pause: float = 0.0
    """Seconds from the kill to the next line, the start of the process included."""
    lost: int = 0
    """The number of runs that were never made."""
    twice: int = 0
    """The number of calls that were made again."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure the queues, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.queues")
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--side", choices=[*SIDES], help="measure this queue only")
    options = parser.parse_args(words)
    ratio = commits_of_enqueue()
    sys.stdout.write(f"one enqueued run takes {ratio:.2f} commits\n\n")
    sys.stdout.write(
        "| queue | enqueued a second | run a second | run a second, killed half-way | "
        "pause after the kill | lost | made twice |\n|---|---|---|---|---|---|---|\n"
    )
    for side in [options.side] if options.side else SIDES:
        if side != "flowpregel" and not importlib.util.find_spec(side.lower()):
            sys.stdout.write(f"| {side} is not installed |\n")
            continue
        sys.stdout.write(row_of(side, options.runs) + "\n")
        sys.stdout.flush()
    return 0


def row_of(side: str, runs: int) -> str:
    """Measure a queue, and return its row."""
    with folder() as path:
        seconds = enqueue(side, path, runs)
        whole = drain(side, path, runs, kill=False)
    with folder() as path:
        enqueue(side, path, runs)
        killed = drain(side, path, runs, kill=True)
    return (
        f"| {side} | {runs / seconds:,.0f} | {whole.per_second:,.0f} | "
        f"{killed.per_second:,.0f} | {killed.pause:.1f} s | {killed.lost} | "
        f"{killed.twice} |"
    )


def enqueue(side: str, path: Path, runs: int) -> float:
    """Enqueue runs in a process of its own, and return the seconds."""
    words = [*PROGRAM, side, "enqueue", str(path), str(runs)]
    printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return float(printed.stdout.split()[-1])


def drain(side: str, path: Path, runs: int, *, kill: bool) -> Drained:
    """Run what is enqueued, and kill the process half-way if *kill*."""
    words = [*PROGRAM, side, "work", str(path)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    killed_at = 0.0
    try:
        if kill:
            wait_for(path, runs // 2)
            process.kill()
            process.wait()
            killed_at = time.time()
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        wait_for(path, runs)
    finally:
        process.kill()
        process.wait()
    lines = lines_in(path)
    times = sorted(moment for _, moment in lines)
    made = {number for number, _ in lines}
    after = [moment for moment in times if moment > killed_at]
    return Drained(
        per_second=(len(times) - 1) / (times[-1] - times[0]),
        pause=after[0] - killed_at if kill and after else 0.0,
        lost=runs - len(made),
        twice=len(lines) - len(made),
    )


def wait_for(path: Path, runs: int) -> None:
    """Wait until so many runs have been made, or nothing happens for a while."""
    made, deadline = 0, time.monotonic() + PATIENCE
    while made < runs and time.monotonic() < deadline:
        time.sleep(0.01)
        now_made = len({number for number, _ in lines_in(path)})
        if now_made > made:
            made, deadline = now_made, time.monotonic() + PATIENCE


def lines_in(path: Path) -> list[tuple[int, float]]:
    """Return the number and the time of each call."""
    text = ""
    with suppress(FileNotFoundError):
        text = Path(path, LINES).read_text("ascii")
    lines = [line.split() for line in text.splitlines(keepends=True) if "\n" in line]
    return [(int(number), float(moment)) for number, moment in lines]


# ---------------------------------------------------------------- commits


class TimedSaver(LMDBSaver):
    """A saver that measures its commits."""

    seconds: float = 0.0
    """The time of all commits."""
    count: int = 0
    """The number of commits."""

    def commit(self, batches: Sequence[Batch]) -> None:
        """Commit batches, and add the time to *seconds*."""
        begun = time.perf_counter()
        super().commit(batches)
        self.seconds += time.perf_counter() - begun
        self.count += 1


def commits_of_enqueue(count: int = 300) -> float:
    """Return the time of an enqueued run, in commits of what it stores."""
    with folder() as path, TimedSaver(path / "store") as saver:
        flow = note_run.copy({"checkpointer": saver})
        flow.enqueue(str(path), 0, id="first")
        saver.seconds, saver.count = 0.0, 0

        def all_runs() -> None:
            for number in range(count):
                flow.enqueue(str(path), number, id=f"run-{number}")

        seconds = seconds_of(all_runs)
        assert saver.count == count
        return seconds / saver.seconds


if __name__ == "__main__":
    raise SystemExit(main())
