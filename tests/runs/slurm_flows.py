"""Flows that tests run in jobs of SLURM, by the name of this module."""

from __future__ import annotations

import time
from pathlib import Path

from flowpregel.errors import RunStopped
from flowpregel.func import entrypoint, task
from flowpregel.runtime import get_runtime
from tests.runs.queue_flows import append


@task
def wait_for(begun: str, gate: str) -> str:
    """Create a file, and wait until another one exists, or the run must end."""
    Path(begun).touch()
    while not Path(gate).exists():
        if get_runtime().stopping:
            raise RunStopped("there is no gate")
        time.sleep(0.01)
    return gate


@entrypoint(executor="processes")
def note_and_wait(folder: str) -> int:
    """Note two lines in parallel, then wait for a file, then note a third line."""
    notes = str(Path(folder) / "notes")
    futures = [append(notes, line) for line in ("one", "two")]
    lines = [future.result() for future in futures]
    wait_for(str(Path(folder) / "begun"), str(Path(folder) / "gate")).result()
    return len([*lines, append(notes, "three").result()])
