"""Flows that stand still in each way, for the tests of the sentence in the page."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from flowpregel import LMDBSaver, entrypoint, signal, sleep, task
from flowpregel.executors import ProcessExecutor


@task
def divide(flag: str, n: int) -> int:
    if not Path(flag).exists():
        raise ZeroDivisionError(f"there is no {n}")
    return n


@task
def hold(folder: str, n: int) -> int:
    """Go on once there is a file ``go``; say that the call has begun."""
    (Path(folder) / f"began-{n}").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)  # the work
    return n


@task
def quick(n: int) -> int:
    return n


@entrypoint(executor="inline")
def nap(seconds: float) -> str:
    sleep(seconds)
    return "awake"


@entrypoint(executor="inline")
def wait(name: str) -> Any:
    return signal(name).result()


@entrypoint(executor="inline")
def strict(flag: str) -> int:
    quick(1).result()
    return divide(flag, 7).result()


@entrypoint(executor="inline")
def lenient(flag: str) -> int:
    good = [quick(n).result() for n in range(3)]
    futures = [divide(flag, n) for n in range(2)]
    return sum(future.exception() is None for future in futures) + len(good)


@entrypoint
def crowd(folder: str) -> int:
    done = [quick(n).result() for n in range(3)]
    held = [hold(folder, n) for n in range(3)]
    return len(done) + sum(future.result() for future in held)


@entrypoint
def late(folder: str) -> int:
    return quick(5).result()


def main(store: str, folder: str) -> None:
    """Run `crowd` and then `late` with one worker, which `crowd` keeps busy."""
    with ProcessExecutor(max_workers=1) as executor, LMDBSaver(store) as saver:
        options = {"checkpointer": saver, "executor": executor}
        first = crowd.copy(options)
        runner = threading.Thread(
            target=first.run, args=(folder,), kwargs={"id": "crowd"}
        )
        runner.start()
        while not (Path(folder) / "began-0").exists():
            time.sleep(0.02)
        late.copy(options).run(folder, id="late")
        runner.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
