"""The intake: makes flights of jobs, with the code that their workers need."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from itertools import chain, repeat
from typing import Final, TypeAlias

from flowpregel._core.effects import Ended
from flowpregel._core.records import Node, Raised
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.base import Job, Mailbox
from flowpregel.executors.processes.codebook import Codebook
from flowpregel.executors.processes.line import CalledNodes
from flowpregel.executors.processes.slot import Flight, Party

_LookedUp: TypeAlias = tuple[Node | None, str | None, int, bytes, bytes]
_NUMBERS: Final = range(1, 1 << 32)
"""Names of flights; after the last of them comes the first."""


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
        self._numbers = chain.from_iterable(repeat(_NUMBERS))

    def flights_of(
        self, jobs: Sequence[Job], mailbox: Mailbox, attended: bool
    ) -> dict[int, Flight]:
        """Return a flight for each job whose code can be sent, by number; the others end.

        Args:
            jobs: What is to be done.
            mailbox: Where their events go.
            attended: Whether the run's own OS thread comes to read.
        """
        flights: dict[int, Flight] = {}
        node, run, timeout, party = None, None, None, None
        variables = copy_context()
        for job, number in zip(jobs, self._numbers, strict=False):
            if job.variables is None:
                job.variables = variables
            if job.node is not node or job.info.run is not run or job.timeout is not timeout:
                node, run, timeout = job.node, job.info.run, job.timeout
                party = self._party_of(job, mailbox, attended)
            if party is None:
                # The next may be of the same node, and ends the same way.
                node = None
                continue
            flights[number] = Flight(job, party, number)
        return flights

    def _party_of(self, job: Job, mailbox: Mailbox, attended: bool) -> Party | None:
        """Return what *job* and those that are like it have in common; None: it ended."""
        last, last_run, depth, digest, code = self._looked_up
        node, run_id = job.node, job.info.run.run_id
        if node is not last or run_id != last_run:
            try:
                digest, code = self._codebook.look_up(node, run_id)
            except TaskSerializationError as error:
                mailbox.post(Ended(job.info.task_id, job.info.attempt, Raised(error)))
                return None
            depth = self._called_nodes.depth_of(node)
            self._looked_up = node, run_id, depth, digest, code
        return Party(mailbox, attended, depth, digest, code, job.timeout)
