"""The packing of jobs, and the reading of the calls that tasks make."""

from __future__ import annotations

import logging
from itertools import count
from typing import Final

from flowpregel._core.effects import Call
from flowpregel.carried import brought
from flowpregel.context import Job
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.code_cache import CalledNodes, codes
from flowpregel.executors.processes.wire.messages import pack_job
from flowpregel.executors.processes.wire.protocol import REQUEST
from flowpregel.executors.processes.wire.serialization import unpack
from flowpregel.executors.processes.wire.shared_memory import Arena

_log: Final = logging.getLogger("flowpregel.worker")
_LARGE: Final = 1 << 20
"""Bytes of a packed job that does not wait: it is packed again when a worker is
free.
"""


class JobEncoder:
    """Packs jobs. A job is packed when it is taken: its task gets what the caller had
    then.

    Args:
        arena: Shared memory for large inputs.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._ids = count(1)
        self._called = CalledNodes()

    def encode(self, job: Job, mailbox: Mailbox) -> InFlight:
        """Return *job* as the pool keeps it; from any OS thread.

        Raises:
            TaskSerializationError: A part of it cannot be pickled.
        """
        code = job.task.code or codes.code_of(job.task.node)
        contexts: list[bytes] = []
        if job.task.node.contexts:
            from flowpregel.channels.context import contexts_in  # noqa: PLC0415 - all channels

            contexts = [each.held.token for each in contexts_in(job.task.input)]
        task = InFlight(next(self._ids), job, mailbox, code, contexts)
        if len(self.pack(task)) > _LARGE:
            # Shared memory is full. Very many such jobs must not fill all other memory
            # too.
            task.body = None
        return task

    def pack(self, task: InFlight, *, share: bool = True) -> bytes:
        """Pack the job of *task*; return its bytes.

        Raises:
            TaskSerializationError: A part of it cannot be pickled.
        """
        task.body, task.refs = pack_job(task.job, self._arena.share if share else None)
        if self._arena.is_full:
            self._arena.is_full = False
            _log.warning(
                "no shared memory is left for the input of task %r: it goes through "
                "the link, "
                "which is slower",
                task.job.task.name,
            )
        return task.body

    def decode_call(self, task: InFlight, body: bytes) -> Call:
        """Return the call that a worker says *task* makes.

        Raises:
            BaseException: Whatever the unpickling of a part raises.
        """
        (request,) = REQUEST.unpack_from(body)
        code, arguments, asked, carried = unpack(body, None, REQUEST.size)
        node = self._called.node_of(code)
        call = Call(*task.job.key, node, arguments, asked)
        call.reply = (task, request)
        if carried is not None:
            call.variables = brought(carried)
        return call
