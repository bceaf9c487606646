"""Who reads the links: the OS thread that waits anyway, or the caretaker.

::

    run's OS thread --attend--> seat --\
    run's OS thread --attend--> seat ---+--> the one reading role --> epoll --> links, pidfds, pipes
    caretaker (OS thread of the pool) -/

A result that its own run reads crosses no other OS thread on its way. One OS
thread at a time holds the role; who comes later waits at its seat until
something is posted to its run, or the role falls to it. The caretaker takes the
role when nobody has come for it for a moment, or when a run cannot come (it
lives on an event loop).
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.patience import Patience

_CARE: Final = 0.005
"""Seconds without a reader after which the caretaker reads."""
_FOREVER: Final = 3600.0


class _Poll:
    """`select.poll` with the face of `select.epoll`, where there is no epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register = self._poll.register
        self.unregister = self._poll.unregister
        self.modify = self._poll.modify

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Wait at most *timeout* seconds; return what is ready."""
        return self._poll.poll(timeout * 1000)

    def close(self) -> None:
        """Nothing is held."""


def _new_poller() -> Any:
    return select.epoll() if hasattr(select, "epoll") else _Poll()


class Owner(Protocol):
    """The pool, as the hub sees it."""

    def is_busy(self) -> bool:
        """Whether links must be read."""

    def has_unattended(self) -> bool:
        """Whether a run that cannot read waits for something."""

    def has_spare_cpu(self) -> bool:
        """Whether there are more CPUs than workers at work."""

    def tick(self, now: float) -> float | None:
        """Do what is due; return when to be called again (monotonic seconds)."""

    def idle_wait(self) -> float | None:
        """Return for how many seconds nothing is due while no task runs."""


class Seat:
    """A run's place at the hub; its mailbox holds the two methods."""

    __slots__ = ("_gate", "called", "hub", "place")

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.called = False
        """Whether something was posted since the run last waited."""
        self.place = ""
        """Where the run waits: it "reads", it "sits", or it is elsewhere."""

    def attend(self, timeout: float | None) -> None:
        """Read the links until something is posted to this run, or *timeout* seconds passed."""
        self.hub.attend(self, timeout)

    def interrupt(self) -> None:
        """Make a blocked `attend` return; safe from any OS thread."""
        if self.called:
            # It was told before, and looks for what was posted once it has come.
            return
        self.called = True
        if self.place == "reads":
            self.hub.rouse(self)
        elif self.place == "sits":
            self._gate.put(None)

    def sit(self, seconds: float | None) -> None:
        """Wait to be called."""
        try:
            self._gate.get(timeout=seconds)
        except queue.Empty:
            return

    def call(self) -> None:
        """Wake the run that sits here."""
        self._gate.put(None)


class Hub:
    """The reading role, and the caretaker that takes it when nobody else does.

    Args:
        owner: The pool: what is due, and whether there is anything to read.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._poller = _new_poller()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._muted: set[int] = set()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self.watch(self._wake_read, self._drain)
        self._role = threading.Lock()
        self._reader: int | None = None
        self._sitting: deque[Seat] = deque()
        self._patience = Patience()
        self._turns = 0
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._resting = False
        self._closed = False
        self._caretaker: threading.Thread | None = None

    # ------------------------------------------------ what is read

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call *handler* whenever *fd* is readable."""
        self._handlers[fd] = handler
        self._poller.register(fd, select.POLLIN)

    def watch_writable(self, fd: int, handler: Callable[[], None]) -> None:
        """Call *handler* once *fd*, which is watched already, can be written."""
        self._writers[fd] = handler
        self._look_out(fd)
        self.wake()

    def mute(self, fd: int, muted: bool) -> None:
        """Leave *fd* unread for now, or read it again."""
        if fd not in self._handlers or muted == (fd in self._muted):
            return
        if muted:
            self._muted.add(fd)
        else:
            self._muted.discard(fd)
        self._look_out(fd)
        if not muted:
            self.wake()

    def _look_out(self, fd: int) -> None:
        """Ask to be told of what matters now at *fd*; of its end, one is told anyway."""
        reads = 0 if fd in self._muted else select.POLLIN
        self._poller.modify(fd, reads | (select.POLLOUT if fd in self._writers else 0))

    def forget(self, fd: int) -> None:
        """Watch *fd* no longer; must come before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._writers.pop(fd, None)
            self._muted.discard(fd)
            self._poller.unregister(fd)

    def __contains__(self, fd: int) -> bool:
        return fd in self._handlers

    @property
    def is_reading(self) -> bool:
        """Whether the calling OS thread is the one that reads."""
        return self._reader == threading.get_ident()

    # ------------------------------------------------ who reads

    def seat(self, mailbox: Mailbox) -> bool:
        """Give the run of *mailbox* a seat; return whether it comes to read."""
        if not getattr(mailbox, "attentive", True):
            return False
        attend = mailbox.attend
        if attend is None:
            seat = Seat(self)
            mailbox.interrupt_attend = seat.interrupt
            mailbox.attend = seat.attend
            return True
        taken = getattr(attend, "__self__", None)
        return isinstance(taken, Seat) and taken.hub is self

    def attend(self, seat: Seat, timeout: float | None) -> None:
        """Read, or wait at *seat*, until the seat is called or the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._turns += 1
        while not seat.called:
            if self._closed:
                # The run may still wait for something that runs elsewhere.
                self._sit_alone(seat, deadline)
            elif self._role.acquire(blocking=False):
                self._lead(seat, deadline)
            else:
                self._follow(seat, deadline)
            if deadline is not None and time.monotonic() >= deadline:
                break
        seat.called = False
        self._turns += 1

    def _lead(self, seat: Seat, deadline: float | None) -> None:
        self._reader = threading.get_ident()
        seat.place = "reads"
        try:
            while not seat.called and not self._closed:
                now = self._serve(deadline)
                if deadline is not None and now >= deadline:
                    return
        finally:
            seat.place = ""
            self._resign()

    def _follow(self, seat: Seat, deadline: float | None) -> None:
        seat.place = "sits"
        self._sitting.append(seat)
        try:
            # The role may have become free before the seat was in the row.
            if seat.called or not self._role.locked():
                return
            if not self._owner.has_unattended():
                self.wake()
            seat.sit(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            seat.place = ""
            self._sitting.remove(seat)

    def _sit_alone(self, seat: Seat, deadline: float | None) -> None:
        seat.place = "sits"
        if not seat.called:
            seat.sit(None if deadline is None else max(0.0, deadline - time.monotonic()))
        seat.place = ""

    def _resign(self) -> None:
        self._reader = None
        self._role.release()
        for seat in tuple(self._sitting):
            seat.call()
            break

    def rouse(self, seat: Seat) -> None:
        """Make the reader look up, unless it is the calling OS thread itself."""
        if self._reader != threading.get_ident():
            self.wake()

    def wake(self) -> None:
        """Make whoever reads look up."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return

    def _drain(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def _serve(self, deadline: float | None) -> float:
        """Wait once for something to read, and handle it; return the time."""
        now = time.monotonic()
        until = now + _FOREVER
        if deadline is not None and deadline < until:
            until = deadline
        due = self._owner.tick(now)
        if due is not None and due < until:
            until = due
        for fd, mask in self._wait(until - now if until > now else 0.0):
            if mask & select.POLLOUT and (writer := self._writers.get(fd)):
                writer()
            if mask & ~select.POLLOUT and (handler := self._handlers.get(fd)):
                handler()
        return time.monotonic()

    def _wait(self, seconds: float) -> list[tuple[int, int]]:
        """Wait at most so long for something to read; return what is there."""
        began = time.monotonic_ns()
        ready: list[tuple[int, int]] | None = None
        if self._owner.has_spare_cpu():
            ready = self._patience.look(lambda: self._poller.poll(0))
        if not ready:
            ready = self._poller.poll(seconds)
        self._patience.waited(time.monotonic_ns() - began)
        return ready

    def written(self, fd: int) -> None:
        """Nothing is left to be written to *fd*."""
        if self._writers.pop(fd, None) is not None:
            self._look_out(fd)

    # ------------------------------------------------ the caretaker

    def start(self) -> None:
        """Start the caretaker."""
        self._caretaker = threading.Thread(
            target=self._care, name="flowpregel-caretaker", daemon=True
        )
        self._caretaker.start()

    def alert(self) -> None:
        """Something began: see that the caretaker looks after it."""
        if self._resting:
            self._resting = False
            self._bell.put(None)
        elif self._reader is None and self._owner.has_unattended():
            self._bell.put(None)

    def _care(self) -> None:
        while not self._closed:
            turns = self._turns
            if not self._owner.is_busy():
                self._resting = True
                # Asked again, since `alert` may have come between.
                wait = 0.0 if self._owner.is_busy() else self._owner.idle_wait()
                self._rest(wait)
                self._resting = False
                self._owner.tick(time.monotonic())
                continue
            if self._owner.has_unattended():
                if self._role.acquire(timeout=_CARE):
                    self._take_care()
                continue
            self._rest(_CARE)
            # Who reads now is left alone: to queue for the role would take it from
            # a run that comes back for it at once.
            if turns == self._turns and self._role.acquire(blocking=False):
                self._take_care()

    def _take_care(self) -> None:
        self._reader = threading.get_ident()
        try:
            while not self._closed and self._owner.is_busy():
                self._serve(None)
                if self._sitting and not self._owner.has_unattended():
                    return
        finally:
            self._resign()

    def _rest(self, seconds: float | None) -> None:
        try:
            self._bell.get(timeout=seconds)
        except queue.Empty:
            return

    def close(self) -> None:
        """Stop reading; wait for the caretaker."""
        self._closed = True
        self._bell.put(None)
        self.wake()
        for seat in tuple(self._sitting):
            seat.call()
        thread = self._caretaker
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._role:
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)
            self._poller.close()
