"""Who waits at the ends of the links: the pool's I/O thread, and a worker's own end.

Of the coordinator's OS threads, the I/O thread alone touches links, workers and the
queue.

::

    any OS thread               I/O thread                            worker process
    -------------               ----------                            --------------
    take, cancel, - commands ->  wait     <- readable: link, stdout, ---- frames
    resolve, leave  (a deque,    read        stderr, pidfd
                    a wake-up)   execute  the commands
                                 expire   the timers
    mailboxes    <- events ----  dispatch -- tasks -------------------->  link

The loop is these five verbs. Other OS threads hand it commands, so nothing in the pool
needs a lock. **No code of the user's runs on it**: whatever blocked it would hold up
the timeouts, deaths and results of every run. Results, chunks and calls stay bytes here
(`arrivals`), what is printed and logged is written on an OS thread of its own
(`side_threads`), and a third one calls what users add to futures, and drops what they
gave. Stores answer on a few OS threads for each run (`request_threads`). What goes
wrong here is reported, and the loop goes on.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from functools import partial
from itertools import count
from traceback import print_exc
from typing import Any, ClassVar, Final, TypeAlias

from flowpregel.context import Job
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.processes import messages, protocol
from flowpregel.executors.processes.serialization import HEADER, Frame, Parser
from flowpregel.executors.processes.watchdog import Watchdog
from flowpregel.executors.unread import LazyFuture

Action: TypeAlias = Callable[[], object]
CHUNK: Final = 1 << 16
"""Bytes that are read at once."""


# ------------------------------------------------ in the coordinator


class Timer:
    """An action that an `IOLoop` calls once, at its time, unless it was cancelled.

    Args:
        loop: The loop.
        action: What it calls.
    """

    __slots__ = ("_loop", "action")

    def __init__(self, loop: IOLoop, action: Action) -> None:
        self._loop = loop
        self.action: Action | None = action
        """None: it was called, or cancelled."""

    def cancel(self) -> None:
        """Do not call the action; on the I/O thread. Nothing happens if that is too
        late.
        """
        if self.action is not None:
            self.action = None
            self._loop.forget_timer()


class IOLoop:
    """Waits for descriptors, commands and timers, on one OS thread.

    Args:
        dispatch: Called at the end of each turn.
        report: Called where an action raises, while that error is handled.
    """

    def __init__(self, dispatch: Action, report: Action = print_exc) -> None:
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap, with those that were cancelled until they are half of it."""
        self._cancelled_timers = 0
        self._order = count()
        self._dispatch = dispatch
        self._report = report
        self.is_done = False
        """Whether this turn is the last."""
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, dict[int, Action]] = {}
        self._commands: deque[Action] = deque()
        self.is_started = self._is_finished = self._is_woken = False
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self.watch(self._wake_read.fileno(), partial(self._wake_read.recv, 4096))
        self._thread = threading.Thread(
            target=self._run, name="flowpregel-io", daemon=True
        )
        self._watchdog = Watchdog()

    # for any OS thread

    def call(self, command: Action) -> None:
        """Execute *command* on the I/O thread; after its end, at once."""
        self._commands.append(command)
        if self._is_finished:
            self._execute_late()
        elif not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                self._wake_write.send(b"\0")

    def start(self) -> None:
        """Start the I/O thread, and what tells when it is held up."""
        self._thread.start()
        self._watchdog.start(self._thread)
        self.is_started = True

    def is_current(self) -> bool:
        """Return whether this is the I/O thread."""
        return self._thread is threading.current_thread()

    def join(self) -> None:
        """Wait for the I/O thread's end, and close what it held."""
        if self.is_started:
            self._thread.join()
        self._is_finished = True
        self._watchdog.close()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    # for the I/O thread

    def call_at(self, when: float, action: Action) -> Timer:
        """Call *action* at *when* (monotonic seconds); return what cancels that."""
        timer = Timer(self, action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def forget_timer(self) -> None:
        """Note that a timer was cancelled; drop all of these once they are half of the
        heap.
        """
        self._cancelled_timers += 1
        if 2 * self._cancelled_timers > len(self._timers):
            self._timers = [
                entry for entry in self._timers if entry[2].action is not None
            ]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    @property
    def timer_count(self) -> int:
        """How many timers will still call their action."""
        return len(self._timers) - self._cancelled_timers

    def watch(
        self, fd: int, read: Action | None = None, write: Action | None = None
    ) -> None:
        """Call *read* whenever *fd* is readable, *write* whenever it can be written.

        Without both it is watched no longer; that must come before it is closed.
        """
        wanted = ((selectors.EVENT_WRITE, write), (selectors.EVENT_READ, read))
        if self._watched.pop(fd, None):
            self._selector.unregister(fd)
        if actions := {event: action for event, action in wanted if action is not None}:
            self._selector.register(fd, sum(actions))
            self._watched[fd] = actions

    # the loop

    def _run(self) -> None:
        watchdog = self._watchdog
        while not self.is_done:
            seconds = (
                max(0.0, self._timers[0][0] - time.monotonic())
                if self._timers
                else None
            )
            ready = self._selector.select(seconds)
            watchdog.turn_began = time.monotonic()
            if not watchdog.is_awake:
                watchdog.wake()
            for key, mask in ready:
                # An earlier one may have ended its watch.
                for event, action in self._watched.get(key.fd, {}).items():
                    if event & mask:
                        self._guarded(action)
            self._is_woken = False
            while self._commands:
                self._guarded(self._commands.popleft())
            self._expire()
            self._guarded(self._dispatch)
            watchdog.turn_began = 0.0
        self._is_finished = True
        self._execute_late()

    def _expire(self) -> None:
        """Call the actions whose time has come."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled_timers -= 1
            else:
                self._guarded(action)

    def _execute_late(self) -> None:
        # After the loop's end, several OS threads may be here.
        with contextlib.suppress(IndexError):
            while True:
                self._guarded(self._commands.popleft())
        self._guarded(self._dispatch)

    def _guarded(self, action: Action) -> None:
        """Call *action*; what it raises must not end the I/O thread, which serves all
        runs.
        """
        try:
            action()
        except BaseException:  # noqa: BLE001 - whatever it is, nobody here may end
            self._report()


# ------------------------------------------------ in a worker


class Answer(CallFuture[Any], LazyFuture[Any]):
    """The result of a call that a task in a worker has made; the task itself reads
    it.
    """

    # An OS thread of its own reads the link: a caller that waits here stops nobody
    # else.
    _needs_loop: ClassVar[bool] = False

    def take(self, body: bytes) -> None:
        """Note that the answer is there, in the *body* of a frame."""
        outcome = messages.PackedOutcome(body)
        if outcome.is_of_cancelled:
            self.settle(outcome.read())  # an error of ours
            return
        if not outcome.is_failure and self._open_calls is not None:
            self._open_calls.discard(self)
        # A task that was stopped has been told so already.
        with contextlib.suppress(InvalidStateError):
            self.arrive(partial(_answer_in, outcome), failed=outcome.is_failure)


def _answer_in(packed: messages.PackedOutcome) -> tuple[Any, BaseException | None]:
    """Return the result of a call, or the error that it raises where its result is
    wanted.
    """
    settled = CallFuture[Any]()
    try:
        settled.settle(packed.read())
        error = settled.exception(0)
    except Exception as problem:  # noqa: BLE001 - the caller is told
        error = problem
    return None if error is not None else settled.result(0), error


class WorkerLink:
    """The worker's end of the link.

    Any OS thread sends, whole frames only. The main thread receives, between tasks,
    until a task makes a request and may wait for the answer: from then on an OS thread
    of its own does.

    Args:
        connection: A connected stream socket.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket = connection
        self._mark = mark
        self._outbox: deque[tuple[bytes, deque[int]]] = deque()
        """Frames, and how many bytes of each were sent, one number for each time."""
        self._sending = threading.Lock()
        self._sender: int | None = None
        self._parser = Parser(mark, protocol.DOWN)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._receiving = threading.Lock()
        self._receiver: threading.Thread | None = None
        self._requests = count(1)
        self.answers: dict[int, Answer] = {}
        """To requests of the task that runs, by number."""
        self.task = 0
        """The number of the task that runs."""
        self.job: Job | None = None
        """Its job, while its code runs."""

    def send(
        self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0
    ) -> None:
        """Send a frame. When the coordinator is gone, nothing happens.

        What a signal handler raises meanwhile is raised at once; the next frame that is
        sent finds what is left of this one.
        """
        head = HEADER.pack(self._mark, kind, flags, 0, number, len(body))
        self._outbox.append((head + body, deque()))
        me = threading.get_ident()
        if self._sender == me:
            # A finalizer or signal handler of user code prints while we send: we go on.
            return
        with self._sending:
            self._sender = me
            try:
                while self._outbox:
                    data, sent = self._outbox[0]
                    if (done := sum(sent)) >= len(data):
                        self._outbox.popleft()
                        continue
                    try:
                        # No signal handler runs between the call and the note of its
                        # result.
                        sent.extend(map(self._socket.send, (memoryview(data)[done:],)))
                    except BlockingIOError:
                        # a task has set it so
                        os.set_blocking(self._socket.fileno(), True)
            except OSError as error:
                if (
                    error.__traceback__ is not None
                    and error.__traceback__.tb_next is not None
                ):
                    raise  # by a handler
                self._outbox = deque(maxlen=0)
            finally:
                self._sender = None

    def disconnect(self) -> None:
        """Send nothing any more: this process is a fork of the worker."""
        self._outbox = deque(maxlen=0)
        self._sending = threading.Lock()
        self._sender = None

    def cancel(self, task: int, future: CallFuture[Any]) -> None:
        """Tell the run that *task* no longer wants a call that it has made."""
        for request, answer in [*self.answers.items()]:
            if answer is future:
                self.send(protocol.CANCELLED, task, protocol.REQUEST.pack(request))

    def next(self) -> Frame | None:
        """Wait for the next frame that is no answer; None: the coordinator is gone."""
        orders = self._orders
        while self._receiver is None and orders.empty():
            with self._receiving:
                if orders.empty():
                    self._receive()
        return orders.get()

    def request(self, kind: int, task: int, body: bytes, answer: Answer) -> Answer:
        """Send a request of *task*; return *answer*, which will have its result."""
        request = next(self._requests) & 0xFFFFFFFF
        self.answers[request] = answer
        if self._receiver is None:
            self._receiver = threading.Thread(
                target=self._receive_all, name="flowpregel-reader", daemon=True
            )
            self._receiver.start()
        self.send(kind, task, protocol.REQUEST.pack(request) + body)
        return answer

    def _receive_all(self) -> None:
        with self._receiving:
            while self._receive():
                pass

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            os.set_blocking(self._socket.fileno(), True)  # a task has set it otherwise
            return True
        except OSError:
            data = b""
        if not data:
            self._orders.put(None)
            return False
        for frame in self._parser.feed(data):
            if frame.kind != protocol.ANSWER:
                self._orders.put(frame)
            elif (answer := self.answers.pop(frame.number, None)) is not None:
                answer.take(frame.body)
        return True
