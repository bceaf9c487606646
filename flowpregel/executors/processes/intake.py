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
from flowpregel.executors.processes.line import CalledNodes
from flowpregel.executors.processes.messages import NodeCodeCache
from flowpregel.executors.processes.slot import Flight, Party

_Known: TypeAlias = tuple[Node | None, str | None, Party]
_NUMBERS: Final = range(1, 1 << 32)
"""Names of flights; after the last of them comes the first."""


class Intake:
    """Makes flights.

    Args:
        called_nodes: Tells how deep a task is nested.
    """

    def __init__(self, called_nodes: CalledNodes) -> None:
        self._called_nodes = called_nodes
        self._codebook = NodeCodeCache()
        self._last: _Known = (None, None, Party(True))
        """What was last made, which often is what is wanted next."""
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
        node, run_id, party = self._last
        numbers, variables = self._numbers, copy_context()
        for job in jobs:
            if job.variables is None:
                job.variables = variables
            if (
                job.node is not node
                or job.info.run.run_id != run_id
                or job.timeout is not party.timeout
                or attended is not party.attended
            ):
                try:
                    party = self._party_of(job, attended)
                except TaskSerializationError as error:
                    mailbox.post(Ended(job.info.task_id, job.info.attempt, Raised(error)))
                    continue
                node, run_id = job.node, job.info.run.run_id
                self._last = node, run_id, party
            number = next(numbers)
            flights[number] = Flight(job, mailbox, party, number)
        return flights

    def _party_of(self, job: Job, attended: bool) -> Party:
        """Return what *job* has in common with others.

        Raises:
            TaskSerializationError: Its code cannot be sent.
        """
        digest, code = self._codebook.look_up(job.node, job.info.run.run_id)
        return Party(attended, self._called_nodes.depth_of(job.node), digest, code, job.timeout)
