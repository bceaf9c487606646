"""The OS threads that answer the requests of tasks to the store of their run."""

from __future__ import annotations

import threading
import weakref
from functools import partial

from flowpregel.executors.processes.coordinator.request_threads import RequestThreads
from tests.unit.executors.quick_pools import LONG, Events


def idle_threads(threads: RequestThreads) -> list[threading.Thread]:
    """Return OS threads of *threads* that have answered a request, and wait for the
    next one. They do so when nothing refers to the run any more.
    """
    run = Events()
    freed = threading.Event()
    weakref.finalize(run, freed.set)
    found: list[threading.Thread] = []
    answered = threading.Barrier(3)

    def answer() -> None:
        found.append(threading.current_thread())
        answered.wait(LONG)

    for _ in range(2):
        threads.submit(run, answer)
    answered.wait(LONG)
    del run
    assert freed.wait(LONG), "an idle thread keeps its run alive"
    return found


def test_idle_threads_end_when_the_pool_is_closed() -> None:
    """A program may make many pools, one after another. An idle thread keeps no run
    alive: its events may be large.
    """
    threads = RequestThreads()
    idle = idle_threads(threads)

    threads.close()

    for thread in idle:
        thread.join(LONG)
        assert not thread.is_alive()


def test_threads_that_are_busy_when_the_pool_is_closed_end_afterwards() -> None:
    """Their store may answer late. What waits behind its requests is dropped."""
    threads = RequestThreads()
    run = Events()
    begun, may_end = threading.Barrier(5), threading.Event()
    busy: list[threading.Thread] = []

    def answer() -> None:
        busy.append(threading.current_thread())
        begun.wait(LONG)
        may_end.wait(LONG)

    for _ in range(4):
        threads.submit(run, answer)
    begun.wait(LONG)
    late = partial(busy.append, threading.current_thread())
    weakref.finalize(late, may_end.set)
    threads.submit(run, late)
    del late

    threads.close()

    for thread in busy:
        thread.join(LONG)
        assert not thread.is_alive()
    assert 4 == len(busy)
