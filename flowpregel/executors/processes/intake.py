"""The intake: makes flights of jobs, with the code that their workers need."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from itertools import count
from typing import TypeAlias

from flowpregel._core.effects import Ended
from flowpregel._core.records import Node, Raised
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.base import Job, Mailbox
from flowpregel.executors.processes.codebook import Codebook
from flowpregel.executors.processes.line import CalledNodes
from flowpregel.executors.processes.slot import Flight

_LookedUp: TypeAlias = tuple[Node | None, str | None, int, bytes, bytes]


class Intake:
    """Makes flights.

    Args:
        called_nodes: Tells how deep a task is nested.
    """

    def __init__(self, called_nodes: CalledNodes) -> None:
        self._called_nodes = called_nodes
        self._codebook = Codebook()
        self._looked_up: _LookedUp = (None, None, 0, b"", b"")
        """What was last found in the codebook, which often is what is looked for next."""
        self._numbers = count(1)

    def flights_of(self, jobs: Sequence[Job], mailbox: Mailbox, attended: bool) -> list[Flight]:
        """Return a flight for each job whose code can be sent; the others end.

        Args:
            jobs: What is to be done.
            mailbox: Where their events go.
            attended: Whether the run's own OS thread comes to read.
        """
        flights: list[Flight] = []
        node, run_id, depth, digest, code = self._looked_up
        numbers, variables = self._numbers, copy_context()
        for job in jobs:
            if job.variables is None:
                job.variables = variables
            number = next(numbers) & 0xFFFFFFFF
            if job.node is not node or job.info.run.run_id != run_id:
                try:
                    digest, code = self._codebook.look_up(job.node, job.info.run.run_id)
                except TaskSerializationError as error:
                    mailbox.post(Ended(job.info.task_id, job.info.attempt, Raised(error)))
                    continue
                node, run_id = job.node, job.info.run.run_id
                depth = self._called_nodes.depth_of(node)
                self._looked_up = node, run_id, depth, digest, code
            flights.append(Flight(job, mailbox, number, attended, depth, digest, code))
        return flights
