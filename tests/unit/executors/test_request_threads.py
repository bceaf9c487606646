"""The OS threads that answer the requests of tasks to the store of their run."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from flowpregel.executors.processes.coordinator import request_threads
from flowpregel.executors.processes.coordinator.request_threads import RequestThreads
from tests.unit.executors.quick_pools import LONG, Events


def own_threads(threads: RequestThreads, run: Any) -> list[threading.Thread]:
    """Return OS threads of *threads* that have answered a request of *run*."""
    found: list[threading.Thread] = []
    answered = threading.Barrier(3)

    def answer() -> None:
        found.append(threading.current_thread())
        answered.wait(LONG)

    for _ in range(2):
        threads.submit(run, answer)
    answered.wait(LONG)
    return found


def test_idle_threads_end_when_the_pool_is_closed() -> None:
    """A program may make many pools, one after another."""
    threads = RequestThreads()
    idle = own_threads(threads, Events())

    threads.close()

    for thread in idle:
        thread.join(LONG)
        assert not thread.is_alive()


def test_a_thread_that_is_busy_when_the_pool_is_closed_ends_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its store may answer late."""
    monkeypatch.setattr(request_threads, "_AT_EXIT", 0.0)
    threads = RequestThreads()
    begun, may_end = threading.Event(), threading.Event()
    busy: list[threading.Thread] = []

    def answer() -> None:
        busy.append(threading.current_thread())
        begun.set()
        may_end.wait(LONG)

    threads.submit(Events(), answer)
    assert begun.wait(LONG)
    threads.close()
    may_end.set()

    busy[0].join(LONG)
    assert not busy[0].is_alive()


def test_an_idle_thread_keeps_no_run_alive() -> None:
    """Its events may be large."""
    threads = RequestThreads()
    run = Events()
    freed = threading.Event()
    weakref.finalize(run, freed.set)

    own_threads(threads, run)
    del run

    assert freed.wait(LONG)
    threads.close()
