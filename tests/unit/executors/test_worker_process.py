"""The process of a worker: what ends it, and what it hands down."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from struct import Struct
from typing import Final

import pytest

from flowpregel._core.records import RETURN, Returned
from flowpregel._linux import own_description
from flowpregel.context import RunInfo, get_store
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.worker.process import watch_coordinator
from tests.descriptors import is_readable
from tests.unit.executors.driven_workers import (
    DrivenWorker,
    value,
    value_of,
)
from tests.unit.executors.quick_pools import LONG, job_of

PID: Final = Struct("<I")
# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def watching_child(lives: int) -> None:
    """Fork a child that ends with this process; write its pid to *lives*, which is open
    for as long as it lives.
    """
    coordinator = os.getpid()
    if os.fork() == 0:
        try:
            os.setpgid(0, 0)
            os.write(lives, PID.pack(os.getpid()))
            watch_coordinator(coordinator)
        finally:
            os._exit(0)
    os.close(lives)


def test_a_worker_ends_when_its_coordinator_has_ended() -> None:
    """And not before; it needs nothing from the link for that."""
    child_lives, lives = os.pipe()
    go, start = os.pipe()
    coordinator = os.fork()
    if coordinator == 0:
        with suppress(BaseException):
            os.close(child_lives)
            os.close(start)
            watching_child(lives)
            os.read(go, 1)  # until the test is gone, at the latest
        os._exit(0)
    os.close(lives)
    os.close(go)
    (child,) = PID.unpack(os.read(child_lives, PID.size))
    try:
        assert not is_readable(child_lives, 0.05)
        os.kill(coordinator, signal.SIGKILL)

        assert is_readable(child_lives, LONG)
        assert b"" == os.read(child_lives, 1)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(start)
        os.waitpid(coordinator, 0)
        os.close(child_lives)


def inheritable() -> list[int]:
    """Return the descriptors that programs inherit from this process."""
    numbers = [int(name) for name in os.listdir("/dev/fd")]
    found: list[int] = []
    for number in numbers:
        with suppress(OSError):  # that of the folder itself is closed
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def test_what_a_task_starts_inherits_no_descriptor_of_its_worker(
    worker: DrivenWorker,
) -> None:
    """A program that lives on would keep the link open."""
    before = inheritable()

    assert {*value(worker, inheritable)} <= {*before}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="Linux has that")
def test_a_descriptor_of_its_own_is_blocking_for_nobody_else() -> None:
    """It leads to the same pipe, and no program inherits it."""
    read, write = os.pipe()
    shared = os.dup(write)
    os.set_inheritable(write, True)

    own_description(write, os.O_WRONLY)

    os.set_blocking(write, False)
    assert (True, False) == (os.get_blocking(shared), os.get_inheritable(write))
    os.write(write, b"x")
    assert b"x" == os.read(read, 1)
    for fd in (read, write, shared):
        os.close(fd)


def other_threads(name: str) -> list[str]:
    """Ask the run's store; return the OS threads that would keep this process."""
    get_store().get(("a",), name)
    return [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]


def test_no_os_thread_of_its_own_keeps_a_worker_from_ending(
    worker: DrivenWorker,
) -> None:
    """Neither that which watches nor that which reads answers."""
    run = RunInfo(run_id="run", store="the run's own")
    (number,) = worker.order(job_of(other_threads, "key", run=run))
    (request,) = protocol.REQUEST.unpack_from(worker.frame(protocol.ASKED).body)

    answer = messages.pack_outcome(Returned(((RETURN, None),)), "")
    worker.send(protocol.ANSWER, request, answer)

    assert [] == value_of(worker.end(number)[0])
