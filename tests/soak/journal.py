"""What was invoked, started, seen and acknowledged: outside of the store, whoever is
killed.

A line is: time (ns, of the machine's monotonic clock), event, what. An attempt that
has neither ``ok``, ``fail`` nor ``interrupted`` is *unknown*: it was killed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowpregel import _fault

LOG = "FLOWPREGEL_SOAK_LOG"
"""The environment variable that names the file of an attempt."""
EXPECTED_FAILURES = (
    "WorkerDiedError",  # we killed it
    # and those that were to take its place, as they started
    "ExecutorUnavailableError",
    "StoreFullError",  # the disk was full for a moment
    "StoreReadOnlyError",  # or could only be read
    "ThreadBusyError",  # another attempt has the thread
)
_FULL_BEFORE = "mdb_txn_commit: Input/output error; nothing of this commit was stored"
"""What LMDB says of a full disk too, when there was room again before the store
looked.
"""


def note(event: str, what: str) -> None:
    """Append a line to the attempt's file."""
    _fault.append(os.environ[LOG], f"{time.monotonic_ns()}\t{event}\t{what}\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    at: int
    event: str
    what: str


def lines_of(path: str) -> list[Line]:
    """Return the events of an attempt."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        parts = [line.rstrip("\n").split("\t", 2) for line in file]
    return [Line(int(at), event, what) for at, event, what in parts]


@dataclass
class Thread:
    """The attempts of one program, and what is expected of it."""

    durability: str
    expected: int
    attempts: list[list[Line]] = field(default_factory=list)

    def ended(self) -> bool:
        """Return whether an attempt came to its end."""
        return any(line.event == "ok" for lines in self.attempts for line in lines)

    def violations(self) -> Iterator[str]:
        """Yield the promises that did not hold."""
        events = sorted(
            (line for lines in self.attempts for line in lines), key=lambda e: e.at
        )
        yield from self._wrong(events)
        if self.durability == "sync":
            yield from run_again(events)
        yield from self._run_after_the_end(events)

    def _wrong(self, events: Sequence[Line]) -> Iterator[str]:
        for line in events:
            if line.event == "ok" and line.what != str(self.expected):
                yield f"it came to {line.what}, not {self.expected}"
            expected = (
                line.what.startswith(EXPECTED_FAILURES) or _FULL_BEFORE in line.what
            )
            if line.event == "fail" and not expected:
                yield f"it failed: {line.what}"

    def _run_after_the_end(self, events: Sequence[Line]) -> Iterator[str]:
        """Yield what ran although an attempt in `sync` had told the end."""
        told = [line.at for line in events if line.event == "ok"]
        if told and self.durability == "sync":
            for line in events:
                if line.event == "start" and line.at > told[0]:
                    yield f"{line.what} ran after the run had ended"


def run_again(events: Sequence[Line]) -> Iterator[str]:
    """Yield what ran again after its result had been seen, which in `sync` is on disk
    then.
    """
    seen: dict[str, int] = {}
    for line in events:
        if line.event == "seen":
            seen.setdefault(line.what, line.at)
        elif line.event == "start" and line.what in seen:
            yield f"{line.what} ran again after its result was seen"


def counts_of(threads: Sequence[Thread]) -> Counter[str]:
    """Count attempts by how they ended, and labours."""
    counts: Counter[str] = Counter()
    for thread in threads:
        for lines in thread.attempts:
            ends = [line for line in lines if line.event in ("ok", "fail")]
            counts["attempts"] += 1
            counts["labours started"] += sum(line.event == "start" for line in lines)
            if not ends:
                stopped = any(line.event == "interrupted" for line in lines)
                counts["interrupted" if stopped else "unknown (killed)"] += 1
            for line in ends:
                name = line.what.partition(":")[0]
                counts["ok" if line.event == "ok" else f"fail {name}"] += 1
    return counts
