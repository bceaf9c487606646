"""Plain functions on the pool: the pool as a `concurrent.futures.Executor`."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from functools import partial
from itertools import count
from typing import Any, Final

from flowpregel._core.callee import Callee, name_of
from flowpregel._core.effects import Ended, Event
from flowpregel._core.records import Arguments, Kind, Node, Raised, Returned
from flowpregel.context import TaskInfo
from flowpregel.executors.base import Job, JobKey
from flowpregel.executors.calls import returned_by
from flowpregel.executors.capture import captured
from flowpregel.executors.light import LightFuture
from flowpregel.executors.processes.pool import Pool

_MOST: Final = 256
_FIRST: Final = 64
_FURTHER: Final = 1024
"""How many calls are started together, first and later."""


class PoolFuture(LightFuture[Any]):
    """The result of a plain function in a worker; `cancel` stops it even while it runs."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Withdraw the call, or stop it where it runs; return whether it made no result."""
        if not super().cancel():
            return False
        self._stop()
        return True


class _Slips:
    """The mailbox of calls that were made together."""

    attentive = False
    attend: Callable[[float | None], None] | None = None
    interrupt_attend: Callable[[], None] | None = None

    def __init__(self, futures: dict[str, PoolFuture], done: Callable[[PoolFuture], None]) -> None:
        self._futures = futures
        self._done = done

    def post(self, event: Event) -> None:
        """Give a future what its call has become."""
        self.post_all((event,))

    def post_all(self, events: Sequence[Event]) -> None:
        """Give futures what their calls have become."""
        rest = deque(events)
        try:
            while rest:
                self._settle(rest.popleft())
        finally:
            # Ctrl-C may come in the user's callbacks; nobody tells the others again.
            while rest:
                self._settle(rest.popleft())

    def _settle(self, event: Event) -> None:
        if not isinstance(event, Ended):
            return
        future = self._futures.pop(event.task_id, None)
        if future is None:
            # It was told twice, since Ctrl-C came in between.
            return
        self._done(future)
        if isinstance(event.outcome, Returned):
            try:
                future.succeed(returned_by(event.outcome.writes))
            except InvalidStateError:
                future.set_running_or_notify_cancel()
        elif future.set_running_or_notify_cancel():
            if isinstance(event.outcome, Raised):
                future.set_exception(event.outcome.error)
            else:
                future.set_exception(RuntimeError("the pool was closed"))


class PlainCalls:
    """Turns function calls into jobs.

    Args:
        pool: Where they run.
        cancel: Stops a job.
    """

    def __init__(self, pool: Pool, cancel: Callable[[JobKey], None]) -> None:
        self._pool = pool
        self._cancel = cancel
        self._numbers = count(1)
        self._nodes: OrderedDict[int, tuple[Any, Node]] = OrderedDict()
        self._lock = threading.Lock()
        self.open: set[PoolFuture] = set()
        """Futures of calls that have not ended."""

    def submit(self, function: Callable[..., Any], calls: Sequence[Arguments]) -> list[PoolFuture]:
        """Start a call of *function* for each of *calls*, and return their futures."""
        node = self._node(function)
        made: list[PoolFuture] = []
        few = _FIRST
        try:
            while len(made) < len(calls):
                part = calls[len(made) : len(made) + few]
                self._start(node, part, made)
                # The first few at once, so that no worker waits for the others to be made.
                few = min(2 * few, _FURTHER)
        except BaseException:
            # Ctrl-C: nobody will have the futures, and some may not have been started.
            for future in made:
                self.open.discard(future)
                future.cancel()
            raise
        return made

    def _start(self, node: Node, calls: Sequence[Arguments], made: list[PoolFuture]) -> None:
        """Start a call for each of *calls*, and add their futures to *made*."""
        jobs: list[Job] = []
        futures: dict[str, PoolFuture] = {}
        for arguments in calls:
            task_id = f"call-{next(self._numbers)}"
            info = TaskInfo(task_id, node.name, "", 0, 0)
            job = Job(info, Kind.CALL, node, captured(arguments))
            jobs.append(job)
            futures[task_id] = PoolFuture(partial(self._cancel, (task_id, 1)))
        made += futures.values()
        self.open.update(futures.values())
        self._pool.take(jobs, _Slips(futures, self.open.discard))

    def _node(self, function: Callable[..., Any]) -> Node:
        with self._lock:
            known = self._nodes.get(id(function))
            if known is not None:
                return known[1]
            callee = Callee(function, None, (), name_of(function))
            node = Node(name=callee.name, steps=(callee,))
            # The function is kept beside, so that its id names nothing else meanwhile.
            self._nodes[id(function)] = function, node
            if len(self._nodes) > _MOST:
                self._nodes.popitem(last=False)
            return node
