"""``python -m tests.soak.millions``: a million items through `imap`, in flat memory,
killed.

First as many as a hundredth, a tenth and all of the items, undisturbed: what each takes
of time and memory, beside joblib where it is installed. Then all of them in a program
that is killed again and again: the sum has to be exact, and only chunks that were in
flight, or not on disk yet, run twice. The exit status is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Final

from flowpregel import entrypoint, task

MOST_GROWTH: Final = 16.0
"""Megabytes that all of the items may take more than a hundredth of them."""
MOST_JOBLIB: Final = 1.3
"""Times as long as joblib that they may take."""
STEPS: Final = 50
"""In how many parts a child tells how far it is."""


@task
def square(n: int) -> int:
    """Return the square of *n*."""
    return n * n


@task
def noted_square(n: int, notes: str, chunksize: int) -> int:
    """Return the square of *n*; the first of a chunk leaves a note in a file that it
    has run.
    """
    if n % chunksize == 0:
        with open(notes, "a") as file:
            file.write(f"{n}\n")
    return n * n


@dataclass(frozen=True)
class Work:
    """What a child does."""

    store: str
    items: int
    chunksize: int
    notes: str = ""
    """Where it notes which chunks run, whose results come without order; empty:
    nowhere.
    """

    def command(self) -> list[str]:
        """Return how the child is started."""
        given = [self.store, self.items, self.chunksize, self.notes]
        return [
            sys.executable,
            "-m",
            "tests.soak.millions",
            "--child",
            *map(str, given),
        ]


def run(work: Work) -> None:
    """Do the work of a child, and print how far it is: then the sum, and its memory in
    MB.
    """

    @entrypoint(checkpointer=work.store)
    def total(count: int) -> tuple[int, int]:
        seen = added = 0
        size, numbers = work.chunksize, range(count)
        stream = square.imap(numbers, chunksize=size)
        if work.notes:
            given = repeat(work.notes, count), repeat(size, count)
            stream = noted_square.imap(numbers, *given, chunksize=size, ordered=False)
        for result in stream:
            seen, added = seen + 1, added + result
            if seen % max(count // STEPS, 1) == 0:
                print(seen, flush=True)
        return seen, added

    @entrypoint()
    def warm_up(count: int) -> int:
        return sum(future.result() for future in square.map(range(count)))

    warm_up.run(8)  # the workers are started, as those of joblib are
    began = time.monotonic()
    seen, added = total.run(work.items, id="millions")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        "done",
        seen,
        added,
        f"{peak:.1f}",
        f"{time.monotonic() - began:.3f}",
        flush=True,
    )


def measured(work: Work) -> tuple[bool, float, float]:
    """Return whether a child came to the right sum, its megabytes and its seconds."""
    done = subprocess.run(work.command(), stdout=subprocess.PIPE, text=True, check=True)
    _, seen, added, peak, seconds = done.stdout.splitlines()[-1].split()
    return is_right(work, int(seen), int(added)), float(peak), float(seconds)


def is_right(work: Work, seen: int, added: int) -> bool:
    """Return whether each item was counted once."""
    n = work.items
    return (seen, added) == (n, (n - 1) * n * (2 * n - 1) // 6)


def killed(work: Work, kills: int, chance: random.Random) -> tuple[bool, int]:
    """Kill a child *kills* times, each time further on, and let it end then.

    Returns:
        Whether it came to the right sum, and how many chunks ran more than once.
    """
    for part in sorted(chance.sample(range(1, STEPS - 1), kills)):
        process = subprocess.Popen(work.command(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("done") or int(line) >= part * work.items // STEPS:
                process.kill()
                break
        process.wait()
        process.stdout.close()
    right, _, _ = measured(work)
    ran = Counter(Path(work.notes).read_text().split())
    return right, sum(count > 1 for count in ran.values())


def joblib_seconds(items: int, chunksize: int) -> float:
    """Return how long joblib takes for the same chunks; its workers have been started
    before.
    """
    from joblib import Parallel, delayed

    with Parallel(n_jobs=-1, batch_size=chunksize, return_as="generator") as parallel:
        sum(parallel(delayed(square.func)(n) for n in range(2 * chunksize)))
        began = time.monotonic()
        sum(parallel(delayed(square.func)(n) for n in range(items)))
        return time.monotonic() - began


def main(items: int, chunksize: int, kills: int, seed: int) -> bool:
    """Do all of it; return whether every promise held."""
    holds, peaks, seconds = True, [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, count in enumerate((items // 100, items // 10, items)):
            right, peak, seconds = measured(
                Work(f"{folder}/{number}", count, chunksize)
            )
            print(
                f"{count:>10,} items: {peak:6.1f} MB at most, {seconds:7.2f} s",
                flush=True,
            )
            holds, peaks = holds and right, [*peaks, peak]
        if peaks[-1] > peaks[0] + MOST_GROWTH:
            print(f"! memory grew by more than {MOST_GROWTH} MB")
            holds = False
        if find_spec("joblib") is None:
            print("joblib is not installed: it is not compared")
        else:
            theirs = joblib_seconds(items, chunksize)
            print(
                f"joblib: {theirs:.2f} s; {seconds / theirs:.2f} times as long "
                f"({MOST_JOBLIB})"
            )
            holds = holds and seconds <= MOST_JOBLIB * theirs
        work = Work(f"{folder}/k", items, chunksize, notes=f"{folder}/ran")
        right, twice = killed(work, kills, random.Random(seed))
        print(
            f"killed {kills} times: right={right}, {twice:,} chunks ran more than once"
        )
        return holds and right


if __name__ == "__main__":
    if "--child" in sys.argv:
        store, count, size, notes = sys.argv[2:]
        run(Work(store, int(count), int(size), notes))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--chunksize", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(not main(given.items, given.chunksize, given.kills, given.seed))
