"""A flow that has more tasks than a cluster can run, until a file appears."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flowpregel.func import entrypoint, task

_WINDOW = 8


def look_for(file: str, number: int) -> bool:
    """Work for a moment, and return whether the file is there."""
    time.sleep(0.1)  # the work of the task
    return Path(file).exists()


def keep_busy(executor: Any, gpus: int = 0) -> Any:
    """Return a flow that returns the number of its tasks when its file appears.

    Args:
        executor: The executor of the tasks.
        gpus: The number of GPUs of each task.
    """
    look = task(gpus=gpus)(look_for) if gpus else task(look_for)

    @entrypoint(executor=executor)
    def flow(file: str) -> int:
        window = [look(file, number) for number in range(_WINDOW)]
        count = _WINDOW
        while not window.pop(0).result():
            window.append(look(file, count))
            count += 1
        return count

    return flow
