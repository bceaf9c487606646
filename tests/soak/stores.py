"""``python -m tests.soak.stores --minutes 30 --seed 1``: one store, several processes,
no mercy.

Two processes write and read it, each with several OS threads, and one only reads. They
are killed, stopped, interrupted by Ctrl-C, compact it and back it up meanwhile; and now
and then a backup is put in the place of the store while they have it open. What was
acknowledged is kept on a board outside of the store, which survives all of them:

* a read that begins after an acknowledgement sees it, in whichever process;
* whoever opens the store again finds all that was acknowledged, without gaps;
* a backup holds all that was acknowledged before it began; and what is put over a store
  in use is not mixed with it.

The exit status is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from tests.soak.board import COUNTED, PROCESSES, SLOTS, Board
from tests.soak.store_users import LOOKER, thread_of

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 60.0
"""Seconds in which a process has to have started, taken a Ctrl-C, or ended when it was
asked to.
"""


class StoreSoak:
    """Starts the processes that use a store, and does things to them.

    Args:
        folder: Where the store, its backups and the board are.
        seed: Decides what is done; timing decides the rest.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._store = folder / "store"
        self._luck = random.Random(seed)
        self._seed = seed
        self._users: dict[int, subprocess.Popen[bytes]] = {}
        self._restored = 0
        self.board = Board(folder)
        self.counts: Counter[str] = Counter()
        (folder / "backups").mkdir()
        with LMDBSaver(self._store):
            pass

    def run(self, seconds: float) -> bool:
        """Go on for so long; print what was done and found; return whether all promises
        held.
        """
        events = [
            self._kill,
            self._kill,
            self._interrupt,
            self._interrupt,
            self._interrupt,
        ]
        events += [self._stop, self._leave_one_alone, self._restore]
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self._start_all()
                time.sleep(self._luck.uniform(0.05, 1.0))
                self._luck.choice(events)()
            self._end(self._users)
            self._look()
        finally:
            for process in self._users.values():
                process.kill()
                process.wait()
        return self._report()

    # ------------------------------------------------ processes

    def _start_all(self) -> None:
        for index in range(PROCESSES):
            process = self._users.get(index)
            if process is None or process.poll() is not None:
                self._start(index)

    def _start(self, index: int) -> None:
        self.board.set_ready(index, False)
        self.counts["processes started"] += 1
        seed = f"{self._seed}.{self.counts['processes started']}"
        command = [sys.executable, "-m", "tests.soak.store_users", str(self._folder)]
        self._users[index] = subprocess.Popen([*command, str(index), seed], cwd=ROOT)

    def _is_ready(self, index: int) -> bool:
        """Wait until a process has the store open; return whether it lives then."""
        process = self._users[index]
        self._wait(
            lambda: self.board.is_ready(index) or process.poll() is not None,
            f"process {index} did not open the store",
        )
        return process.poll() is None

    def _wait(self, condition: Callable[[], bool], problem: str) -> bool:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                self.board.complain(f"{problem} within {PATIENCE:.0f} s")
                return False
            time.sleep(0.002)
        return True

    def _end(self, indices: Iterable[int]) -> None:
        """Have processes close the store and end."""
        asked = [self._users[index] for index in indices if self._is_ready(index)]
        for process in asked:
            process.terminate()
        for process in asked:
            if not self._wait(partial(_has_ended, process), "one did not end"):
                process.kill()
                process.wait()

    # ------------------------------------------------ what is done to them

    def _kill(self) -> None:
        index = self._luck.randrange(PROCESSES)
        self._users[index].kill()
        self._users[index].wait()
        self.counts["processes killed"] += 1

    def _interrupt(self) -> None:
        """Press Ctrl-C in one that writes, and wait until it goes on."""
        index = self._luck.randrange(LOOKER)
        if not self._is_ready(index):
            return
        time.sleep(self._luck.uniform(0.0, 0.05))
        before = self.board.count(index, "interrupts")
        with suppress(ProcessLookupError):
            self._users[index].send_signal(signal.SIGINT)
        process = self._users[index]
        self._wait(
            lambda: (
                self.board.count(index, "interrupts") > before
                or process.poll() is not None
            ),
            "Ctrl-C was not taken",
        )
        commits = self.board.count(index, "commits")
        self._wait(
            lambda: (
                self.board.count(index, "commits") > commits
                or process.poll() is not None
            ),
            "there was no commit after a Ctrl-C",
        )

    def _stop(self) -> None:
        """Stop one for a moment, wherever it is."""
        process = self._luck.choice([*self._users.values()])
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._luck.uniform(0.0, 0.2))
            process.send_signal(signal.SIGCONT)
        self.counts["stops"] += 1

    def _leave_one_alone(self) -> None:
        """End all but one, which can compact the store then, under its own load."""
        alone = self._luck.randrange(LOOKER)
        self._end([index for index in self._users if index != alone])
        before = self.board.count(alone, "compactions")
        if self._is_ready(alone):
            process = self._users[alone]
            self._wait(
                lambda: (
                    self.board.count(alone, "compactions") > before
                    or process.poll() is not None
                ),
                "one that was alone could not compact the store",
            )

    def _restore(self) -> None:
        """Put a backup in the place of the store that they all have open."""
        if not all(self._is_ready(index) for index in self._users):
            return
        self._restored += 1
        backup = self._folder / "backups" / f"restored {self._restored}"
        with LMDBSaver(
            self._store, options=StoreOptions(lock_timeout=PATIENCE)
        ) as saver:
            saver.backup(backup)
        os.replace(backup / "data.mdb", self._store / "data.mdb")
        for index in self._users:
            if index != LOOKER:
                self._wait(
                    partial(_has_ended, self._users[index]),
                    "one committed to a store that another had replaced",
                )
        self._end([LOOKER])
        self._look(acknowledged=False)
        self.counts["backups put over the store in use"] += 1

    # ------------------------------------------------ the end

    def _look(self, *, acknowledged: bool = True) -> None:
        """See that the store is whole; note what it holds, if that is not what it has
        to hold.
        """
        with LMDBSaver(self._store) as saver:
            for problem in saver.verify().problems:
                self.board.complain(f"verify: {problem}")
            for slot in range(SLOTS):
                found = saver.load(Address(thread_of(slot)))
                step = -1 if found is None else found.checkpoint.step
                if acknowledged and step < self.board.acknowledged(slot):
                    self.board.complain(f"slot {slot} holds {step} at the end")
                self.board.acknowledge(slot, step)

    def _report(self) -> bool:
        totals = {
            name: sum(self.board.count(index, name) for index in range(PROCESSES))
            for name in COUNTED
        }
        for what, count in sorted({**self.counts, **totals}.items()):
            print(f"{count:>10,}  {what}")
        found = self.board.complaints()
        print(f"{len(found):>10,}  violations", *found[:20], sep="\n", flush=True)
        return not found and min(totals["commits"], totals["reads"]) > 0


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def soak_stores(folder: Path, *, seconds: float, seed: int) -> bool:
    """Soak for so many seconds in *folder*; return whether all promises held."""
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "the key of a soak")
    return StoreSoak(folder, seed).run(seconds)


def main(arguments: list[str] | None = None) -> int:
    """Soak, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.stores", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flowpregel-stores-") as folder:
        return (
            0
            if soak_stores(Path(folder), seconds=60 * asked.minutes, seed=asked.seed)
            else 1
        )


if __name__ == "__main__":
    sys.exit(main())
