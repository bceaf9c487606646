"""Who holds something: a process that can be told apart from all others, dead or alive."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: its host, the boot of that host, its pid, and when it started.

    A pid is used again after its process ended, so the start time belongs to
    it; and pids start anew with each boot.
    """

    host: str
    boot: str
    pid: int
    start: int
    """Clock ticks since the boot, 0 where the system does not tell."""

    def is_alive(self) -> bool:
        """Return whether the process still runs, as far as this host can know.

        A process of another host counts as alive: nothing here can tell.
        """
        here = this_process()
        if self.host != here.host:
            return True
        if self.boot != here.boot:
            return False
        if not _exists(self.pid):
            return False
        started = _status(self.pid)[1]
        return not (self.start and started) or started == self.start

    def __str__(self) -> str:
        text = f"process {self.pid} on {self.host}"
        if self.host == this_process().host and self.is_alive():
            if _status(self.pid)[0] in ("T", "t"):
                text += " (it is stopped: SIGCONT lets it go on)"
        elif self.host == this_process().host:
            text += " (it has ended)"
        return text

    def to_bytes(self) -> bytes:
        """Return the owner as `from_bytes` reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Owner | None:
        """Return the owner in *data*, or None if there is none to be read."""
        try:
            found = json.loads(data)
            return cls(
                str(found["host"]), str(found["boot"]), int(found["pid"]), int(found["start"])
            )
        except (ValueError, TypeError, KeyError):
            return None


def this_process() -> Owner:
    """Return the owner that this process is."""
    return _owner(os.getpid())


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), _boot(), pid, _status(pid)[1])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and belongs to someone else
    return _status(pid)[0] not in ("Z", "X")


def _status(pid: int) -> tuple[str, int]:
    """Return the state letter and the start time of a process ("" and 0: not told)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode("ascii"), int(fields[19])
