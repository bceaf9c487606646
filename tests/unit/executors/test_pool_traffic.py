"""What workers send, and what they are sent beside tasks: the test plays the
workers.
"""

from __future__ import annotations

import gc
import io
import logging
import mmap
import os
import pickle
import socket
import sys
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from flowpregel._core.effects import CancelCall, SaveState
from flowpregel._core.records import RETURN, Raised, Returned
from flowpregel._pickling.crossing import SHARE_FROM
from flowpregel.channels import Context
from flowpregel.context import RunInfo
from flowpregel.errors import WorkerDiedError
from flowpregel.executors.base import Backlog
from flowpregel.executors.processes.coordinator.side_threads import (
    _MOST_UNWRITTEN as MOST_UNWRITTEN,
)
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.store.memory import InMemoryStore
from tests.unit.executors.quick_pools import (
    LONG,
    Events,
    Order,
    PlayedPool,
    PlayedWorker,
    PoolMaker,
    call_of,
    job_of,
)


def begun(pool: PlayedPool, events: Events, job: Any) -> tuple[PlayedWorker, Order]:
    """Return a worker that runs *job*, and that as it was sent it."""
    pool.start([job], events)
    worker = pool.worker().ready()
    return worker, worker.order()


def outcome_in(worker: PlayedWorker, request: int) -> Any:
    """Return the outcome that *worker* gets for a request."""
    frame = worker.frame(protocol.ANSWER)
    assert request == frame.number
    return messages.unpack_outcome(frame.body)


# ------------------------------------------------ calls and requests


def test_a_call_reaches_the_run_and_its_outcome_the_caller(pool_of: PoolMaker) -> None:
    """Under the number that the caller gave it."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job_of())
    worker.request(protocol.CALLED, order, 7, call_of(len, "abc"))

    call = events.call()
    pool.resolve(call, Returned(((RETURN, 3),)))

    assert ("len", ("abc",)) == (call.node.name, call.arguments.args)
    assert Returned(((RETURN, 3),)) == outcome_in(worker, 7)


def test_an_answer_to_a_task_that_has_ended_is_not_sent(pool_of: PoolMaker) -> None:
    """Its worker may run another's by now."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())
    worker.request(protocol.CALLED, order, 1, call_of(len, ""))
    call = events.call()
    worker.end_task(order)
    events.value(job)

    pool.resolve(call, Returned(((RETURN, 3),)))
    pool.settle()

    assert not worker.has_frame(protocol.ANSWER)


def test_a_caller_counts_as_running_when_all_its_calls_are_answered(
    pool_of: PoolMaker,
) -> None:
    """Not before: its place is another's until then."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job_of())
    for request in (1, 2):
        worker.request(protocol.CALLED, order, request, call_of(len, ""))
    calls = [events.call(), events.call()]
    pool.resolve(calls[0], Returned(((RETURN, 0),)))
    pool.start([job_of()], events)
    other = pool.worker().ready()
    other.run()
    events.next()

    pool.resolve(calls[1], Returned(((RETURN, 0),)))
    pool.settle()
    pool.start([job_of()], events)
    pool.settle()

    assert not other.has_order()


@pytest.mark.parametrize(
    ("kind", "event"),
    [(protocol.SAVED, SaveState), (protocol.CANCELLED, CancelCall)],
)
def test_a_request_of_a_task_is_one_that_its_run_answers(
    kind: int, event: Any, pool_of: PoolMaker
) -> None:
    """With what it has to say, if anything; the task goes on as one that runs."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job_of())
    content = serialization.pack({"epoch": 3}).data if event is SaveState else b""

    worker.request(kind, order, 5, content)

    request = events.call()
    assert event is type(request)
    if event is SaveState:
        assert {"epoch": 3} == request.value
    pool.resolve(request, Returned(()))
    assert Returned(()) == outcome_in(worker, 5)
    pool.start([job_of()], events)
    assert not pool.is_starting()


@pytest.mark.parametrize(
    ("request_of", "expected"),
    [
        (("put", (("a",), "key", {"n": 1}), {}), None),
        (("__init__", (), {}), AttributeError),
    ],
)
def test_the_store_answers_a_task(
    request_of: Any, expected: Any, pool_of: PoolMaker
) -> None:
    """With its result, or its error; nothing private is called."""
    pool, events, store = pool_of(1), Events(), InMemoryStore()
    worker, order = begun(pool, events, job_of(run=RunInfo(run_id="run", store=store)))

    worker.request(protocol.ASKED, order, 3, serialization.pack(request_of).data)

    outcome = outcome_in(worker, 3)
    if expected is None:
        assert Returned(((RETURN, None),)) == outcome
        item = store.get(("a",), "key")
        assert item is not None
        assert {"n": 1} == item.value
    else:
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, expected)


# ------------------------------------------------ chunks


def emit(worker: PlayedWorker, order: Order, chunk: Any) -> None:
    """Send a chunk of a stream."""
    worker.send(protocol.EMITTED, order.number, serialization.pack(chunk).data)


def test_chunks_arrive_in_their_order_and_before_the_end(pool_of: PoolMaker) -> None:
    """Those of a task that has ended are dropped."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    emit(worker, order, 1)
    emit(worker, order, 2)
    worker.end_task(order, "end")
    emit(worker, order, 3)

    assert [1, 2, "end"] == [events.chunk(), events.chunk(), events.value(job)]
    pool.settle()
    assert events.is_empty()


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("x",)


def test_a_chunk_that_cannot_be_read_costs_its_task(pool_of: PoolMaker) -> None:
    """It says what is wrong with it."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    worker.send(protocol.EMITTED, order.number, pickle.dumps(Unreadable()) + b"\0" * 8)

    assert events.next() is None
    outcome = events.outcome(job)
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, WorkerDiedError)
    assert "cannot read" in outcome.error.cause
    assert -9 == worker.process.exitcode


def test_a_worker_whose_run_is_far_behind_is_left_unread(pool_of: PoolMaker) -> None:
    """Until the run has taken everything in."""
    backlog = Backlog(limit=1_000)
    pool, events = pool_of(1), Events(backlog)
    worker, order = begun(pool, events, job := job_of())
    emit(worker, order, "x" * 500)
    assert "x" * 500 == events.chunk()
    emit(worker, order, "y" * 500)
    assert "y" * 500 == events.chunk()

    emit(worker, order, "late")
    worker.end_task(order, "end")
    pool.settle()
    assert events.is_empty()
    backlog.clear()

    assert ["late", "end"] == [events.chunk(), events.value(job)]


def test_a_worker_is_not_held_back_while_another_run_waits_for_it(
    pool_of: PoolMaker,
) -> None:
    """That one has done nothing to deserve it; it is tried again a megabyte later."""
    backlog = Backlog(limit=10)
    pool, events, others = pool_of(1), Events(backlog), Events(Backlog())
    worker, order = begun(pool, events, job_of())
    pool.start([job_of(run=RunInfo(run_id="other"))], others)
    pool.settle()

    emit(worker, order, "x" * 500)
    emit(worker, order, "y" * 500)

    assert ["x" * 500, "y" * 500] == [events.chunk(), events.chunk()]
    assert 1 << 20 <= backlog.limit <= backlog.size + (1 << 20)


def test_a_worker_that_is_held_back_is_read_again_when_another_run_comes(
    pool_of: PoolMaker,
) -> None:
    """The reader of the first may wait for that."""
    pool, events = pool_of(1), Events(Backlog(limit=10))
    worker, order = begun(pool, events, job_of())
    emit(worker, order, "x" * 500)
    events.chunk()
    emit(worker, order, "y")
    pool.start([job_of()], events)
    pool.settle()
    assert events.is_empty()

    pool.start([job_of(run=RunInfo(run_id="other"))], Events(Backlog()))

    assert "y" == events.chunk()


def test_a_task_that_is_cancelled_is_read_whatever_its_run_has_left(
    pool_of: PoolMaker,
) -> None:
    """Its end is in the link."""
    pool, events = pool_of(1, grace=LONG), Events(Backlog(limit=10))
    worker, order = begun(pool, events, job := job_of())
    emit(worker, order, "x" * 500)
    events.chunk()
    emit(worker, order, "y" * 500)
    emit(worker, order, "z" * 500)
    pool.settle()
    assert events.is_empty()

    pool.cancel(job.key, kill=True)

    assert ["y" * 500, "z" * 500] == [events.chunk(), events.chunk()]


# ------------------------------------------------ shared memory and contexts


class Given:
    """An argument whose end can be seen."""


def test_what_a_task_was_given_is_dropped_soon_after_its_end(
    pool_of: PoolMaker,
) -> None:
    """Though nothing else happens."""
    pool, events = pool_of(1), Events()
    job = job_of(len, given := Given())
    alive = weakref.ref(given)
    worker, order = begun(pool, events, job)
    worker.end_task(order)
    events.value(job)
    del given, job

    pool.until(lambda: gc.collect() >= 0 and alive() is None)


def test_large_inputs_are_in_shared_memory_until_nobody_reads_them(
    pool_of: PoolMaker,
) -> None:
    """They are not in the frame: the worker is sent a descriptor of them."""
    pool, events = pool_of(1), Events()
    large = bytearray(b"large") + bytearray(2 * SHARE_FROM)
    worker, order = begun(pool, events, job := job_of(len, pickle.PickleBuffer(large)))
    refs = list[serialization.BufferRef]()
    serialization.read_message(
        order.body, lambda ref: refs.append(ref) or memoryview(b"")
    )
    (ref,) = refs
    (segment, (fd,), *_) = socket.recv_fds(worker.fd_socket, 8, 1)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as mapped:
        assert b"large" == mapped[:5]
    os.close(fd)
    assert ref.segment == int.from_bytes(segment, "little")
    assert len(order.body) < SHARE_FROM

    worker.end_task(order)
    events.value(job)
    pool.settle()
    assert 1 == len(pool.pool.arena)
    worker.send(protocol.RETURNED, 0, ref.id.to_bytes(8, "little"))
    pool.settle()
    assert 0 == len(pool.pool.arena)


@pytest.mark.parametrize("kill", [True, False])
def test_the_memory_of_a_worker_or_a_task_that_is_gone_is_free(
    kill: bool, pool_of: PoolMaker
) -> None:
    """Whether the task was never sent, or its worker died."""
    pool, events = pool_of(1), Events()
    job = job_of(len, pickle.PickleBuffer(bytearray(2 * SHARE_FROM)))
    pool.start([job], events)
    worker = pool.worker()
    pool.settle()
    assert 1 == len(pool.pool.arena)

    if kill:
        worker.ready().order()
        worker.process.kill()
    else:
        pool.cancel(job.key, kill=False)
    events.outcome(job)
    pool.settle()

    assert 0 == len(pool.pool.arena)


def test_the_contexts_of_a_run_are_left_where_it_was(pool_of: PoolMaker) -> None:
    """The answer is there when its workers have, or are gone; others are not asked."""
    pool, events = pool_of(2), Events()
    first, _ = begun(pool, events, job_of())
    second = pool.worker().ready()
    pool.settle()
    by_pid = {each.pid: each for each in pool.pool.workers}
    by_pid[first.pid].sent.contexts.update({b"token", b"kept"})
    asked: Future[Any] = Future()

    pool.pool.loop.call(lambda: pool.pool.leave({b"token", b"unknown"}, b"body", asked))

    (left,) = asked.result(LONG)
    request = first.frame(protocol.LEAVE)
    assert b"body" == request.body
    assert not second.has_frame(protocol.LEAVE)
    assert not left.done()
    first.send(protocol.LEFT, request.number)
    assert left.result(LONG) is None
    assert {b"kept"} == by_pid[first.pid].sent.contexts


def test_the_contexts_of_a_worker_that_dies_are_left(pool_of: PoolMaker) -> None:
    """Nobody waits for it."""
    pool, events = pool_of(1), Events()
    worker, _ = begun(pool, events, job_of())
    (only,) = pool.pool.workers
    only.sent.contexts.add(b"token")
    asked: Future[Any] = Future()
    pool.pool.loop.call(lambda: pool.pool.leave({b"token"}, b"", asked))
    (left,) = asked.result(LONG)

    worker.process.kill()

    assert left.result(LONG) is None


@pytest.mark.parametrize("error", [None, OSError("on purpose")], ids=["well", "badly"])
def test_a_run_waits_until_the_contexts_of_its_tasks_are_left(
    error: Exception | None, pool_of: PoolMaker
) -> None:
    """Workers are told how it ended, if it has failed."""
    pool, events = pool_of(1, grace=10 * LONG), Events()
    channel: Context[Any] = Context(dict)
    job = job_of(contexts=("items",))
    job.task.input = channel
    tokens = [channel.held.token]
    pool.leave(tokens, error)  # there is no worker
    worker, _ = begun(pool, events, job)
    pool.leave([b"of another run"], error)

    leaving = threading.Thread(target=pool.leave, args=(tokens, error))
    leaving.start()

    request = worker.frame(protocol.LEAVE)
    assert leaving.is_alive()
    left, packed = serialization.unpack(request.body)
    assert tokens == [*left]
    if error is None:
        assert packed is None
    else:
        outcome = messages.unpack_outcome(packed)
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, OSError)
    worker.send(protocol.LEFT, request.number)
    leaving.join(LONG)
    assert not leaving.is_alive()


def test_a_large_input_whose_descriptor_cannot_be_sent_is_in_the_frame(
    pool_of: PoolMaker,
) -> None:
    """Its shared memory is free."""
    pool, events = pool_of(1), Events()
    job = job_of(len, pickle.PickleBuffer(bytearray(2 * SHARE_FROM)))
    pool.start([job], events)
    worker = pool.worker()
    worker.fd_socket.close()

    order = worker.ready().order()

    assert len(order.body) > 2 * SHARE_FROM
    pool.settle()
    assert 0 == len(pool.pool.arena)
    worker.end_task(order, "done")
    assert "done" == events.value(job)


# ------------------------------------------------ what is printed and logged


class ClosedScreen(io.StringIO):
    """A stream that takes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def write(self, text: str) -> int:
        """Wait, and take *text*."""
        assert self.opened.wait(LONG)
        return super().write(text)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_worker_that_prints_more_than_is_written_is_left_unread(
    is_stopped: bool, pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until that is written, unless its task has to stop: its end is in the link."""
    screen = ClosedScreen()
    monkeypatch.setattr(sys, "stdout", screen)
    pool, events = pool_of(1, grace=10 * LONG), Events()
    worker, order = begun(pool, events, job := job_of())
    if is_stopped:
        pool.cancel(job.key, kill=True)
        pool.settle()
    text = b"x" * (1 << 19) + b"\n"

    for _ in range(MOST_UNWRITTEN // len(text) + 1):
        worker.send(protocol.PRINTED, order.number, text)
    (only,) = pool.pool.workers
    pool.until(lambda: only.output.unwritten.size > MOST_UNWRITTEN)
    pool.settle()
    emit(worker, order, "late")
    pool.settle()

    assert is_stopped != events.is_empty()
    screen.opened.set()
    assert "late" == events.chunk()


def test_a_text_that_the_screen_cannot_show_is_printed_with_escapes(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines around it are not lost either."""
    written = io.BytesIO()
    screen = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    worker.send(protocol.PRINTED, order.number, "one\n\u2192 two\n".encode())
    worker.end_task(order, "done")

    assert "done" == events.value(job)
    assert b"[str] one\n[str] \\u2192 two\n" == written.getvalue()


def test_the_screens_own_way_to_show_what_it_lacks_comes_first(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `PYTHONIOENCODING=ascii:replace` chooses it."""
    written = io.BytesIO()
    screen = io.TextIOWrapper(written, encoding="ascii", errors="replace")
    monkeypatch.setattr(sys, "stdout", screen)
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    worker.send(protocol.PRINTED, order.number, "\u2192 two\n".encode())
    worker.end_task(order, "done")

    assert "done" == events.value(job)
    assert b"[str] ? two\n" == written.getvalue()


def test_a_screen_with_an_encoding_of_its_own_gets_any_text(
    pool_of: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that a notebook puts in place of stdout."""

    class Screen(io.StringIO):
        encoding = "notebook"

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    worker.send(protocol.PRINTED, order.number, "\u2192 two\n".encode())
    worker.end_task(order, "done")

    assert "done" == events.value(job)
    assert "[str] \u2192 two\n" == screen.getvalue()


class Keeping(RunInfo):
    """A run that keeps what its tasks print."""

    def keep_output(self, job: Any, text: str) -> None:
        """Keep *text*."""
        self.config["kept"].append(text)


def test_what_a_worker_prints_is_labelled_with_its_task(
    pool_of: PoolMaker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each line of it, on the stream that it was printed to, before the end of the
    task.
    """
    pool, events, kept = pool_of(1), Events(), list[str]()
    run = Keeping(run_id="run", thread_id="1", has_saver=True, config={"kept": kept})
    worker, order = begun(pool, events, job := job_of(str, run=run))

    worker.send(protocol.PRINTED, order.number, b"one\ntwo\n")
    worker.send(protocol.PRINTED, order.number, b"three\n", protocol.STDERR)
    worker.send(protocol.PRINTED, 0, b"four\n")
    worker.end_task(order)

    assert [None, None] == [events.next(), events.next()]
    events.value(job)
    out, err = capfd.readouterr()
    assert f"[str] one\n[str] two\n[worker {worker.pid}] four\n" == out
    assert "[str] three\n" == err
    assert ["one\ntwo\n", "three\n"] == kept


@pytest.mark.parametrize(
    "run",
    [RunInfo(run_id="run", thread_id="1"), RunInfo(run_id="run", has_saver=True)],
    ids=["no saver", "no thread"],
)
def test_output_is_kept_only_where_it_can_be_shown_later(
    run: RunInfo, pool_of: PoolMaker
) -> None:
    """On a thread that is saved."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of(str, run=run))

    worker.send(protocol.PRINTED, order.number, b"one\n")
    worker.end_task(order)

    events.value(job)


def test_what_a_worker_logs_is_handled_here_if_its_logger_is_enabled(
    pool_of: PoolMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """The levels are those of the program."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())
    with caplog.at_level(logging.WARNING, "steps"):
        for level, text in ((logging.INFO, "quiet"), (logging.WARNING, "loud")):
            record = {"name": "steps", "levelno": level, "levelname": "X", "msg": text}
            worker.send(protocol.LOGGED, order.number, pickle.dumps(record))
        worker.end_task(order)
        events.value(job)

    assert ["loud"] == [
        each.getMessage() for each in caplog.records if each.name == "steps"
    ]


def test_a_log_record_that_cannot_be_read_costs_its_task(pool_of: PoolMaker) -> None:
    """As a chunk does."""
    pool, events = pool_of(1), Events()
    worker, order = begun(pool, events, job := job_of())

    worker.send(protocol.LOGGED, order.number, pickle.dumps(Unreadable()))

    outcome = events.outcome(job)
    assert isinstance(outcome, Raised)
    assert "cannot read" in str(outcome.error)
