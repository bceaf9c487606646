"""``python -m tests.soak.queue --runs 10000``: a queue under random kills.

Runs with random priorities are enqueued, and three processes of ``flowpregel work``
drain the queue. Again and again one of them is killed at a random moment, and another
one starts. In the end each run must be done with the right result. Each run writes the
moment of its beginning, so the order is checked, too: a run may begin before one with a
greater priority only if a process had taken it before a kill. The exit status is 1 if a
promise did not hold.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flowpregel import LMDBSaver
from tests.runs import queue_flows

PROCESSES: Final = 3
JOBS: Final = 4
PRIORITIES: Final = 3


def main(words: Sequence[str] | None = None) -> int:
    """Run the soak, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.queue")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument(
        "--kill-every", type=float, default=5.0, help="mean seconds between two kills"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        problems = drain(Path(folder), options.runs, options.kill_every, options.seed)
    for problem in problems[:20]:
        sys.stdout.write(f"VIOLATION: {problem}\n")
    sys.stdout.write(f"{len(problems)} violations\n")
    return min(1, len(problems))


def drain(folder: Path, count: int, kill_every: float, seed: int) -> list[str]:
    """Enqueue *count* runs, drain the queue under kills, and return what is wrong."""
    chance = random.Random(seed)
    store, notes = str(folder / "store"), str(folder / "notes")
    begun = time.monotonic()
    priorities = enqueue(store, notes, count, chance)
    seconds = time.monotonic() - begun
    sys.stdout.write(f"enqueued {count} runs, {count / seconds:.0f} a second\n")
    begun = time.monotonic()
    kills = work_under_kills(store, kill_every, chance)
    seconds = time.monotonic() - begun
    sys.stdout.write(
        f"done in {seconds:.0f} s, {count / seconds:.0f} a second, {kills} kills\n"
    )
    lines = [int(line) for line in Path(notes).read_text("utf-8").split()]
    repeated = len(lines) - len({*lines})
    sys.stdout.write(f"{repeated} calls were made twice, by runs that were killed\n")
    return [
        *unfinished(store, count),
        *disordered(lines, priorities, most=repeated + kills * JOBS),
    ]


def enqueue(store: str, notes: str, count: int, chance: random.Random) -> list[int]:
    """Enqueue runs that note their number, and return the priority of each."""
    priorities = [chance.randrange(PRIORITIES) for _ in range(count)]
    with LMDBSaver(store) as saver:
        flow = queue_flows.note.copy({"checkpointer": saver})
        for number, priority in enumerate(priorities):
            name = f"run-{number}"
            flow.enqueue(notes, str(number), id=name, priority=priority)
    return priorities


def work_under_kills(store: str, kill_every: float, chance: random.Random) -> int:
    """Drain the queue with processes that are killed, and return the number of
    kills.
    """
    kills = 0
    processes = [start_work(store) for _ in range(PROCESSES)]
    while any(process.poll() is None for process in processes):
        victim = processes.pop(chance.randrange(PROCESSES))
        try:
            victim.wait(chance.expovariate(1 / kill_every))
        except subprocess.TimeoutExpired:
            victim.kill()
            victim.wait()
            kills += 1
            processes.append(start_work(store))
        else:
            # The queue is empty for this process; the others may still run something.
            processes.append(victim)
    return kills


def start_work(store: str) -> subprocess.Popen[bytes]:
    """Start a process that ends when nothing is due."""
    words = ["work", "--store", store, "--jobs", str(JOBS), "--until-empty"]
    return subprocess.Popen(
        [sys.executable, "-m", "flowpregel", *words], stdout=subprocess.DEVNULL
    )


def unfinished(store: str, count: int) -> list[str]:
    """Return what is wrong with the runs in the store."""
    with LMDBSaver(store, readonly=True) as saver:
        statuses = {info.thread_id: info.status for info in saver.threads()}
    problems = []
    for number in range(count):
        status = statuses.get(f"run-{number}", "lost")
        if status != "done":
            problems.append(f"run-{number} is {status}")
    return problems


def disordered(lines: Sequence[int], priorities: Sequence[int], most: int) -> list[str]:
    """Return the runs that began after one of a lower priority, if there are more than
    *most*, which processes had taken when they were killed, or at the same time.
    """
    late = []
    lowest = PRIORITIES
    for number in dict.fromkeys(lines):
        if priorities[number] > lowest:
            late.append(f"run-{number} began after a run of priority {lowest}")
        lowest = min(lowest, priorities[number])
    return late if len(late) > most + PROCESSES * JOBS else []


if __name__ == "__main__":
    raise SystemExit(main())
