"""What is done to a running attempt: kills, Ctrl-C, stops, a full disk; and to the
store's disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

_LONGEST_LIFE = 1.5
_FULL = 0.1


def workers_of(pid: int) -> list[int]:
    """Return the workers that *pid* has started; it has other children too."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        found = [
            child for each in tasks for child in (each / "children").read_text().split()
        ]
        commands = {
            child: Path(f"/proc/{child}/cmdline").read_bytes() for child in found
        }
    except OSError:
        return []
    return [
        int(child) for child, command in commands.items() if b"popen_loky" in command
    ]


class Faults:
    """Disturbs an attempt at random, and counts what was done.

    Args:
        luck: Chooses.
        store: The store's folder.
    """

    def __init__(self, luck: random.Random, store: Path) -> None:
        self._luck = luck
        self._store = store
        self.counts: Counter[str] = Counter()

    def disturb(self, pid: int) -> None:
        """Do something to the attempt *pid*; returns soon, also when it has ended."""
        kinds = [
            self.kill,
            self.kill,
            self.kill_a_worker,
            self.stop,
            self.fill_the_disk,
        ]
        kinds += [self.interrupt, self.interrupt]
        with contextlib.suppress(ProcessLookupError):
            self._luck.choice(kinds)(pid)

    def pause(self) -> float:
        """Return for how long an attempt is left alone, in seconds."""
        return _LONGEST_LIFE * self._luck.random() ** 2

    def kill(self, pid: int) -> None:
        """Kill the coordinator."""
        os.kill(pid, signal.SIGKILL)
        self.counts["coordinators killed"] += 1

    def interrupt(self, pid: int) -> None:
        """Press Ctrl-C in the coordinator."""
        os.kill(pid, signal.SIGINT)
        self.counts["Ctrl-C pressed"] += 1

    def kill_a_worker(self, pid: int) -> None:
        """Kill one of its workers, if it has any."""
        if workers := workers_of(pid):
            os.kill(self._luck.choice(workers), signal.SIGKILL)
            self.counts["workers killed"] += 1

    def stop(self, pid: int) -> None:
        """Stop the coordinator for a moment, wherever it is."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._luck.uniform(0, _FULL))
        os.kill(pid, signal.SIGCONT)
        self.counts["stops"] += 1

    def fill_the_disk(self, pid: int) -> None:
        """Let the coordinator write to the first part of the store's file only, for a
        moment.
        """
        size = (
            (self._store / "data.mdb").stat().st_size
            if self._store.exists()
            else 1 << 20
        )
        size = int(size * self._luck.uniform(0.3, 1.0))
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        time.sleep(self._luck.uniform(0, _FULL))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.counts["moments of a full disk"] += 1


class Disk:
    """A file system of our own, which can be made read-only; none where that is not
    allowed.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.is_own = os.geteuid() == 0 and self._mount(
            "-t", "tmpfs", "-o", "size=512m", "tmpfs"
        )

    def _mount(self, *arguments: str) -> bool:
        command = ["mount", *arguments, str(self.place)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def read_only(self, yes: bool) -> bool:
        """Make it so, or not any more; return whether that worked."""
        return self.is_own and self._mount("-o", "remount,ro" if yes else "remount,rw")

    def close(self) -> None:
        """Take it away."""
        if self.is_own:
            subprocess.run(["umount", "-l", str(self.place)], check=True)
