"""The packing of jobs, and the decoding of the calls that tasks make.

A job is packed once, on the OS thread that starts it. So the task gets the values that
the caller had at that time, and no user code runs on the I/O thread. The bytes are kept
until the task has ended. Buffers that do not fit into shared memory are part of these
bytes, so each run limits the number of bytes that it has in the pool
(`ConcurrencyLimit`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from flowpregel._core.effects import Call
from flowpregel._core.records import Node
from flowpregel._loggers import worker_log
from flowpregel.carried import brought
from flowpregel.context import Job
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.code_cache import CalledNodes, codes
from flowpregel.executors.processes.wire.messages import pack_job
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import REQUEST
from flowpregel.executors.processes.wire.serialization import moved, unpack
from flowpregel.executors.processes.wire.shared_memory import Arena


class JobEncoder:
    """An encoder of jobs for workers, and a decoder of the calls that workers send
    back.

    Args:
        arena: The shared memory for large inputs.
    """

    def __init__(self, arena: Arena) -> None:
        self.repeats_calls: bool = False
        """True if a task may be lost with its machine, and is then started again, so
        that it repeats its calls.
        """
        self.arena: Arena = arena
        self.code_of: Callable[[Node], NodeCode] = codes.code_of
        """A function that returns the packed code of a node."""
        self._ids = count(1)
        self._called = CalledNodes()

    def encode(self, job: Job, mailbox: Mailbox) -> InFlight:
        """Pack *job*, and return the pool's record of it.

        Any OS thread may call this.

        Raises:
            TaskSerializationError: A part of *job* cannot be pickled.
        """
        task = job.task
        code = task.code or self.code_of(task.node)
        contexts: list[bytes] = []
        if task.node.contexts:
            # The import is done only here, because `flowpregel.channels.context` loads
            # all channels.
            from flowpregel.channels.context import contexts_in  # noqa: PLC0415

            contexts += (channel.held.token for channel in contexts_in(task.input))
        body, refs = pack_job(job, self.arena.share)
        if self.arena.is_full:
            self.arena.is_full = False
            worker_log.warning(
                "no shared memory is left for the input of task %r: it goes through "
                "the link, which is slower",
                task.name,
            )
        return InFlight(next(self._ids), job, mailbox, code, contexts, body, refs)

    def inline_buffers(self, task: InFlight) -> None:
        """Copy the large buffers of *task* from shared memory into its packed job."""
        task.body, _ = moved(task.body, self.arena.view)
        self.arena.release(ref.id for ref in task.refs)
        task.refs = ()

    def decode_call(self, task: InFlight, body: bytes) -> Call:
        """Return the call in the body of a message (frame) that *task* has sent.

        Raises:
            BaseException: Any error that unpickling a part raises.
        """
        (request,) = REQUEST.unpack_from(body)
        code, arguments, call_key, carried = unpack(body, None, REQUEST.size)
        node = self._called.node_of(code)
        call = Call(*task.job.key, node, arguments, call_key)
        call.reply = (task, request)
        call.may_repeat = self.repeats_calls
        if carried is not None:
            call.variables = brought(carried)
        return call
