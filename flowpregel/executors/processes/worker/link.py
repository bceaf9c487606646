"""The worker's end of the link to the coordinator: messages (frames) in both
directions, and the answers to requests of the running task.

Theory of operation. The link is one stream socket, and three kinds of OS threads use
it::

    any OS thread    send() ---- outbox ---- whole frames ------> coordinator
    main thread      next() <--- orders <--+
                                           +-- parser <---------- coordinator
    threads of the   Answer <--------------+
    task's code

**Who receives.** A worker whose tasks make no calls needs one OS thread: between two
tasks the main thread reads the socket itself, which saves a hand-over between OS
threads for each task. A task that has made a request may wait for the answer on the
main thread. So the first request starts a reader thread, which from then on reads for
the rest of the worker's life; the main thread gets its frames from ``orders``. The
reader thread itself notes that it reads (``_has_reader``), because a stop signal may
interrupt its start at any point: the main thread would wait forever for the frames of
an OS thread that does not run. ``_receiving`` is held by the main thread while it
reads, so the reader thread begins behind a whole read.

**Who sends.** Any OS thread may emit, print or make a call, so ``_sending`` is held for
whole frames. Code of the user can also interrupt the sending OS thread itself: a
finalizer or a signal handler that prints. It must not wait for the lock that its own
OS thread holds, so it only appends to the outbox, and the interrupted loop sends its
frame too.

**A frame is never torn.** A signal handler that stops a task raises at any bytecode,
also while a frame is half sent. The frame stays in the outbox, with the counts of bytes
that ``send`` has returned, and the next call sends the rest. Calling ``send`` and
storing its count are one step in C (``deque.extend`` of a ``map``), since an exception
between the two would send some bytes twice.

**Both ends end.** If the coordinator is gone, the socket is at its end: frames are
dropped from then on, and ``next`` returns None. A task may make the socket
non-blocking, because it inherits the descriptor; the link makes the socket blocking
again when it notices that.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections import deque
from concurrent.futures import InvalidStateError
from functools import partial
from itertools import count
from typing import Any, ClassVar

from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.records import Withdrawn
from flowpregel.context import Job
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.protocol import (
    HEADER,
    READ_SIZE,
    Frame,
    Parser,
)
from flowpregel.executors.unread import LazyFuture


class Answer(CallFuture[Any], LazyFuture[Any]):
    """The future of a call that a task in a worker has made. The task itself unpickles
    the result.
    """

    # `result` may be called on an event loop too: the answer arrives on a separate OS
    # thread, so waiting cannot prevent it.
    _needs_loop: ClassVar[bool] = False

    @property
    def is_unread(self) -> bool:
        """True if the result has arrived as bytes, and has not been unpickled."""
        return self._read is not None

    def take(self, body: bytes) -> None:
        """Set the result or the error of this future from the *body* of an ANSWER
        message.
        """
        outcome = messages.PackedOutcome(body)
        if outcome.is_of_cancelled:
            # The error is the library's own, so unpickling it runs no user code.
            self.settle(outcome.read())
            return
        if not outcome.is_failure and self._open_calls is not None:
            self._open_calls.discard(self)
        # If the task was stopped, this future is already done, so the answer is
        # dropped.
        with contextlib.suppress(InvalidStateError):
            read = partial(self._answer_in, outcome)
            self.arrive(read, failed=outcome.is_failure)

    def _answer_in(
        self, packed: messages.PackedOutcome
    ) -> tuple[Any, BaseException | None]:
        """Unpickle the outcome of a call, and return the result and the error. One of
        the two is None.
        """
        settled = CallFuture[Any]()
        try:
            settled.settle(packed.read())
            self.items: ItemOutcomes | None = settled.items
            # Some outcomes leave the future `settled` pending. With the timeout 0, the
            # next line then raises an error instead of waiting forever.
            error = settled.exception(0)
        except Exception as problem:  # noqa: BLE001 - the caller gets it
            error = problem
        if error is not None:
            return None, error
        return settled.result(0), None


class WorkerLink:
    """The worker's end of the link to the coordinator.

    Any OS thread may send, and always sends whole frames. The main thread receives
    between tasks, until a task makes a request and may wait for the answer. From then
    on, a separate OS thread receives.

    Args:
        connection: A connected stream socket.
        magic: The number with which every frame begins.
    """

    def __init__(self, connection: socket.socket, magic: int) -> None:
        self._socket = connection
        self._magic = magic
        self._outbox: deque[tuple[bytes, deque[int]]] = deque()
        """The frames to send, each with a list of the byte counts that the calls of the
        socket's ``send`` have returned for it so far.
        """
        self._sending = threading.Lock()
        self._sender: int | None = None
        self._parser = Parser(magic, protocol.DOWN)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._receiving = threading.Lock()
        self._has_reader = False
        """True once the reader thread reads the socket. The main thread no longer does
        then.
        """
        # no mutant: Requests may be numbered from any number.
        self._requests = count(1)
        self.answers: dict[int, Answer] = {}
        """The futures of the answers that have not arrived yet, by the number of the
        request.
        """
        self.task = 0
        """The number that identifies the running task in frames on the link."""
        self.requester: int = 0
        """The number of the task that may make requests, or 0 between two tasks."""
        self.job: Job | None = None
        """The job of the running task, while its code runs."""

    def send(
        self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0
    ) -> None:
        """Send a message (frame). If the coordinator is gone, do nothing.

        If a signal handler raises an exception in this call, it is raised at once, and
        the next call sends the rest of the frame.
        """
        head = HEADER.pack(self._magic, kind, flags, 0, number, len(body))
        self._outbox.append((head + body, deque()))
        me = threading.get_ident()
        if self._sender == me:
            # A finalizer or signal handler of the user has interrupted this method, and
            # calls it again on the same OS thread. The interrupted call will send this
            # frame too.
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
                        # One call in C both sends the bytes and records their number,
                        # so that no signal handler can run between the two.
                        sent.extend(map(self._socket.send, (memoryview(data)[done:],)))
                    except BlockingIOError:
                        # A task has made the socket non-blocking, so blocking is
                        # restored.
                        os.set_blocking(self._socket.fileno(), True)
            except OSError as error:
                if (
                    error.__traceback__ is not None
                    and error.__traceback__.tb_next is not None
                ):
                    # The traceback contains a further stack frame, so the error comes
                    # from a signal handler in Python code, not from the socket.
                    raise
                # no mutant: A frame that is kept and sent again would only fail again.
                self._outbox = deque(maxlen=0)
            finally:
                self._sender = None

    def disconnect(self) -> None:
        """Drop all frames from now on, because this process is a fork of the worker."""
        self._outbox = deque(maxlen=0)
        self._sending = threading.Lock()
        self._sender = None

    def cancel(self, task: int, future: CallFuture[Any]) -> None:
        """Ask the coordinator to cancel the call with the future *future*, which *task*
        has made.
        """
        for request, answer in [*self.answers.items()]:
            if answer is future:
                self.send(protocol.CANCELLED, task, protocol.REQUEST.pack(request))

    def next(self) -> Frame | None:
        """Wait for the next frame that is not an answer, and return it. Return None if
        the coordinator has ended.
        """
        orders = self._orders
        while not self._has_reader and orders.empty():
            with self._receiving:
                if not self._has_reader:
                    self._receive()
        return orders.get()

    def request(self, kind: int, task: int, body: bytes, answer: Answer) -> Answer:
        """Send a request of *task*, and return *answer*, which will get the result.

        If *task* has ended, the answer is cancelled instead. This happens if the task
        has left an OS thread running, which makes the request.
        """
        request = next(self._requests) & 0xFFFFFFFF
        self.answers[request] = answer
        # The task may end now, on another OS thread that runs `end_requests`. This
        # method adds the answer and then reads `requester`; `end_requests` sets
        # `requester` to 0 and then collects the answers. So in any order of events, at
        # least one of the two methods sees what the other did, and cancels the answer.
        if task != self.requester:
            self._cancel_answer(request)
            return answer
        if not self._has_reader:
            reader = threading.Thread(
                target=self._receive_all, name="flowpregel-reader", daemon=True
            )
            reader.start()
        self.send(kind, task, protocol.REQUEST.pack(request) + body)
        return answer

    def end_requests(self) -> None:
        """Cancel the answers for which the running task still waits, and all its
        requests from now on.
        """
        self.requester = 0
        for request in [*self.answers]:
            self._cancel_answer(request)

    def _cancel_answer(self, request: int) -> None:
        answer = self.answers.pop(request, None)
        if answer is not None:
            answer.settle(Withdrawn())

    def _receive_all(self) -> None:
        """Receive from now on, unless another OS thread does so: a task may have made
        several requests at the same time.
        """
        with self._receiving:
            if self._has_reader:
                return
            self._has_reader = True
        while self._receive():
            pass

    def _receive(self) -> bool:
        """Read the socket once. Put the frames that are complete into `_orders`, and
        set the answers among them. Return False if the coordinator has ended.
        """
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            # A task has made the socket non-blocking, so blocking is restored.
            os.set_blocking(self._socket.fileno(), True)
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
