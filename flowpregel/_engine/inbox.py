"""The inbox of a run and of the runs nested in it, and the clock from which their
versions and ids are made.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from flowpregel import _clock
from flowpregel._core.effects import Call, Event, SaveState
from flowpregel._core.records import Withdrawn
from flowpregel._interrupts import interruptible, wakeup_on_signal
from flowpregel.executors.base import Backlog
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.unread import UnreadEvent

if TYPE_CHECKING:
    import asyncio

MOST_AT_ONCE: Final = 512
"""The greatest number of events that one wake-up takes.

The bound lets the run start the tasks that the first events request, and commit the
results in them, before it takes more events.
"""

LONGEST_WAIT: Final = 0.5
"""The longest time of a single wait, in seconds.

If a signal arrives just before Python begins to wait, the signal does not end the wait,
and its handler is called only after the wait.
"""

LATE_READING_LIMIT: Final = 1.0
"""Seconds for which a cancelled run on an event loop still reads (unpickles) a value
from a worker.

Reading may run any user code, and may never end.
"""

_lock = threading.Lock()
_last = 0


def now() -> int:
    """Return wall-clock nanoseconds that are greater than any earlier result in this
    process.

    Versions and checkpoint ids are made from this time, so two results must never be
    equal.
    """
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1_000)
        return _last


def refuse(event: Event | UnreadEvent) -> None:
    """Cancel the call in an event that no run handles, because its caller has ended.

    Such a call comes from an OS thread that has the caller's context and still runs
    after the caller has ended. Without this function, the future of the call would
    never be done.
    """
    if isinstance(event, Call | SaveState) and isinstance(event.reply, CallFuture):
        event.reply.settle(Withdrawn())


@dataclass(eq=False)
class RunInbox:
    """The mailbox (event queue) of a run whose own OS thread waits for events. Some
    events are unread: the values that workers sent in them are still pickled.
    """

    _posted: SimpleQueue[Sequence[Event | UnreadEvent]] = field(
        default_factory=SimpleQueue
    )
    """The posted events that were not taken yet. The queue is a `SimpleQueue`, because
    a signal handler may post at any point of this OS thread's code.
    """
    _events: deque[Event | UnreadEvent] = field(default_factory=deque)
    """The events that were taken out of *_posted*, and that the run has not received
    yet.
    """
    backlog: Backlog = field(default_factory=Backlog)
    is_busy: Callable[[Collection[str]], bool] = lambda waiting: False
    """A function that returns whether a task of the run computes something
    (`TimedWait.is_busy`).
    """
    _timed_wait: _clock.TimedWait | None = None
    """The wait of this run for events, as a test's clock sees it: such a clock skips
    the time of waits, and then ends them.
    """
    _is_closed: bool = False

    @property
    def has_events(self) -> bool:
        """True if `take` would return at once, with events."""
        return bool(self._events) or not self._posted.empty()

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, from any OS thread. After the end of the run, refuse them
        (see `refuse`).
        """
        self._posted.put(events)
        # The flag is read after the event was put into the queue, and `close` sets the
        # flag before it empties the queue. So either this method or `close` finds the
        # event.
        if self._is_closed:
            self._refuse_posted()

    def close(self) -> None:
        """Refuse the events that the run has not taken, and all later events."""
        self._is_closed = True
        if self._timed_wait is not None:
            _clock.present.forget(self._timed_wait)
        for event in self._events:
            refuse(event)
        self._events.clear()
        if not self._posted.empty():
            self._refuse_posted()

    def _refuse_posted(self) -> None:
        with suppress(Empty):
            while True:
                for event in self._posted.get_nowait():
                    refuse(event)

    def take(self, deadline: int | None) -> list[Event]:
        """Return the first `MOST_AT_ONCE` events. If there are no events, wait for one
        until *deadline*.

        The list may be empty even before the deadline, because a single wait is limited
        to `LONGEST_WAIT`.

        Args:
            deadline: The deadline in monotonic nanoseconds. 0 means no wait, and None
                means no deadline.

        Raises:
            BaseException: A signal handler raised this error while a value from a
                worker was read, such as `KeyboardInterrupt` for Ctrl-C.
        """
        if not self._events and self._posted.empty():
            if self.backlog.size:
                self.backlog.clear()
            if deadline != 0:
                self._wait(deadline)
        while not self._posted.empty():
            self._events.extend(self._posted.get_nowait())
        events: list[Event] = []
        for _ in range(min(len(self._events), MOST_AT_ONCE)):
            event: Event | UnreadEvent | None = self._events.popleft()
            if isinstance(event, UnreadEvent):
                event = self._read(event, events)
            if event is not None:
                events.append(event)
        return events

    def _wait(self, deadline: int | None) -> None:
        """Wait until something is posted, until *deadline*, or for `LONGEST_WAIT`."""
        clock = _clock.present
        seconds = LONGEST_WAIT
        if deadline is not None:
            remaining = (deadline - clock.monotonic_ns()) / 1e9
            seconds = max(0.0, min(remaining, LONGEST_WAIT))
        if clock.skips:
            self._enter(clock, deadline)
        get = partial(self._posted.get, timeout=seconds)
        wake = partial(self._posted.put, ())
        try:
            posted = wakeup_on_signal(get, wake)
        except Empty:
            return
        finally:
            if self._timed_wait is not None:
                clock.leave(self._timed_wait)
        self._events.extend(posted)

    def _enter(self, clock: _clock.TimeSource, deadline: int | None) -> None:
        """Register with a test's *clock* that this run waits until *deadline*."""
        if self._timed_wait is None:
            self._timed_wait = _clock.TimedWait(
                self.post, is_busy=self.is_busy, is_lasting=True
            )
        self._timed_wait.until = inf if deadline is None else deadline / 1e9
        clock.enter(self._timed_wait)

    def _read(self, unread: UnreadEvent, before: Sequence[Event]) -> Event | None:
        """Read (unpickle) an event on this OS thread.

        If a signal handler interrupts the reading, the events taken *before* return to
        the inbox, and only the unread value is lost.
        """
        if unread.is_plain:
            return unread.read()
        try:
            return interruptible(unread.read_in_time)
        except BaseException:
            self._put_back([*before, unread.give_up()])
            raise

    def _put_back(self, events: Sequence[Event | UnreadEvent | None]) -> None:
        self._events.extendleft(
            event for event in reversed(events) if event is not None
        )


class LoopInbox(RunInbox):
    """The mailbox (event queue) of a run on an event loop.

    Args:
        loop: The loop, which is running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        super().__init__()
        self._loop = loop
        self._is_awake = asyncio.Event()
        self.reading_limit: float | None = None
        """Seconds after which the reading of a value is abandoned, or None for no
        limit.
        """

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, from any OS thread."""
        super().post(*events)
        # If the loop is closed, no run waits for the event. It comes from a task that
        # could not be stopped when its superstep timed out.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._is_awake.set)

    async def take_on_loop(self, deadline: int | None) -> list[Event]:
        """Take events as `take` does, without blocking the event loop during the wait
        or the reading of values from workers.
        """
        if not self.has_events and deadline != 0:
            await self._wait_on_loop(deadline)
        while not self._posted.empty():
            self._events.extend(self._posted.get_nowait())
        if any(
            isinstance(event, UnreadEvent) and not event.is_plain
            for event in self._events
        ):
            return await self._take_aside()
        return self.take(0)

    async def _wait_on_loop(self, deadline: int | None) -> None:
        """Wait for an event, until *deadline*."""
        if self.backlog.size:
            self.backlog.clear()
        clock = _clock.present
        timer: asyncio.TimerHandle | None = None
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._is_awake.set()

        if deadline is not None:
            # `asyncio.timeout` is not used: in early versions of Python 3.11, it treats
            # the end of the timeout as a cancellation if the task was cancelled before.
            remaining = (deadline - clock.monotonic_ns()) / 1e9
            timer = self._loop.call_later(remaining, end)
        if clock.skips:
            self._enter(clock, deadline)
        try:
            while not (self.has_events or is_over):
                self._is_awake.clear()
                await self._is_awake.wait()
        finally:
            if self._timed_wait is not None:
                clock.leave(self._timed_wait)
            if timer is not None:
                timer.cancel()

    async def _take_aside(self) -> list[Event]:
        """Return the first events, which are read on a separate OS thread.

        If this is cancelled or takes too long, the value that is being read is
        abandoned, and nothing else is lost.
        """
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        unread = [
            self._events.popleft() for _ in range(min(len(self._events), MOST_AT_ONCE))
        ]
        events: list[Event | None] = []
        done = self._loop.create_future()
        threading.Thread(
            target=_read_all,
            args=(unread, events, done),
            name="flowpregel-reading",
            daemon=True,
        ).start()
        is_read = False
        try:
            await asyncio.wait([done], timeout=self.reading_limit)
            is_read = done.done()
        finally:
            if not is_read:
                # The other OS thread runs `_read_all`, which checks before each value
                # whether the future is cancelled. So it reads no further value.
                done.cancel()
                # A copy of the list is passed on, because the other OS thread may still
                # append to the list.
                self._give_up_reading(unread, [*events])
        if not is_read:
            return []
        return [event for event in events if event is not None]

    def _give_up_reading(
        self, unread: Sequence[Event | UnreadEvent], read: Sequence[Event | None]
    ) -> None:
        """Put events back into the inbox: those that were *read*, and those that were
        not, except the first unread event, which is abandoned.
        """
        rest: list[Event | UnreadEvent | None] = [*unread[len(read) :]]
        if rest and isinstance(rest[0], UnreadEvent):
            rest[0] = rest[0].give_up()
        self._put_back([*read, *rest])


def _read_all(
    unread: Sequence[Event | UnreadEvent],
    events: list[Event | None],
    done: asyncio.Future[None],
) -> None:
    """Read the *unread* events into *events* until *done* is cancelled or all are read,
    and then set *done*.
    """
    for event in unread:
        if done.cancelled():
            return
        if isinstance(event, UnreadEvent):
            events.append(event.read_in_time())
        else:
            events.append(event)
    # If the loop has been closed, no coroutine waits for the events.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_set_done, done)


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
