"""What a coordinator knows of machines elsewhere: their batches, and the buffers of
their tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

from flowpregel.context import nothing
from flowpregel.executors.processes.assign import InFlight, TaskQueue
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.shared_memory import Arena, origin_of
from flowpregel.executors.processes.side_threads import Unwritten

_BATCH_SECONDS: Final = 0.2
"""For how long a batch is to keep a place on a machine busy."""
_LEAST_SECONDS: Final = 0.02
"""What takes no longer than that is not shared out among machines."""
_AHEAD: Final = 1.0
"""A machine gets tasks ahead of time if they take no longer than that: seconds."""


class Buffers(Arena):
    """Large buffers of tasks: the engine moves each of them once, for all tasks that
    need it.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._ids = count(1)
        self._blobs: dict[int, tuple[Blob, memoryview]] = {}

    def share(self, data: memoryview) -> BufferRef:
        """Keep *data* until it is released; what lies in shared memory does not
        change.
        """
        blob = Blob(next(self._ids))
        if origin_of(data) is not None:
            holder: Any = data.obj
            if not hasattr(holder, "blobs"):
                holder.blobs = WeakKeyDictionary()
            blob = holder.blobs.setdefault(self, blob)
        ref = BufferRef(next(self._ids), blob.key, data.nbytes)
        self._blobs[ref.id] = blob, data
        return ref

    def handles(
        self, refs: Sequence[BufferRef], put: Callable[[memoryview], Any]
    ) -> dict[int, Any]:
        """Return the engine's handles of buffers, by their keys; *put* makes those that
        miss.
        """
        found = {}
        for ref in refs:
            blob, data = self._blobs[ref.id]
            blob.handle = blob.handle or put(data)
            found[blob.key] = blob.handle
        return found

    def release(self, ref_ids: Iterable[int]) -> None:
        """Keep them no longer for one task."""
        for ref_id in ref_ids:
            self._blobs.pop(ref_id, None)


@dataclass(slots=True, eq=False)
class Blob:
    """A large buffer for the engine."""

    key: int
    handle: Any = None
    """The engine's own, once it has it."""


@dataclass(slots=True, eq=False)
class Site:
    """One machine, as the coordinator sees it."""

    address: str
    size: int
    """How many tasks run there at once."""
    batches: dict[int, RemoteBatch] = field(default_factory=dict)
    orders: list[tuple[Any, ...]] = field(default_factory=list)
    """What it is to be told at the end of this turn."""
    is_used: bool = False
    """Whether it was ever sent a batch: else there is no pool of ours."""
    heard: float = field(default_factory=time.monotonic)
    host: str = ""
    """Its own name for itself."""
    epoch: int = 0
    taken: int = 0
    """How many frames it was heard of, in that epoch."""
    poll: Future[Any] | None = None
    """The last one, while it is not answered."""
    is_held: bool = False
    """Whether nothing more is wanted of it for now: its run is behind."""
    is_silent: bool = False
    """Whether it gets no more: it, or a batch, was given up, and it was not heard of
    since.
    """

    @property
    def load(self) -> float:
        """How many batches it has for each of its places, without those that wait for
        calls.
        """
        working = sum(
            not any(task.calls for task in batch.tasks.values())
            for batch in self.batches.values()
        )
        return working / self.size


class Sites(dict[str, Site]):
    """The machines by address, and what is decided about them."""

    def next_for(self, queue: TaskQueue) -> Site | None:
        """Return the machine that is to have the next tasks of *queue*; None: all are
        busy.
        """
        heard = [each for each in self.values() if not each.is_silent]
        site = min(heard, key=lambda each: each.load, default=None)
        most = 2 if next(iter(queue)).seconds <= _AHEAD else 1
        return site if site is not None and site.load < most else None

    def batch_size(self, queue: TaskQueue) -> int:
        """Return how many of the next tasks keep one place busy, and leave some for the
        others.
        """
        most = queue.count // (2 * sum(each.size for each in self.values()))
        count, seconds = 0, 0.0
        for task in queue:
            seconds += task.seconds
            if count and seconds > (_BATCH_SECONDS if count < most else _LEAST_SECONDS):
                break
            count += 1
        return count

    def lost(
        self, machines: Mapping[str, int] | None, since: float
    ) -> list[RemoteBatch]:
        """Note which *machines* there are; return the batches to give up.

        Args:
            machines: The engine's; None: it cannot be asked, and nothing is given up.
            since: When a machine must have been heard of: monotonic seconds.
        """
        lost: list[RemoteBatch] = []
        if machines is None:
            return lost
        for address in machines.keys() - self.keys():
            self[address] = Site(address, machines[address])
        for site in [*self.values()]:
            is_gone = site.address not in machines
            is_lost = is_gone or (site.batches and site.heard < since)
            if is_gone:
                del self[site.address]
            elif is_lost:
                # It is asked again, now and then.
                site.heard, site.is_silent, site.poll = time.monotonic(), True, None
            lost += [each for each in site.batches.values() if is_lost or each.failure]
        return lost


class RemoteBatch:
    """Tasks with a machine. For the handler of messages it is the worker that has
    them.
    """

    def __init__(self, id: int, site: Site, tasks: Sequence[InFlight]) -> None:
        self.id = id
        self.site = site
        self.tasks = dict(enumerate(tasks))
        """Those that have not ended, by number."""
        self.pid, self.tail = 0, ""
        self.unwritten = Unwritten(nothing)
        """What its tasks have printed and logged, and nobody has written."""
        self.heard = 0.0
        self.callers: set[int] = set()
        """Those of its tasks that made calls: they cannot begin again elsewhere."""
        self.failure: BaseException | None = None
        """Why the engine has given it up."""
        self.reader = self
        self.buffers: Sequence[Any] = ()
        """The large ones of the frame that is read."""

    @property
    def host(self) -> str:
        """The machine's own name for itself."""
        return self.site.host

    def open(self, ref: BufferRef) -> memoryview:
        """Return a large buffer, to read and to write."""
        view = memoryview(self.buffers[ref.segment]).cast("B")
        return memoryview(bytearray(view)) if view.readonly else view

    def sender_of(self, number: int) -> InFlight | None:
        """Return the task that has sent a frame with that *number*, if it has not
        ended.
        """
        return self.tasks.get(number)

    def order(self, order: str, task: InFlight, *more: Any) -> None:
        """Have the machine do something about *task* at the end of this turn."""
        self.site.orders.append((order, self.id, task.number, *more))

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Have the machine give *task* what it has asked for."""
        self.order("answer", task, request, body)

    def unhold(self) -> None:
        """Hear the machine again, if it was held back."""
        self.site.is_held = False
