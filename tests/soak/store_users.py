"""A process of the soak of one store: ``python -m tests.soak.store_users FOLDER INDEX
SEED``.

Its main thread commits, and backs up and compacts now and then; another OS thread
commits too, and the others read what any process writes. The last process only reads.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention, StoreOptions
from flowpregel.errors import StoreBusyError, StoreError
from tests.runs.stores import commit
from tests.soak.board import PROCESSES, SLOTS, THREADS, Board

LOOKER: Final = PROCESSES - 1
"""The process that only reads."""
WRITERS: Final = 2
"""The OS threads of each other process that commit, its main thread first."""
_COMPACT, _BACKUP = 0.1, 0.05
"""The shares of the main thread's turns in which it does these."""
_HISTORY = 0.02
"""The share of reads that read all."""


def thread_of(slot: int) -> str:
    """Return the name of the store's thread that belongs to a slot."""
    return f"slot {slot}"


class StoreUser:
    """What a process does with the store.

    Args:
        folder: Of the soak.
        index: Which process it is.
        seed: Decides what it reads, and when it compacts and backs up.
    """

    def __init__(self, folder: Path, index: int, seed: str) -> None:
        self._folder = folder
        self._index = index
        self._luck = random.Random(seed)
        self._seed = seed
        self._board = Board(folder)
        self._stop = threading.Event()
        self._saver: LMDBSaver

    def run(self) -> None:
        """Use the store until SIGTERM, or until another file has taken its place."""
        # Who starts a soak in the background has it ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        looks = self._index == LOOKER
        retention = None if looks else Retention(keep_last=20)
        options = StoreOptions(lock_timeout=30)
        with LMDBSaver(
            self._folder / "store", readonly=looks, retention=retention, options=options
        ) as self._saver:
            others = [
                threading.Thread(target=self._until_stopped, args=(number,))
                for number in range(1, THREADS)
            ]
            for thread in others:
                thread.start()
            self._board.set_ready(self._index, True)
            try:
                self._until_stopped(0)
            finally:
                self._stop.set()
                for thread in others:
                    thread.join()

    def _until_stopped(self, number: int) -> None:
        writes = self._index != LOOKER and number < WRITERS
        work = self._writer(number) if writes else self._reader(number)
        while not self._stop.is_set():
            try:
                work()
            except KeyboardInterrupt:
                self._board.add(self._index, number, "interrupts")
            except (StoreError, OSError) as error:
                if "another file has replaced it" not in str(error):
                    self._board.complain(f"process {self._index}.{number}: {error!r}")
                self._stop.set()

    # ------------------------------------------------ writing

    def _writer(self, number: int) -> Callable[[], None]:
        slot = self._index * WRITERS + number

        def work() -> None:
            if number == 0 and self._luck.random() < _COMPACT:
                self._compact()
            elif number == 0 and self._luck.random() < _BACKUP:
                self._back_up()
            acknowledged = self._board.acknowledged(slot)
            newest = self._newest(self._saver, slot)
            if newest < acknowledged:
                self._board.complain(f"slot {slot}: {newest} is left of {acknowledged}")
            for step in range(newest + 1, newest + 6):
                commit(self._saver, step, thread=thread_of(slot))
                self._board.acknowledge(slot, step)
                self._board.add(self._index, number, "commits")

        return work

    def _compact(self) -> None:
        try:
            self._saver.compact()
        except StoreBusyError:
            self._board.add(self._index, 0, "refusals")
        else:
            self._board.add(self._index, 0, "compactions")

    def _back_up(self) -> None:
        """Back the store up, and see that the backup has all that was acknowledged
        before.
        """
        place = self._folder / "backups" / f"{self._seed}.{self._luck.random()}"
        acknowledged = [self._board.acknowledged(slot) for slot in range(SLOTS)]
        try:
            self._saver.backup(place)
            with LMDBSaver(place) as backup:
                for slot, least in enumerate(acknowledged):
                    if (found := self._newest(backup, slot)) < least:
                        self._board.complain(
                            f"slot {slot}: a backup has {found} of {least}"
                        )
                for problem in backup.verify().problems:
                    self._board.complain(f"a backup: {problem}")
            self._board.add(self._index, 0, "backups")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------ reading

    @staticmethod
    def _newest(saver: LMDBSaver, slot: int) -> int:
        found = saver.load(Address(thread_of(slot)))
        return -1 if found is None else found.checkpoint.step

    def _reader(self, number: int) -> Callable[[], None]:
        luck = random.Random(f"{self._seed}.{number}")

        def work() -> None:
            slot = luck.randrange(SLOTS)
            least = self._board.acknowledged(slot)
            if luck.random() < _HISTORY:
                address = Address(thread_of(slot))
                steps = [each.checkpoint.step for each in self._saver.history(address)]
                if steps != [
                    *range(max(steps, default=-1), min(steps, default=0) - 1, -1)
                ]:
                    self._board.complain(f"slot {slot} has gaps: {steps}")
                found = max(steps, default=-1)
                self._board.add(self._index, number, "histories")
            else:
                found = self._newest(self._saver, slot)
            if found < least:
                self._board.complain(f"slot {slot}: {found} was read after {least}")
            self._board.add(self._index, number, "reads")

        return work


def main(folder: str, index: str, seed: str) -> int:
    """Use the store, and return the exit status."""
    with suppress(KeyboardInterrupt):
        StoreUser(Path(folder), int(index), seed).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
