"""A flow that goes on until it is told to end, for the tests of a page that follows
it.
"""

from __future__ import annotations

import time
from pathlib import Path

from flowpregel import entrypoint, task


@task
def work(number: int) -> list[int]:
    time.sleep(0.03)  # the work
    return [number] * 3


@entrypoint(executor="threads")
def steady(folder: str) -> int:
    number = 0
    while not (Path(folder) / "stop").exists():
        pair = [work(number), work(number + 1)]
        number += len([future.result() for future in pair])
    return number
