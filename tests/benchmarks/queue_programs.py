"""The programs of the queues: ``python -m tests.benchmarks.queue_programs SIDE VERB
FOLDER [COUNT]``.

``enqueue`` puts runs into the queue in a folder, and prints the seconds. ``work`` runs
what is enqueued, four at a time, until it is killed. Each run makes one recorded call,
which appends its number and the time to a file.

Each queue is in a file on this disk, and flushes at each commit. huey's consumer asks
every millisecond and DBOS's queue every hundredth of a second, as with their defaults
the pauses would be measured.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from flowpregel import LMDBSaver, entrypoint, task
from tests.benchmarks import work

JOBS: Final = 4
"""The number of runs at a time."""
HUEY_POLL: Final = 0.001
DBOS_POLL: Final = 0.01
LINES: Final = "lines"
"""The file with a line for each call."""


def note(folder: str, number: int) -> int:
    """Append a number and the time to the file of calls, in one system call."""
    path = Path(folder, LINES)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{number} {time.time()}\n".encode())
    finally:
        os.close(descriptor)
    return number


# ---------------------------------------------------------------- flowpregel


@task(executor="threads")
def note_call(folder: str, number: int) -> int:
    """Make the call of a run."""
    return note(folder, number)


@entrypoint(executor="threads")
def note_run(folder: str, number: int) -> int:
    """Make one call."""
    return note_call(folder, number).result()


class Ours:
    """`Flow.enqueue` and `flowpregel work`."""

    def enqueue(self, folder: Path, count: int) -> float:
        """Enqueue runs, and return the seconds."""
        with LMDBSaver(folder / "store") as saver:
            flow = note_run.copy({"checkpointer": saver})

            def all_runs() -> None:
                for number in range(count):
                    flow.enqueue(str(folder), number, id=f"run-{number}")

            return work.seconds_of(all_runs)

    def work(self, folder: Path) -> None:
        """Run what is enqueued."""
        from flowpregel.cli.app import app

        app(["work", "--store", str(folder / "store"), "--jobs", str(JOBS)])


# ---------------------------------------------------------------- huey


class Huey:
    """huey on SQLite, whose consumer has OS threads."""

    def enqueue(self, folder: Path, count: int) -> float:
        """Enqueue tasks, and return the seconds."""
        _, enqueued = self._queue(folder)

        def all_tasks() -> None:
            for number in range(count):
                enqueued(str(folder), number)

        return work.seconds_of(all_tasks)

    def work(self, folder: Path) -> None:
        """Run what is enqueued."""
        logging.getLogger("huey").setLevel(logging.ERROR)
        queue, _ = self._queue(folder)
        queue.create_consumer(
            workers=JOBS,
            worker_type="thread",
            periodic=False,
            initial_delay=HUEY_POLL,
            max_delay=HUEY_POLL,
        ).run()

    @staticmethod
    def _queue(folder: Path) -> tuple[Any, Any]:
        """Return the queue in a folder, and its task."""
        from huey import SqliteHuey

        queue = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)
        return queue, queue.task()(note)


# ---------------------------------------------------------------- DBOS


class Dbos:
    """DBOS's queue on SQLite."""

    def enqueue(self, folder: Path, count: int) -> float:
        """Enqueue workflows, and return the seconds."""
        from dbos import DBOS

        workflow = self._launched(folder, queues=[])

        def all_workflows() -> None:
            for number in range(count):
                DBOS.enqueue_workflow("bench", workflow, str(folder), number)

        return work.seconds_of(all_workflows)

    def work(self, folder: Path) -> None:
        """Run what is enqueued."""
        self._launched(folder, queues=["bench"])
        while True:
            time.sleep(60)

    @staticmethod
    def _launched(folder: Path, queues: list[str]) -> Any:
        """Start DBOS, which takes workflows from *queues*, and return the workflow."""
        from dbos import DBOS

        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
                "log_level": "ERROR",
                "application_version": "1",
            }
        )
        step = DBOS.step(name="note")(note)

        @DBOS.workflow(name="note_workflow")
        def note_workflow(folder: str, number: int) -> int:
            return int(step(folder, number))

        DBOS.listen_queues(queues)
        DBOS.launch()
        logging.getLogger("dbos").setLevel(logging.ERROR)
        DBOS.register_queue(
            "bench", worker_concurrency=JOBS, polling_interval_sec=DBOS_POLL
        )
        return note_workflow


SIDES: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {"flowpregel": Ours, "huey": Huey, "DBOS": Dbos}
)


def main(words: Sequence[str]) -> None:
    """Do what the command line asks for."""
    side, verb, folder, *rest = words
    program = SIDES[side]()
    if verb == "work":
        program.work(Path(folder))
    else:
        sys.stdout.write(f"{program.enqueue(Path(folder), int(rest[0]))}\n")
        sys.stdout.flush()
        # DBOS's OS threads would keep the program alive.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
