"""The tasks of one coordinator on a machine of a cluster, and the frames (messages) for
the coordinator that wait to be fetched.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from pickle import PickleBuffer
from typing import Any, Final

from flowpregel._core.ids import Span
from flowpregel._core.records import Returned
from flowpregel.context import nothing
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import HOST
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.worker_process import WorkerProcess
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.protocol import Frame

LONGEST_POLL: Final = 1.0
"""Seconds after which a poll (a request of the coordinator for frames) is answered,
even if there are no frames.
"""
_INLINE: Final = 1 << 20
"""The greatest total size, in bytes, of the large buffers that are sent together with
their frame in the answer to a poll.

The coordinator fetches larger buffers by requests of their own. So the answer to a poll
stays small: it delays no other message, and costs little if it is sent twice.
"""
_PAUSE: Final = 0.005
"""The minimum number of seconds between two answers with frames, so that small frames
are sent together.
"""
GONE: Final = ExecutorUnavailableError("its coordinator did not respond")
RELAYED: Final = Returned(())
"""A placeholder for an outcome that a worker's frame has already brought to the
coordinator.
"""


class CoordinatorClient:
    """The tasks of one coordinator on this machine, the mailbox of their events, and
    the frames that wait for the coordinator.

    Args:
        name: The coordinator's name.
        loop: The loop of the pool, which calls all methods.
    """

    backlog = None

    def __init__(
        self,
        name: str,
        loop: IOLoop,
    ) -> None:
        self.name = name
        self._loop = loop
        self.epoch: int = time.monotonic_ns()
        """A number that distinguishes this client from earlier ones of the same
        coordinator on this machine.
        """
        self.last_poll: float = time.monotonic()
        self.tasks: dict[str, InFlight] = {}
        self.batches: dict[int, set[str]] = {}
        """The keys of the unfinished tasks of each batch, by the number of the
        batch.
        """
        self.slots: int = 0
        """The number of slots that the coordinator has on this machine: the number of
        tasks that may run at once.
        """
        self._held_slots: dict[int, Future[None]] = {}
        """The futures that the engine's tasks for slots wait for, by the number of the
        slot. Each is done when its slot is released.
        """
        self.early_cancels: dict[str, bool] = {}
        """The tasks that were cancelled before they arrived on this machine, each with
        True if it must be stopped even if it runs.
        """
        self.paused: list[WorkerProcess] = []
        """The workers from which nothing is read for now, because too many frames
        wait.
        """
        self.outbox: deque[tuple[Any, ...]] = deque()
        """The frames that the coordinator has not confirmed. Each entry has the number
        of the batch, the pid of the worker, the buffers or their key in
        `large_buffers`, and the fields of the frame.
        """
        self.large_buffers: dict[int, Sequence[PickleBuffer]] = {}
        """The large buffers that the coordinator fetches by separate requests, until it
        has them.
        """
        self._buffer_keys = count(1)
        self.size: int = 0
        """The size of the frames in the outbox, in bytes."""
        self._acked = 0
        """The number of frames that the coordinator has confirmed."""
        self._poll: Future[Sequence[Any]] | None = None
        self._next_answer_at = 0.0
        """The earliest monotonic time at which frames may be sent again."""
        self.is_closed: bool = False
        self.on_close: Callable[[], object] = nothing
        """A function of the engine's plug-in that is called when this client ends. It
        removes the handler through which the coordinator's messages reach this client.
        """

    def key(
        self,
        batch: int,
        number: int,
    ) -> str:
        """Return the key of a task, which is unique on this machine."""
        return f"{self.name}/{batch}/{number}"

    def relay(
        self,
        task: InFlight,
        frame: Frame,
        pid: int = 0,
        buffers: Sequence[PickleBuffer] = (),
    ) -> None:
        """Queue a frame of *task*, to be sent with the next answer to a poll."""
        _, batch, number = task.job.task.id.split("/")
        kind, flags, _, body = frame
        content: Sequence[PickleBuffer] | int = buffers
        size = sum(buffer.raw().nbytes for buffer in buffers)
        if size > _INLINE:
            content = next(self._buffer_keys)
            self.large_buffers[content] = buffers
        message = (int(batch), pid, content, kind, flags, int(number), body)
        self.outbox.append(message)
        self.size += len(body)
        if len(self.outbox) == 1:
            self._answer_soon()

    def drop(self, key: int) -> None:
        """Drop large buffers that the coordinator no longer needs."""
        self.large_buffers.pop(key, None)

    def post(self, *events: Any) -> None:
        """Remove tasks that have ended. If no worker has sent the outcome of a task,
        such as the death of the worker, relay it to the coordinator.
        """
        for end in events:
            task_id, _ = end.task.job.key
            task = self.tasks.pop(task_id, None)
            if task is None:
                continue
            if end.outcome is not RELAYED:
                self._relay_outcome(task, end)
            self._end_in_batch(task_id)

    def _relay_outcome(
        self,
        task: InFlight,
        end: Any,
    ) -> None:
        """Relay an outcome that no worker has sent: the death of the worker, a timeout
        or a cancellation.
        """
        span = end.span or Span(
            0,
            0.0,
            "",
        )
        head = messages.pack_head(span)
        outcome = messages.pack_outcome(end.read().outcome, task.job.task.name)
        # With the flag CAUGHT, the coordinator does not use the duration for its
        # estimates.
        frame = Frame(
            protocol.ENDED,
            protocol.CAUGHT,
            0,
            head + outcome,
        )
        self.relay(
            task,
            frame,
            span.pid,
        )

    def _end_in_batch(self, task_id: str) -> None:
        batch = int(task_id.split("/")[1])
        unfinished = self.batches[batch]
        unfinished.discard(task_id)
        if not unfinished:
            del self.batches[batch]

    def hold(self, slot: int, released: Future[None]) -> None:
        """Set the result of the future *released* when the coordinator releases *slot*,
        or has ended.
        """
        self._held_slots[slot] = released
        if self.is_closed:
            self.release(slot)

    def release(self, slot: int) -> None:
        """End the wait of the engine's task for *slot*, if the slot is on this
        machine.
        """
        released = self._held_slots.pop(slot, None)
        if released is not None:
            released.set_result(None)

    def poll(
        self,
        answer: Future[Any],
        epoch: int,
        received: int,
        wants_frames: bool,
    ) -> None:
        """Set the result of the future *answer* as soon as there are frames, or after
        `LONGEST_POLL` seconds.

        Args:
            answer: The future to set.
            epoch: The epoch of the client from which the coordinator has received these
                frames.
            received: The number of frames that the coordinator has received so far.
                This client drops them.
            wants_frames: False if the coordinator polls only to show that it is alive.
        """
        self.last_poll = time.monotonic()
        while epoch == self.epoch and self._acked < received and self.outbox:
            body = self.outbox.popleft()[-1]
            self.size -= len(body)
            self._acked += 1
        self.answer(self._poll, empty=True)
        self._poll = answer
        if self.is_closed or not wants_frames:
            self.answer(answer, empty=True)
            return
        workers = self.paused
        self.paused = []
        for worker in workers:
            worker.link.resume()
        if self.outbox:
            self._answer_soon()
        self._loop.call_at(self.last_poll + LONGEST_POLL, partial(self.answer, answer))

    def _answer_soon(self) -> None:
        if self._poll is not None:
            self._loop.call_at(self._next_answer_at, partial(self.answer, self._poll))

    def answer(
        self,
        poll: Future[Any] | None,
        *,
        empty: bool = False,
    ) -> None:
        """Answer *poll*, if it still waits for an answer: with all frames or, if
        *empty* is True, with none.
        """
        if poll is None or poll is not self._poll:
            return
        self._poll = None
        frames = [] if empty else list(self.outbox)
        if frames:
            self._next_answer_at = time.monotonic() + _PAUSE
        buffers: list[PickleBuffer] = []
        message = (HOST, self.epoch, self._acked, frames, list(self.batches))
        if poll.set_running_or_notify_cancel():
            pickled = pickle.dumps(
                message,
                5,
                buffer_callback=buffers.append,
            )
            poll.set_result((pickled, *buffers))

    def close(self) -> None:
        """Forget all tasks, and release all slots."""
        self.is_closed = True
        self.tasks.clear()
        self.large_buffers.clear()
        for slot in tuple(self._held_slots):
            self.release(slot)
        self.answer(self._poll, empty=True)
        self.on_close()
