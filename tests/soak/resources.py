"""``python -m tests.soak.resources --minutes 10``: random tasks that say what they
take.

Runs of one pool make calls that take CPUs, memory, GPUs and places of limits, with
priorities and a rate; some call others while they hold something, some lose their
worker, some are cancelled. Each call sees for itself that nothing is exceeded: it locks
as many files as it takes, of as many as there are. Every run has to end in time, with
what its calls should come to. The exit status is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from flowpregel import entrypoint, task
from flowpregel.errors import ResourcesError, WorkerDiedError
from flowpregel.executors import ProcessExecutor

THERE: Final = {"cpus": 3, "memory": 8, "gpus": 2, "api": 2, "outer": 2, "one": 1}
"""What there is; memory in gigabytes."""
KINDS: Final[dict[str, dict[str, Any]]] = {
    "cpus": {"cpus": 2},
    "memory": {"memory": "3GB"},
    "gpus": {"gpus": 1},
    "api": {"limit": "api"},
    "both": {"limit": "api", "memory": "2GB"},
    "rate": {"rate": "50/s"},
    "plain": {},
}
TAKES: Final = {
    "cpus": {"cpus": 2},
    "memory": {"memory": 3},
    "gpus": {"gpus": 1},
    "api": {"api": 1},
    "both": {"api": 1, "memory": 2},
    "rate": {},
    "plain": {},
    "outer": {"outer": 1},
}
LONGEST: Final = 300.0
"""Seconds after which a round hangs."""


@contextmanager
def taking(kind: str, folder: str) -> Iterator[None]:
    """Hold what a call of that kind takes.

    Raises:
        AssertionError: So much is not free: others have it.
    """
    files = []
    try:
        for name, wanted in TAKES[kind].items():
            for number in range(THERE[name]):
                file = os.open(
                    Path(folder) / f"{name}-{number}", os.O_RDWR | os.O_CREAT
                )
                files.append(file)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                wanted -= 1
                if not wanted:
                    break
            assert not wanted, f"{name} is exceeded by {wanted}"
        yield
    finally:
        for file in files:
            os.close(file)


@task
def take(kind: str, folder: str, fault: str, seconds: float) -> str:
    """Hold what that kind takes for a moment."""
    with taking(kind, folder):
        time.sleep(seconds)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return kind


TASKS: Final = {
    kind: take.with_options(name=kind, **taken) for kind, taken in KINDS.items()
}


@task(limit="outer")
def hold_and_call(folder: str, kinds: list[str]) -> list[str]:
    """Hold a place while others run."""
    with taking("outer", folder):
        return [
            each.result()
            for each in [TASKS[kind](kind, folder, "", 0.001) for kind in kinds]
        ]


@task(limit="one")
def ask_for_its_own() -> str:
    """Call what needs what it holds."""
    try:
        return str(ask_for_its_own().result())
    except ResourcesError:
        return "refused"


def body(folder: str, seed: int) -> Counter[str]:
    """Make random calls; return what became of how many."""
    chance, made, found = random.Random(seed), [], Counter[str]()
    for _ in range(chance.randint(2, 30)):
        match chance.choice([*KINDS, "outer", "own"]):
            case "outer":
                kinds = chance.choices([*KINDS], k=chance.randint(1, 3))
                made.append((kinds, hold_and_call(folder, kinds)))
            case "own":
                made.append(("refused", ask_for_its_own()))
            case kind:
                fault = chance.choices(["", "kill", "cancel"], [18, 1, 1])[0]
                urgent = TASKS[kind].with_options(priority=chance.randint(-1, 1))
                given = kind, folder, fault, chance.random() / 100
                made.append((kind, urgent(*given)))
                if fault == "cancel":
                    made[-1][1].cancel()
    for expected, future in made:
        try:
            found["right" if future.result() == expected else "wrong"] += 1
        except (WorkerDiedError, CancelledError) as error:
            found[type(error).__name__] += 1
    return found


def soak_resources(folder: Path, *, seconds: float, seed: int) -> bool:
    """Run rounds for that long, one at least; return whether every promise held."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    total, holds = Counter[str](), True
    limits = {**THERE, "memory": f"{THERE['memory']}GB"}
    with ProcessExecutor(3, limits=limits, limits_folder=folder / "limits") as pool:
        flow = entrypoint(executor=pool)(lambda given: body(*given))
        while holds and (not total or time.monotonic() < until):
            seeds = [chance.randrange(1 << 30) for _ in range(chance.randint(1, 3))]
            handles = [flow.start((str(folder), each)) for each in seeds]
            try:
                for handle in handles:
                    total += handle.result(LONGEST)
            except (AssertionError, TimeoutError) as error:
                print(f"! seeds {seeds}: {error!r}")
                holds = False
    print(f"{total.total():,} calls: {dict(total)}")
    return holds and not total["wrong"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        ok = soak_resources(Path(place), seconds=60 * given.minutes, seed=given.seed)
    sys.exit(not ok)
