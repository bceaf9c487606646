"""``python -m tests.soak.workers --tasks 100000``: worker processes under random
faults.

Tasks return, raise, kill their worker in several ways, hang until they are timed out,
are cancelled, and lose their worker to somebody from outside. Each has to end as it
should, with its own result; memory and descriptors have to stay what they were. The
exit status is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowpregel._core.records import Node, Outcome, Raised, Returned, Withdrawn
from flowpregel.errors import NodeTimeoutError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, node_of, value_of

WAVE = 1_000
"""Tasks that are in flight together."""
LARGE = 200_000
"""Bytes of a value that goes through shared memory."""
KINDS = {
    "work": 9_300,
    "large": 350,
    "raise": 200,
    "kill": 40,
    "leave": 20,
    "crash": 10,
    "hang": 30,
    "cancel": 30,
    "victim": 20,
}
"""What tasks do, of ten thousand."""
EXPECTED: dict[str, tuple[type[BaseException], ...]] = {
    "raise": (ValueError,),
    "kill": (WorkerDiedError,),
    "leave": (WorkerDiedError,),
    "crash": (WorkerDiedError,),
    "hang": (NodeTimeoutError,),
}
GROWTH = 16 << 20
"""Bytes by which this process may grow after its first waves."""
WARM = 3
"""Waves after which memory and descriptors are what they are to stay."""

Order = tuple[str, int, bytes]


def obey(order: Order) -> Any:
    """Do as ordered."""
    kind, number, data = order
    match kind:
        case "raise":
            raise ValueError(number)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            os._exit(number % 3)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang" | "cancel" | "victim":
            time.sleep(60)
        case "large":
            return bytes(reversed(data))
    return number * number


@dataclass
class Report:
    """What was done and found."""

    tasks: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Bytes of its own that this process has after each wave."""
    descriptors: list[int] = field(default_factory=list)
    """Open ones after each wave, without those of shared memory, which is used
    again.
    """

    @property
    def growth(self) -> int:
        """By how many bytes this process grew after its first waves."""
        early = self.memory[:WARM][-1]
        return max(self.memory[WARM:], default=early) - early

    @property
    def leaked(self) -> int:
        """How many descriptors more are open than after the first waves.

        A worker may just be starting: the fewest of the last waves count.
        """
        return min(self.descriptors[-WARM:]) - max(self.descriptors[:WARM])

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return not self.wrong and self.growth < GROWTH and self.leaked <= 0

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{count:,} {kind}" for kind, count in self.kinds.most_common()
        )
        lines = [
            f"{self.tasks:,} tasks in {self.seconds:.0f} s ({kinds})",
            (
                f"memory {self.memory[-1] / 1e6:.0f} MB, grown by "
                f"{self.growth / 1e6:.1f} "
                "MB"
            ),
            f"descriptors {self.descriptors[-1]}, leaked {max(0, self.leaked)}",
            f"{len(self.wrong)} ended as they should not",
            *self.wrong[:20],
            "ok" if self.ok else "NOT ok",
        ]
        return "\n".join(lines)


class Soak:
    """Runs waves of tasks.

    Args:
        pool: Where they run.
        luck: Chooses what they do.
    """

    def __init__(self, pool: ProcessExecutor, luck: random.Random) -> None:
        self._run = Run(pool)
        self._luck = luck
        self._node: Node = node_of(obey)
        self._data = [luck.randbytes(LARGE) for _ in range(4)]
        self.report = Report()

    def wave(self, count: int) -> None:
        """Run *count* tasks to their ends, and check them."""
        kinds = self._luck.choices([*KINDS], [*KINDS.values()], k=count)
        orders = [self._order(kind, number) for number, kind in enumerate(kinds)]
        jobs = [
            self._run.start(
                self._node, order, timeout=0.3 if order[0] == "hang" else None
            )
            for order in orders
        ]
        stuck = [
            job
            for job, (kind, *_) in zip(jobs, orders, strict=True)
            if kind == "cancel"
        ]
        for job in stuck:
            self._run.pool.cancel(job.key, kill=True)
        outcomes = self._outcomes(jobs, orders)
        self.report.tasks += count
        self.report.kinds.update(kinds)
        for order, outcome in zip(orders, outcomes, strict=True):
            if not is_right(order, outcome):
                self.report.wrong.append(f"{order[:2]}: {outcome!r:.300}")
        self._run.ended_at.clear()  # ours, and no growth of the pool's

    def _order(self, kind: str, number: int) -> Order:
        return kind, number, self._data[number % 4] if kind == "large" else b""

    def _outcomes(self, jobs: list[Any], orders: list[Order]) -> list[Outcome]:
        """Wait for all; meanwhile kill the workers of those that are to be killed from
        outside.
        """
        victims = [
            job
            for job, (kind, *_) in zip(jobs, orders, strict=True)
            if kind == "victim"
        ]
        ended: dict[str, Outcome] = {}
        while victims:
            self._kill_worker_of(victims)
            ended |= self._run.some(0.01)
            victims = [job for job in victims if job.task.id not in ended]
        rest = [job for job in jobs if job.task.id not in ended]
        ended |= dict(
            zip(
                (j.task.id for j in rest),
                self._run.outcomes(*rest, seconds=300),
                strict=True,
            )
        )
        return [ended[job.task.id] for job in jobs]

    def _kill_worker_of(self, victims: list[Any]) -> None:
        wanted = {job.key for job in victims}
        for worker in tuple(self._run.pool._pool.workers):  # noqa: SLF001 - as an enemy would
            with contextlib.suppress(ProcessLookupError, ValueError):
                # The I/O thread may close the worker meanwhile.
                task = worker.running()
                if task is not None and task.job.key in wanted:
                    os.kill(worker.pid, signal.SIGKILL)

    def look(self) -> None:
        """Note how much this process holds."""
        self.report.memory.append(own_memory())
        self.report.descriptors.append(open_descriptors())


def own_memory() -> int:
    """Return the bytes this process has for itself: shared memory is bounded by its
    arena.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def open_descriptors() -> int:
    """Return how many descriptors this process has open, without those of shared
    memory.
    """
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += "memfd:" not in os.readlink(f"/proc/self/fd/{fd}")
    return count


def is_right(order: Order, outcome: Outcome) -> bool:
    """Return whether *outcome* is what was ordered."""
    kind, number, data = order
    match kind:
        case "work":
            return (
                isinstance(outcome, Returned) and value_of(outcome) == number * number
            )
        case "large":
            return isinstance(outcome, Returned) and value_of(outcome) == bytes(
                reversed(data)
            )
        case "cancel":
            return isinstance(outcome, Withdrawn)
        case "victim":
            return isinstance(outcome, Raised) and isinstance(
                outcome.error, WorkerDiedError
            )
    return isinstance(outcome, Raised) and isinstance(outcome.error, EXPECTED[kind])


def soak(tasks: int, minutes: float, seed: int, *, wave: int = WAVE) -> Report:
    """Run *tasks* tasks, or as many as *minutes* allow; return what was found."""
    began = time.monotonic()
    with ProcessExecutor(2, grace=0.2) as pool:
        soaking = Soak(pool, random.Random(seed))
        report = soaking.report
        while report.tasks < tasks and time.monotonic() < began + 60 * minutes:
            soaking.wave(min(wave, tasks - report.tasks))
            soaking.look()
    report.seconds = time.monotonic() - began
    return report


def main(arguments: list[str] | None = None) -> int:
    """Soak, print what was done and found, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.workers", description=__doc__
    )
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after that long"
    )
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    report = soak(asked.tasks, asked.minutes, asked.seed)
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
