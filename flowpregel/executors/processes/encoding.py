"""Jobs on their way to workers, and calls on their way back, as bytes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from itertools import count
from typing import Final

from flowpregel._core.effects import Call
from flowpregel._core.records import Node
from flowpregel.channels.context import contexts_in
from flowpregel.errors import FlowPregelError, TaskSerializationError
from flowpregel.executors.base import Job, Mailbox
from flowpregel.executors.processes import messages, serialization
from flowpregel.executors.processes.assign import InFlight, NodeCode
from flowpregel.executors.processes.messages import NodeCodeCache
from flowpregel.executors.processes.protocol import REQUEST
from flowpregel.executors.processes.shared_memory import Arena

_log: Final = logging.getLogger("flowpregel.worker")
_MOST: Final = 1024
_LARGE: Final = 1 << 20
"""Bytes of a packed job that does not wait: it is packed again when a worker is free."""


class JobEncoder:
    """Packs jobs. A job is packed when it is taken: its task gets what the caller had then.

    Args:
        arena: Shared memory for large inputs.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._ids = count(1)
        self._codebook = NodeCodeCache()
        self._codes: OrderedDict[bytes, NodeCode] = OrderedDict()
        self._called: OrderedDict[tuple[bytes, int], Node] = OrderedDict()
        self._depths: dict[int, int] = {}
        self._lock = threading.Lock()

    def encode(self, job: Job, mailbox: Mailbox) -> InFlight:
        """Return *job* as the pool keeps it; from any OS thread.

        Raises:
            FlowPregelError: A part of it cannot be pickled.
        """
        code = self._code_of(job)
        depth = self._depths.get(id(job.node), 0)
        contexts = [each.held.token for each in contexts_in(job.input)] if job.node.contexts else ()
        task = InFlight(next(self._ids), job, mailbox, code, depth, contexts)
        if len(self.pack(task)) > _LARGE:
            # Shared memory is full. Very many such jobs must not fill all other memory too.
            task.body = None
        return task

    def _code_of(self, job: Job) -> NodeCode:
        digest, data = self._codebook.look_up(job.node, job.info.run.run_id)
        with self._lock:
            code = self._codes.setdefault(digest, NodeCode(digest, data))
            if len(self._codes) > _MOST:
                self._codes.popitem(last=False)
        return code

    def pack(self, task: InFlight, *, share: bool = True) -> bytes:
        """Pack the job of *task* if it is not packed; return its bytes.

        Raises:
            FlowPregelError: A part of it cannot be pickled.
        """
        if task.body is not None and share:
            return task.body
        name, arena = task.job.info.name, self._arena
        try:
            task.body, task.refs = messages.pack_job(task.job, arena if share else None)
        except FlowPregelError:
            raise
        except Exception as error:
            raise TaskSerializationError(name, "the input", "input", repr(error)) from error
        if arena.is_full:
            arena.is_full = False
            _log.warning(
                "no shared memory is left for the input of task %r: it goes through the link, "
                "which is slower", name,
            )  # fmt: skip
        return task.body

    def decode_call(self, task: InFlight, body: bytes) -> Call:
        """Return the call that a worker says *task* makes.

        Calls of one code from tasks of one depth have the same node object, so that the
        node of a job shows how deeply its task is nested.

        Raises:
            BaseException: Whatever the unpickling of a part raises.
        """
        (request,) = REQUEST.unpack_from(body)
        code, arguments, fingerprint, describe, carried = serialization.unpack(
            body, None, REQUEST.size
        )
        key = serialization.digest_of(code), task.depth + 1
        node = self._called.get(key)
        if node is None:
            node = self._called[key] = serialization.loads(code)
            self._depths[id(node)] = task.depth + 1
            if len(self._called) > _MOST:
                _, oldest = self._called.popitem(last=False)
                self._depths.pop(id(oldest), None)
        info = task.job.info
        call = Call(info.task_id, info.attempt, node, arguments, fingerprint, describe)
        call.reply = (task, request)
        if carried is not None:
            call.variables = messages.variables_of(carried)
        return call
