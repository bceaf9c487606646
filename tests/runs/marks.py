"""Tasks that see for themselves which others run at the same time."""

from __future__ import annotations

import os
import time
from pathlib import Path


def marked(folder: str, amount: float = 1) -> float:
    """Return how much the running tasks that leave their mark in *folder* take, this
    one too.
    """
    mark = Path(folder) / f"{os.getpid()}-{amount}"
    mark.touch()
    time.sleep(0.02)  # the work of the task
    taken = sum(float(each.name.partition("-")[2]) for each in Path(folder).iterdir())
    mark.unlink()
    return taken
