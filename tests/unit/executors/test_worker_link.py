"""The worker's end of a link: the test has the coordinator's end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from flowpregel._core.records import RETURN, Outcome, Raised, Returned
from flowpregel.errors import TaskCancelled
from flowpregel.executors.calls import OpenCalls
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.protocol import HEADER, Frame, Parser
from flowpregel.executors.processes.worker.link import Answer, WorkerLink
from tests.unit.executors.quick_pools import LONG

_MAGIC: Final = 0x5EED
LARGE: Final = bytes(1 << 21)
"""The body of a frame that no socket takes at once."""


class Ends:
    """Both ends of a link."""

    def __init__(self) -> None:
        self.socket, mine = socket.socketpair()
        self.mine = mine
        self.link = WorkerLink(mine, _MAGIC)
        self.link.requester = 7
        self.socket.settimeout(LONG)
        self._parser = Parser(_MAGIC, protocol.UP)
        self._frames: list[Frame] = []

    def read(self, size: int) -> None:
        """Read at most *size* bytes of what has come up."""
        data = self.socket.recv(size)
        assert data, "the worker has closed its link"
        self._frames += self._parser.feed(data)

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send a frame down the link."""
        self.socket.sendall(HEADER.pack(_MAGIC, kind, 0, 0, number, len(body)) + body)

    def answer(self, request: int, outcome: Outcome) -> None:
        """Answer a request."""
        self.send(protocol.ANSWER, request, messages.pack_outcome(outcome, "work"))

    def frame(self) -> Frame:
        """Return the next frame that came up."""
        while not self._frames:
            self.read(1 << 20)
        return self._frames.pop(0)

    def is_quiet(self) -> bool:
        """Return whether nothing has come up that was not read."""
        self.socket.setblocking(False)
        try:
            return not self._frames and not self.socket.recv(1)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(LONG)

    def wait_until_blocking(self) -> None:
        """Return when the worker's end waits again for what is read and written."""
        waits = threading.Event()
        for _ in range(int(LONG / 0.005)):
            if os.get_blocking(self.mine.fileno()):
                return
            waits.wait(0.005)
        raise AssertionError("it never waits")


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return both ends of a link; close them."""
    both = Ends()
    yield both
    both.socket.close()
    for thread in threading.enumerate():
        if thread.name == "flowpregel-reader":
            thread.join(LONG)
    both.mine.close()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Return what runs functions on another OS thread."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


# ------------------------------------------------ frames up


def raise_it(*_: Any) -> None:
    """Raise, as a signal handler of a task does."""
    raise OSError("from a handler")


def on_signal(handler: Callable[..., Any]) -> Callable[[], None]:
    """Have *handler* called by a signal; return what sends that to this OS thread."""
    signal.signal(signal.SIGUSR1, handler)
    thread = threading.get_ident()
    return lambda: signal.pthread_kill(thread, signal.SIGUSR1)


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Put back the handler of the signal that tests use."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("usual_handlers")
def test_a_handler_that_raises_while_a_frame_is_sent_cuts_it_not_in_two(
    ends: Ends, aside: ThreadPoolExecutor
) -> None:
    """It raises at once; the next call sends the rest."""
    interrupt = on_signal(raise_it)

    def read_a_little() -> None:
        ends.read(1)
        interrupt()

    begun = aside.submit(read_a_little)
    with pytest.raises(OSError, match="from a handler"):
        ends.link.send(protocol.EMITTED, 1, LARGE)
    begun.result(LONG)

    frames = aside.submit(lambda: [ends.frame(), ends.frame()])
    ends.link.send(protocol.BEAT, 2)

    assert [Frame(protocol.EMITTED, 0, 1, LARGE), Frame(protocol.BEAT, 0, 2, b"")] == (
        frames.result(LONG)
    )


@pytest.mark.usefixtures("usual_handlers")
def test_what_a_handler_sends_while_a_frame_is_sent_comes_behind_it(
    ends: Ends, aside: ThreadPoolExecutor
) -> None:
    """Neither is cut, and nothing waits for itself."""
    interrupt = on_signal(lambda *_: ends.link.send(protocol.BEAT, 2))

    def read_all() -> list[Frame]:
        ends.read(1)
        interrupt()
        return [ends.frame(), ends.frame()]

    frames = aside.submit(read_all)
    ends.link.send(protocol.EMITTED, 1, LARGE, 8)

    assert [Frame(protocol.EMITTED, 8, 1, LARGE), Frame(protocol.BEAT, 0, 2, b"")] == (
        frames.result(LONG)
    )


def test_a_frame_is_sent_though_a_task_has_made_the_link_non_blocking(
    ends: Ends, aside: ThreadPoolExecutor
) -> None:
    """The link waits again, and does not turn in a circle."""
    os.set_blocking(ends.mine.fileno(), False)

    def read() -> Frame:
        ends.wait_until_blocking()
        return ends.frame()

    frame = aside.submit(read)
    ends.link.send(protocol.EMITTED, 1, LARGE)

    assert frame.result(LONG).body == LARGE


def test_a_frame_is_of_no_task_unless_it_is_said_to_be(ends: Ends) -> None:
    """It has no flags and no body either."""
    ends.link.send(protocol.READY)

    assert Frame(protocol.READY, 0, 0, b"") == ends.frame()


def test_nothing_happens_when_the_coordinator_is_gone(ends: Ends) -> None:
    """Neither to the frame that notices it nor to those behind."""
    ends.socket.close()

    for number in range(3):
        ends.link.send(protocol.BEAT, number)

    assert ends.link.next() is None


def test_a_fork_sends_nothing(ends: Ends) -> None:
    """It has the same descriptor as its worker, whose frames it would cut."""
    ends.link.disconnect()

    ends.link.send(protocol.BEAT, 1)

    assert ends.is_quiet()


# ------------------------------------------------ frames down


def test_commands_come_in_their_order(ends: Ends) -> None:
    """Several may arrive at once; the end of the link comes last."""
    ends.send(protocol.TASKS, 1, b"tasks")
    ends.send(protocol.FREED, 0, b"freed")
    ends.socket.close()

    frames = [ends.link.next() for _ in range(3)]

    assert [
        Frame(protocol.TASKS, 0, 1, b"tasks"),
        Frame(protocol.FREED, 0, 0, b"freed"),
        None,
    ] == frames


def test_commands_come_though_a_task_has_made_the_link_non_blocking(
    ends: Ends, aside: ThreadPoolExecutor
) -> None:
    """The link waits for them again."""
    os.set_blocking(ends.mine.fileno(), False)

    def order() -> None:
        ends.wait_until_blocking()
        ends.send(protocol.TASKS, 1)

    ordered = aside.submit(order)

    assert Frame(protocol.TASKS, 0, 1, b"") == ends.link.next()
    ordered.result(LONG)


# ------------------------------------------------ requests


def test_an_answer_arrives_under_the_number_of_its_request(ends: Ends) -> None:
    """Others, and those of requests that nobody waits for, do not disturb it."""
    futures = [ends.link.request(protocol.ASKED, 7, b"x", Answer()) for _ in range(2)]
    frames = [ends.frame() for _ in range(2)]
    requests = [protocol.REQUEST.unpack_from(frame.body)[0] for frame in frames]

    ends.answer(99, Returned(((RETURN, "nobody's"),)))
    ends.answer(requests[1], Returned(((RETURN, "second"),)))
    ends.answer(requests[0], Returned(((RETURN, "first"),)))

    assert ["first", "second"] == [future.result(LONG) for future in futures]
    assert [(protocol.ASKED, 7, b"x")] * 2 == [
        (frame.kind, frame.number, frame.body[protocol.REQUEST.size :])
        for frame in frames
    ]
    assert 2 == len({*requests})
    assert {} == ends.link.answers


def test_requests_are_cancelled_when_their_task_ends(ends: Ends) -> None:
    """Those that are open, and those that an OS thread makes afterwards."""
    before = ends.link.request(protocol.ASKED, 7, b"x", Answer())
    ends.frame()

    ends.link.end_requests()
    after = ends.link.request(protocol.ASKED, 7, b"x", Answer())

    for answer in (before, after):
        with pytest.raises(TaskCancelled):
            answer.result(LONG)
    assert ends.is_quiet()
    assert {} == ends.link.answers


def test_commands_and_answers_arrive_after_a_request(ends: Ends) -> None:
    """An OS thread reads both from then on, until the coordinator is gone."""
    future = ends.link.request(protocol.ASKED, 7, b"", Answer())
    (request,) = protocol.REQUEST.unpack_from(ends.frame().body)
    reader = reader_of_answers()

    ends.send(protocol.FREED, 0, b"freed")
    assert Frame(protocol.FREED, 0, 0, b"freed") == ends.link.next()
    ends.answer(request, Returned(((RETURN, "answer"),)))
    assert "answer" == future.result(LONG)
    ends.send(protocol.TASKS, 8, b"tasks")
    assert Frame(protocol.TASKS, 0, 8, b"tasks") == ends.link.next()

    ends.socket.close()
    assert ends.link.next() is None
    reader.join(LONG)
    assert not reader.is_alive()


def test_commands_come_though_the_first_request_was_broken_off(ends: Ends) -> None:
    """A signal may stop its task before the OS thread that reads the link runs."""

    def interrupt(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is threading.Thread.start.__code__:
            sys.setprofile(None)
            raise TaskCancelled

    commands: list[Frame | None] = []
    main_thread = threading.Thread(
        target=lambda: commands.append(ends.link.next()), daemon=True
    )
    sys.setprofile(interrupt)
    try:
        with pytest.raises(TaskCancelled):
            ends.link.request(protocol.ASKED, 7, b"x", Answer())
    finally:
        sys.setprofile(None)
    ends.link.end_requests()

    ends.send(protocol.TASKS, 8, b"tasks")
    main_thread.start()
    main_thread.join(LONG)

    assert [Frame(protocol.TASKS, 0, 8, b"tasks")] == commands


def reader_of_answers() -> threading.Thread:
    """Return the OS thread that reads the worker's end of the link."""
    (reader,) = [
        thread for thread in threading.enumerate() if thread.name == "flowpregel-reader"
    ]
    return reader


def test_answers_arrive_though_a_task_has_made_the_link_non_blocking(
    ends: Ends,
) -> None:
    """The link waits for them again."""
    future = ends.link.request(protocol.ASKED, 7, b"", Answer())
    (request,) = protocol.REQUEST.unpack_from(ends.frame().body)

    os.set_blocking(ends.mine.fileno(), False)
    ends.send(protocol.FREED)  # ends the wait that began when the link was blocking
    ends.wait_until_blocking()
    ends.answer(request, Returned(((RETURN, "answer"),)))

    assert "answer" == future.result(LONG)


def test_a_call_that_is_cancelled_is_named_by_its_request(ends: Ends) -> None:
    """No other call is."""
    futures = [
        ends.link.request(protocol.CALLED, 7, b"", Answer(None, OpenCalls()))
        for _ in range(3)
    ]
    requests = [protocol.REQUEST.unpack_from(ends.frame().body)[0] for _ in range(3)]

    ends.link.cancel(7, futures[1])

    assert (
        Frame(protocol.CANCELLED, 0, 7, protocol.REQUEST.pack(requests[1]))
        == ends.frame()
    )
    assert ends.is_quiet()


# ------------------------------------------------ answers


def arrived(outcome: Outcome, open_calls: OpenCalls) -> Answer:
    """Return a future that was given an outcome."""
    answer = Answer(None, open_calls)
    answer.take(messages.pack_outcome(outcome, "work"))
    return answer


def test_a_call_that_has_succeeded_is_no_longer_open() -> None:
    """Only the holders of its future need it."""
    calls = OpenCalls()

    answer = arrived(Returned(((RETURN, 3),)), calls)

    assert set() == calls
    assert answer.is_unread
    assert 3 == answer.result(0)
    assert answer.exception(0) is None


def test_a_call_that_has_failed_stays_open() -> None:
    """Its caller may see the failure."""
    calls = OpenCalls()

    answer = arrived(Raised(ValueError("no luck")), calls)

    assert {answer} == calls
    with pytest.raises(ValueError, match="no luck"):
        answer.result(0)


def test_a_call_that_was_cancelled_is_not_done_until_it_is_waited_for() -> None:
    """As its run has recorded it; a body that runs again cancels it again."""
    answer = arrived(Raised(TaskCancelled()), OpenCalls())

    assert not answer.done()
    assert answer.cancel()
    assert answer.cancelled()


def test_an_answer_that_comes_after_its_future_was_cancelled_is_dropped() -> None:
    """The caller wants it no more."""
    answer = Answer(None, OpenCalls())
    answer.cancel()

    answer.take(messages.pack_outcome(Returned(((RETURN, 3),)), "work"))

    assert answer.cancelled()


def break_off(*_: Any) -> None:
    """Raise, where a value is unpickled."""
    raise LookupError("unreadable")


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return break_off, ()


def test_an_answer_that_cannot_be_unpickled_is_the_error_of_its_call() -> None:
    """Who asks for it gets that error."""
    answer = arrived(Returned(((RETURN, Unreadable()),)), OpenCalls())

    with pytest.raises(LookupError, match="unreadable"):
        answer.result(0)
    assert isinstance(answer.exception(0), LookupError)
