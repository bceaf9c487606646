"""A workflow with hooks that note what they are told in a file."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import RunEnd, entrypoint, task
from flowpregel.types import interrupt

NOTES = "HOOKED_NOTES"
"""The variable that names the file."""


def killed(place: str) -> None:
    """Kill the program the first time that it comes to *place*, if that is asked
    for.
    """
    mark = Path(os.environ[NOTES] + "." + place)
    if os.environ.get("HOOKED_KILL") == place and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(kind: str, end: RunEnd) -> None:
    """Append a line to the notes."""
    with open(os.environ[NOTES], "a") as notes:
        notes.write(
            f"{kind} {end.flow} {end.id} {end.result} {type(end.error).__name__}\n"
        )
    killed("hook")


def noted() -> list[str]:
    """Return the notes."""
    path = Path(os.environ[NOTES])
    return path.read_text().splitlines() if path.exists() else []


@task
def work(what: str) -> str:
    """Fail, ask, or be killed, as it is told."""
    killed("task")
    if what == "fail" and not Path(os.environ[NOTES] + ".mended").exists():
        raise OSError("no")
    return interrupt("really?") if what == "ask" else what


@entrypoint(
    executor="inline",
    on_end=lambda end: note("end", end),
    on_failure=lambda end: note("failure", end),
)
def hooked(what: str) -> str:
    """Do the one task."""
    return work(what).result()


if __name__ == "__main__":
    with LMDBSaver(sys.argv[1]) as saver:
        hooked.copy({"checkpointer": saver}).run("well", id="x")
