"""``python -m tests.soak.leases --minutes 3 --seed 1``: processes fight for the leases
of threads.

Claimants take the lease of a thread, commit some checkpoints under it, and give it
back; some take it over from others. Meanwhile processes are killed at random instants,
or stopped (SIGSTOP) and continued; in PostgreSQL answers to commits are lost, and
commits arrive late, as well. Under a lease a claimant reads the newest number that a
thread has, and commits those that follow. A checker finds, after each round:

* a number that was committed twice, or by a lease older than that of the number before:
  two owners have committed at the same time;
* a commit that was acknowledged and is not there;
* an owner that lost its lease though it was alive, and nobody took the lease over;
* a lease that was refused though its owner was long dead, or had given it back.

The exit status is 1 if it finds any.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

from flowpregel import _fault
from flowpregel._core.records import Address, Batch, Checkpoint
from flowpregel.errors import CommitUnknownError, FlowPregelError, ThreadBusyError
from tests.cutting_proxy import Cut, cutting, delivering
from tests.postgres_server import serving, why_not

ROOT: Final = Path(__file__).parents[2]
CLAIMANTS: Final = 4
THREADS: Final = 2
ROUND_SECONDS: Final = 20.0
TTL: Final = 3.0
"""Seconds after which a lease in PostgreSQL is out that is not renewed."""
SLACK: Final = 2.0
"""Seconds that a busy machine may take for what is immediate."""
_TAKEOVER_SHARE: Final = 0.1
_CUT_SHARE: Final = 0.1


# ---------------------------------------------------------------- a claimant


class Claimant:
    """A process that takes leases until it is killed, and writes down what it does.

    Args:
        saver: Keeps the threads.
        file: Where it writes: one JSON text a line.
        round_name: Begins the names of the threads.
    """

    def __init__(self, saver: Any, file: Path, round_name: str) -> None:
        self._saver, self._file = saver, str(file)
        self._threads = [f"{round_name} {number}" for number in range(THREADS)]
        self._luck = random.Random(file.name)

    def run(self) -> None:
        """Take leases."""
        while True:
            thread = self._luck.choice(self._threads)
            mode: Any = "takeover" if self._luck.random() < _TAKEOVER_SHARE else "raise"
            self._note("ask", thread, mode=mode)
            try:
                with self._saver.lease(thread, on_conflict=mode) as lease:
                    self._note("got", thread, fence=lease.fence, mode=mode)
                    self._commit_some(thread, lease.fence)
                    self._note("back", thread, fence=lease.fence)
            except ThreadBusyError:
                self._note("busy", thread)
                time.sleep(self._luck.uniform(0.01, 0.05))
            else:
                self._note("ended", thread)

    def _commit_some(self, thread: str, fence: int) -> None:
        saved = self._saver.load(Address(thread))
        number = 0 if saved is None else saved.checkpoint.step
        for _ in range(self._luck.randrange(1, 8)):
            number += 1
            self._note("commit", thread, fence=fence, number=number)
            try:
                self._saver.commit([self._batch(thread, fence, number)])
            except CommitUnknownError:
                return  # whether that number is there, the next owner sees
            except FlowPregelError as error:
                self._note("lost", thread, fence=fence, error=str(error))
                return
            self._note("committed", thread, fence=fence, number=number)
            time.sleep(self._luck.uniform(0.0, 0.05))

    def _batch(self, thread: str, fence: int, number: int) -> Batch:
        checkpoint = Checkpoint(
            id=f"{number:012}-{fence}-{os.getpid()}",
            parent_id=None,
            at=time.time_ns(),
            step=number,
            source="loop",
            channel_versions={},
            versions_seen={},
            changed=(),
            metadata={"fence": fence, "pid": os.getpid()},
        )
        return Batch(address=Address(thread), checkpoint=checkpoint, fence=fence)

    def _note(self, event: str, thread: str, **fields: Any) -> None:
        line = {
            "at": time.monotonic(),
            "pid": os.getpid(),
            "event": event,
            "thread": thread,
        }
        _fault.append(self._file, json.dumps({**line, **fields}) + "\n")


def opened(location: str) -> Any:
    """Return the saver at *location*."""
    if location.startswith("postgresql:"):
        from flowpregel.plugins.postgres import PostgresSaver

        return PostgresSaver(location, lease_ttl=TTL)
    from flowpregel.checkpoint.lmdb import LMDBSaver

    return LMDBSaver(location)


# ---------------------------------------------------------------- the checker


@dataclass(slots=True)
class Tenure:
    """The time for which a claimant had a lease, or may have had it; monotonic
    seconds.
    """

    pid: int
    mode: str
    asked: float
    fence: int | None = None
    got: float = inf
    back: float = inf
    """When it began to give the lease back, or found that it was lost."""
    ended: float = inf
    """When it had given the lease back, or was refused."""
    is_refused: bool = False


@dataclass(slots=True)
class Faults:
    """What was done to claimants; monotonic seconds by pid."""

    killed: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def death(self, pid: int) -> float:
        """Return when a process was killed; never, if it was not."""
        return self.killed.get(pid, inf)


def tenures_in(lines: Iterable[dict[str, Any]]) -> list[Tenure]:
    """Return the tenures of one thread, by the time at which they were asked for."""
    open_: dict[int, Tenure] = {}
    found = []
    for line in lines:
        pid, at = line["pid"], line["at"]
        match line["event"]:
            case "ask":
                open_[pid] = Tenure(pid, line["mode"], at)
                found.append(open_[pid])
            case "got":
                open_[pid].fence, open_[pid].got = line["fence"], at
            case "back" | "lost":
                open_[pid].back = min(open_[pid].back, at)
            case "busy":
                open_[pid].is_refused, open_[pid].ended = True, at
            case "ended":
                open_[pid].ended = at
    return sorted(found, key=lambda tenure: tenure.asked)


def lost_by_the_living(
    tenures: Sequence[Tenure], faults: Faults, is_postgres: bool
) -> list[str]:
    """Return where a lease was given away though its owner was alive and had kept
    it.
    """
    found = []
    for owner in tenures:
        end = min(owner.back, faults.death(owner.pid))
        if is_postgres:  # who is stopped does not renew its lease
            stops = [
                begin for begin, until in faults.stopped[owner.pid] if until > owner.got
            ]
            end = min([end, *stops])
        takers = [each for each in tenures if _may_take(each, owner)]
        end = min([end, *(max(taker.asked, owner.got) for taker in takers)])
        found += [
            f"{other} beside the live {owner}"
            for other in tenures
            if other.mode == "raise" and other.asked > owner.got and other.got < end
        ]
    return found


def _may_take(taker: Tenure, owner: Tenure) -> bool:
    """Return whether *taker* may have taken the lease over from *owner*."""
    return taker.mode == "takeover" and taker is not owner and taker.got > owner.asked


def late_refusals(
    tenures: Sequence[Tenure], faults: Faults
) -> list[tuple[float, Tenure]]:
    """Return refusals while nobody had the lease, and how long after the last owner's
    end.

    A claimant that was killed while it asked may have been an owner as well.
    """
    spans = [
        (each.asked, min(each.ended, faults.death(each.pid)))
        for each in tenures
        if not each.is_refused
    ]
    found = []
    for refused in tenures:
        if not refused.is_refused:
            continue
        if any(begin <= refused.ended and refused.asked <= end for begin, end in spans):
            continue
        ends = [end for _, end in spans if end < refused.asked]
        found.append((refused.asked - max(ends, default=-inf), refused))
    return found


def bad_numbers(
    kept: Sequence[tuple[int, int, int]], lines: Iterable[dict[str, Any]]
) -> list[str]:
    """Return what is wrong with the commits of one thread.

    Args:
        kept: The (number, fence, pid) of each that the store has.
        lines: What the claimants wrote down.
    """
    found = []
    numbers = [number for number, _, _ in sorted(kept)]
    if numbers != [*range(1, len(numbers) + 1)]:
        found.append(f"the numbers are {numbers}")
    fences = [fence for _, fence, _ in sorted(kept)]
    if fences != sorted(fences):
        found.append(f"an older lease has committed after a newer one: {sorted(kept)}")
    owners = {(fence, pid) for _, fence, pid in kept}
    if len(owners) != len({fence for fence, _ in owners}):
        found.append(f"two processes have committed under one lease: {sorted(owners)}")
    acknowledged = {
        (line["number"], line["fence"], line["pid"])
        for line in lines
        if line["event"] == "committed"
    }
    if lost := acknowledged - {*kept}:
        found.append(f"acknowledged, and not there: {sorted(lost)}")
    return found


# ---------------------------------------------------------------- rounds


class LeaseSoak:
    """Runs rounds of claimants in one store, and checks each.

    Args:
        location: What claimants open.
        store: What the checker opens, on which no answers are lost.
        folder: Where claimants write.
        seed: Decides what is done to them, and when.
    """

    def __init__(self, location: str, store: str, folder: Path, seed: int) -> None:
        self._location, self._store, self._folder, self._seed = (
            location,
            store,
            folder,
            seed,
        )
        self._is_postgres = store.startswith("postgresql:")
        self._luck = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._longest = 0.0
        """Seconds after the end of an owner at which its lease was refused, at most."""

    def run(self, seconds: float) -> bool:
        """Run rounds for so long; print what was done, and return whether nothing was
        wrong.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.counts["rounds"] += 1
            self._round(f"{self._seed}.{self.counts['rounds']}")
        print("PostgreSQL" if self._is_postgres else "LMDB")
        for name, count in sorted(self.counts.items()):
            print(f"{count:>10,}  {name}")
        print(
            f"{self._longest:>10.2f}  seconds after its owner's end was a lease "
            "refused, at most"
        )
        found = len(self.violations)
        print(f"{found:>10,}  violations", *self.violations[:3], sep="\n", flush=True)
        return not self.violations

    def _round(self, name: str) -> None:
        file, faults = self._folder / name, Faults()
        processes = [self._start(file, name) for _ in range(CLAIMANTS)]
        for process in processes:
            while process.poll() is None and not _has_begun(process, file):
                time.sleep(0.05)
        end = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < end:
            time.sleep(self._luck.uniform(0.1, 0.6))
            victim = self._luck.randrange(CLAIMANTS)
            if not _has_begun(processes[victim], file):
                continue
            if self._luck.random() < 0.5:
                self._kill(processes[victim], faults)
                processes[victim] = self._start(file, name)
            else:
                self._stop(processes[victim], faults)
        for process in processes:
            self._kill(process, faults)
        self._check(name, file, faults)

    def _start(self, file: Path, name: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.soak.leases", "--claim", self._location]
        return subprocess.Popen([*words, str(file), name], cwd=ROOT)

    def _kill(self, process: subprocess.Popen[bytes], faults: Faults) -> None:
        at = time.monotonic()
        process.kill()
        process.wait()
        if process.returncode != -signal.SIGKILL:
            self.violations.append(f"a claimant ended by itself: {process.returncode}")
        faults.killed[process.pid] = at
        self.counts["processes killed"] += 1

    def _stop(self, process: subprocess.Popen[bytes], faults: Faults) -> None:
        """Stop a process for a while, sometimes for longer than a lease lasts."""
        at = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._luck.choice((0.05, 0.3, 1.0, TTL + 1.5)))
        process.send_signal(signal.SIGCONT)
        faults.stopped[process.pid].append((at, time.monotonic()))
        self.counts["processes stopped"] += 1

    def _check(self, name: str, file: Path, faults: Faults) -> None:
        events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in map(json.loads, file.read_text().splitlines()):
            events[line["thread"]].append(line)
            self.counts[f"times {line['event']}"] += 1
        with opened(self._store) as saver:
            for thread, lines in events.items():
                kept = [
                    (
                        saved.checkpoint.step,
                        *map(saved.checkpoint.metadata.get, ("fence", "pid")),
                    )
                    for saved in saver.history(Address(thread))
                ]
                tenures = tenures_in(lines)
                self.counts["owners killed"] += sum(
                    each.got < faults.death(each.pid) < each.back for each in tenures
                )
                for wrong in (
                    *bad_numbers(kept, lines),
                    *lost_by_the_living(tenures, faults, self._is_postgres),
                    *self._refused_too_long(tenures, faults),
                ):
                    self.violations.append(f"{thread}: {wrong}; {faults}")
        file.unlink()

    def _refused_too_long(self, tenures: Sequence[Tenure], faults: Faults) -> list[str]:
        """Return where a lease was refused that nobody can have had any more."""
        most = SLACK + (TTL if self._is_postgres else 0.0)
        found = []
        for seconds, refused in late_refusals(tenures, faults):
            self._longest = max(self._longest, seconds)
            if seconds > most:
                found.append(
                    f"{refused} {seconds:.2f} seconds after its last owner's end"
                )
        return found


def _has_begun(process: subprocess.Popen[bytes], file: Path) -> bool:
    """Return whether a claimant has written something."""
    return file.exists() and f'"pid": {process.pid},' in file.read_text()


def soak_lmdb(folder: Path, *, seconds: float, seed: int) -> bool:
    """Soak a folder for so many seconds; return whether nothing was wrong."""
    store = str(folder / "store")
    return LeaseSoak(store, store, folder, seed).run(seconds)


def soak_postgres(folder: Path, server: Any, *, seconds: float, seed: int) -> bool:
    """Soak a database for so many seconds; return whether nothing was wrong."""
    cuts = random.Random(seed)

    def decide() -> Cut | None:
        return cuts.choice([*Cut]) if cuts.random() < _CUT_SHARE else None

    with cutting(server, decide) as proxy, delivering(proxy, seed):
        return LeaseSoak(proxy.url, server.url, folder, seed).run(seconds)


def main(arguments: list[str] | None = None) -> int:
    """Soak, or be a claimant; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.leases", description=__doc__
    )
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="for both stores together"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--claim", nargs=3, metavar=("LOCATION", "FILE", "ROUND"))
    asked = parser.parse_args(arguments)
    os.environ.setdefault("FLOWPREGEL_STORE_KEY", "the key of a soak")
    if asked.claim:
        location, file, round_name = asked.claim
        with opened(location) as saver:
            Claimant(saver, Path(file), round_name).run()
    seconds, holds = 30 * asked.minutes, []
    with tempfile.TemporaryDirectory(prefix="flowpregel-leases-") as name:
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
