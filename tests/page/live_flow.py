"""A flow that goes on until it is told to end, for the tests of a page that follows
it.
"""

from __future__ import annotations

import time
from pathlib import Path

from flowpregel import entrypoint, task
from flowpregel.runtime import Runtime


@task
def work(number: int) -> list[int]:
    time.sleep(0.03)  # the work
    return [number] * 3


@task
def train(folder: str, *, runtime: Runtime) -> float:
    epoch = 0
    while not (Path(folder) / "stop").exists():
        epoch += 1
        runtime.metric("loss", 1 / epoch, step=epoch)
        time.sleep(0.03)  # the work
    return 1 / epoch


@entrypoint
def training(folder: str) -> float:
    return train(folder).result()


@entrypoint(executor="threads")
def steady(folder: str) -> int:
    number = 0
    while not (Path(folder) / "stop").exists():
        pair = [work(number), work(number + 1)]
        number += len([future.result() for future in pair])
    return number
