"""``python -m tests.soak.lost_answers --minutes 10 --seed 1``: commits are cut off, and
made once.

Clients do random operations on the same items, threads and signals, in rounds. After
each round a checker looks for an order in which all of them can have happened, one
after the other:

* in PostgreSQL the clients are behind a proxy that cuts connections as they commit:
  before the server gets the commit, which may also arrive later, after it has
  answered, or in between;
* in LMDB they are processes that are killed at random instants.

The exit status is 1 if a history has no such order.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.cutting_proxy import Cut, cutting, delivering
from tests.postgres_server import Server, serving, why_not
from tests.soak.histories import HistoryClient, histories_in, violations_in

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = 4
OPERATIONS: Final = 12
"""Of each client in a round: histories stay short."""
_CUT_SHARE: Final = 0.3
"""The share of commits that are cut off."""


class Rounds:
    """Runs rounds of clients, and checks the history of each.

    Args:
        folder: Where the clients write down what they do.
        seed: Decides that, and what is cut off; timing decides the rest.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self.luck = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def run(self, seconds: float, clients: Callable[[str, list[Path]], None]) -> None:
        """Run rounds for so long; *clients* is given a round's name and the files to
        write.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.counts["rounds"] += 1
            name = f"{self._seed}.{self.counts['rounds']}"
            files = [self._folder / f"{name}.{number}" for number in range(CLIENTS)]
            clients(name, files)
            files = [file for file in files if file.exists()]
            self.violations += violations_in(files)
            for history in histories_in(files).values():
                self.counts["operations"] += len(history)
                unknown = sum(each.returned is None for each in history)
                self.counts["operations of unknown outcome"] += unknown
            for file in files:
                file.unlink()

    def report(self, what: str) -> bool:
        """Print what was done and found; return whether all histories have an order."""
        print(what)
        for name, count in sorted(self.counts.items()):
            print(f"{count:>10,}  {name}")
        found = len(self.violations)
        print(f"{found:>10,}  violations", *self.violations[:3], sep="\n", flush=True)
        return not found


def soak_postgres(folder: Path, server: Server, *, seconds: float, seed: int) -> bool:
    """Cut connections for so many seconds; return whether all histories have an
    order.
    """
    rounds = Rounds(folder, seed)
    cuts = random.Random(seed)

    def decide() -> Cut | None:
        if cuts.random() > _CUT_SHARE:
            return None
        cut = cuts.choice([*Cut])
        rounds.counts[f"commits cut off {cut.name.lower()}"] += 1
        return cut

    def clients(name: str, files: list[Path]) -> None:
        threads = [
            threading.Thread(
                target=HistoryClient(proxy.url, file, f"{seed} {file.name}").run,
                args=(name, OPERATIONS),
            )
            for file in files
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with cutting(server, decide) as proxy, delivering(proxy, seed):
        rounds.run(seconds, clients)
    return rounds.report("PostgreSQL, connections cut as they commit")


def soak_lmdb(folder: Path, *, seconds: float, seed: int) -> bool:
    """Kill processes for so many seconds; return whether all histories have an
    order.
    """
    rounds = Rounds(folder, seed)

    def clients(name: str, files: list[Path]) -> None:
        words = [str(folder / "store")]
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.soak.histories",
                    *words,
                    str(file),
                    name,
                    "60",
                ],
                cwd=ROOT,
            )
            for file in files
        ]
        for process, file in zip(processes, files, strict=True):
            while process.poll() is None and not file.exists():
                time.sleep(0.002)
        time.sleep(rounds.luck.uniform(0.0, 0.1))
        for process in processes:
            process.kill()
            process.wait()
            rounds.counts["processes killed"] += process.returncode != 0

    rounds.run(seconds, clients)
    return rounds.report("LMDB, processes killed")


def main(arguments: list[str] | None = None) -> int:
    """Soak, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.lost_answers", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "the key of a soak")
    seconds, holds = 30 * asked.minutes, []
    with tempfile.TemporaryDirectory(prefix="flowpregel-answers-") as name:
        folder = Path(name)
        holds.append(soak_lmdb(folder, seconds=seconds, seed=asked.seed))
        if reason := why_not():
            print(f"PostgreSQL is left out: {reason}")
        else:
            with serving() as server:
                holds.append(
                    soak_postgres(folder, server, seconds=seconds, seed=asked.seed)
                )
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
