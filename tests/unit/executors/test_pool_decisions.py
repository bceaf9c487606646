"""What the pool decides without a process: tokens, timers, paths to culprits, thread caps."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.processes.executor import thread_caps
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.protocol import TOKEN
from flowpregel.executors.processes.serialization import find_culprit
from flowpregel.executors.processes.worker import Tokens


def test_a_token_of_a_task_further_behind_is_kept_for_it() -> None:
    """Those before it were recalled; the frame it belongs to may still be on its way."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    tokens = Tokens(read)
    os.write(write, TOKEN.pack(1) + TOKEN.pack(5) + TOKEN.pack(6))

    assert [1, 5, 6] == [number for number in range(1, 9) if tokens.take(number)]
    os.close(read)
    os.close(write)


def test_timers_are_due_in_their_order() -> None:
    """And each once."""
    done: list[str] = []
    loop = IOLoop(lambda: None)

    def end() -> None:
        done.append("second")
        loop.is_done = True

    loop.call_at(time.monotonic() + 0.02, end)
    loop.call_at(time.monotonic() + 0.01, lambda: done.append("first"))
    loop.start()
    loop.join()

    assert ["first", "second"] == done


class Holder:
    """Holds a lock, deep down."""

    def __init__(self) -> None:
        self.parts = {"inner": (0, threading.Lock())}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, threading.Lock()], "result[1]: _thread.lock"),
        ({"a": Holder()}, "result['a'].parts['inner'][1]: _thread.lock"),
        (ValueError("x", threading.Lock()), "result.args[1]: _thread.lock"),
    ],
)
def test_the_way_to_a_culprit_is_written_as_code(value: Any, path: str) -> None:
    """So that it can be looked at."""
    assert path == find_culprit(value, "result")[0]


def test_thread_caps_are_shares_and_leave_the_users_word(monkeypatch: Any) -> None:
    """At least one thread each."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    caps = thread_caps(8, 3)

    assert "2" == caps["MKL_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in caps
    assert "1" == thread_caps(1, 4)["MKL_NUM_THREADS"]


@pytest.mark.parametrize(
    "wrong", [{"max_workers": 0}, {"worker_max_tasks": -1}, {"grace": -1}, {"max_workers": "2"}]
)
def test_a_pool_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError):
        ProcessExecutor(**wrong)
