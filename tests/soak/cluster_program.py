"""A program that runs flows on a cluster until it is told to stop: ``python -m
tests.soak.cluster_program EXECUTOR FOLDER SEED``.

FOLDER has the program's store and the file ``notes``, in which it writes a line for
each run. The program ends when FOLDER has a file ``stop``. Killed and started again, it
resumes its unfinished run.
"""

from __future__ import annotations

import random
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel.errors import (
    ExecutorUnavailableError,
    MachineLostError,
    WorkerDiedError,
)
from flowpregel.types import RetryPolicy

CALLS: Final = 24
SIZES: Final = {1: 12, 1_000: 8, 1_000_000: 3, 32_000_000: 1}
"""The number of bytes of a call's argument and of its result, and their weights."""
LONGEST: Final = 0.5
"""Seconds that a call takes at most, without its way to a machine and back."""
LOSSES: Final = (MachineLostError, WorkerDiedError)


@task(retry_policy=RetryPolicy(max_attempts=8, retry_on=LOSSES))
def flip(value: bytes, seconds: float) -> bytes:
    """Return the bytes in reverse order after some seconds."""
    time.sleep(seconds)
    return value[::-1]


@entrypoint()
def flow(seed: int) -> int:
    """Flip values of several sizes, and return the number of wrong results."""
    chance = random.Random(seed)
    sizes = chance.choices([*SIZES], [*SIZES.values()], k=CALLS)
    # `seed` makes the values of each run new to the machines.
    values = [
        f"{seed} {number} ".encode().ljust(size)[:size]
        for number, size in enumerate(sizes)
    ]
    futures = [flip(value, chance.uniform(0, LONGEST)) for value in values]
    pairs = zip(values, futures, strict=True)
    return sum(value[::-1] != future.result() for value, future in pairs)


def main(executor: str, folder: Path, seed: int) -> None:
    """Run flows until the folder has a file ``stop``."""
    with LMDBSaver(folder / "store") as saver, (folder / "notes").open("a") as notes:
        done = {info.thread_id for info in saver.threads() if info.status == "done"}
        runs = flow.copy({"checkpointer": saver, "executor": executor})
        for number in count():
            name = f"run-{number}"
            if (folder / "stop").exists():
                return
            if name in done:
                continue
            line = attempt(runs, name, seed + number)
            while line.startswith("again"):
                print(name, line, file=notes, flush=True)
                line = attempt(runs, name, seed + number)
            print(name, line, file=notes, flush=True)


def attempt(runs: Any, name: str, seed: int) -> str:
    """Run or resume a flow, and return what became of it."""
    began = time.monotonic()
    try:
        wrong = runs.run(seed, id=name)
    except ExecutorUnavailableError as error:
        return f"again: {error}".splitlines()[0]
    [body] = runs.get_run(thread_id=name).tasks
    calls = len(body.inner)
    done = sum(call.status == "done" for call in body.inner)
    if wrong or done != CALLS or calls != CALLS:
        return f"VIOLATION: {wrong} wrong results, {done} of {calls} calls done"
    return f"done in {time.monotonic() - began:.1f} s"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
