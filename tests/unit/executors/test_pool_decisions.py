"""What the pool decides without a process: tokens, timers, paths to culprits, thread
caps.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from loky import cpu_count

from flowpregel._pickling.crossing import find_culprit
from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes import ProcessExecutor, default_pool
from flowpregel.executors.processes.coordinator import executor
from flowpregel.executors.processes.coordinator.executor import thread_caps
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.pool import Pool
from flowpregel.executors.processes.wire.protocol import TOKEN, PoolSettings
from flowpregel.executors.processes.worker.task_loop import Tokens


def test_a_token_of_a_task_further_behind_is_kept_for_it() -> None:
    """Those before it were recalled; the frame it belongs to may still be on its
    way.
    """
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


def test_a_timer_that_was_cancelled_is_not_called_and_leaves_nothing() -> None:
    """However many there were: memory is that of those that may still be due."""
    called: list[int] = []
    loop = IOLoop(lambda: None)
    far = time.monotonic() + 3_600
    kept = loop.call_at(far, lambda: called.append(0))
    for number in range(10_000):
        timer = loop.call_at(far, partial(called.append, number))
        action = ref(timer.action)
        timer.cancel()
        timer.cancel()

        assert 1 == loop.timer_count
        assert action() is None
    due = loop.call_at(time.monotonic(), lambda: setattr(loop, "is_done", True))
    loop.start()
    loop.join()
    due.cancel()
    kept.cancel()

    assert ([], 0) == (called, loop.timer_count)
    assert len(loop._timers) <= 2  # noqa: SLF001 - what memory they take


def test_commands_after_the_end_of_the_io_thread_are_all_executed_by_the_caller() -> (
    None
):
    """So a task that comes too late still gets its end, and an error loses no other."""
    done: list[str] = []
    loop = IOLoop(lambda: done.append("dispatch"), lambda: done.append("error"))

    def end() -> None:
        loop.is_done = True
        loop.call(lambda: done.append(threading.current_thread().name))

    def fail() -> None:
        loop.call(lambda: done.append("behind"))
        raise KeyError

    loop.call(end)
    loop.start()
    loop.join()
    done.clear()

    loop.call(fail)

    assert ["behind", "dispatch", "error", "dispatch"] == done


class Holder:
    """Holds a lock, deep down."""

    def __init__(self) -> None:
        self.parts = {"inner": (0, threading.Lock())}

    def look(self) -> None:
        """Do nothing."""


def call_later(function: Any) -> Any:
    """Return a function whose closure has *function*."""
    return lambda: function()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, threading.Lock()], "result[1]: _thread.lock"),
        ({"a": Holder()}, "result['a'].parts['inner'][1]: _thread.lock"),
        (ValueError("x", threading.Lock()), "result.args[1]: _thread.lock"),
        (Holder().look, "result.__self__.parts['inner'][1]: _thread.lock"),
        (
            partial(print, end=Holder()),
            "result.keywords['end'].parts['inner'][1]: _thread.lock",
        ),
        (
            call_later(Holder().look),
            "result.<closure function>.__self__.parts['inner'][1]: _thread.lock "
            f"(in {__name__}.Holder)",
        ),
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
    "wrong",
    [{"max_workers": 0}, {"worker_max_tasks": -1}, {"grace": -1}, {"max_workers": "2"}],
)
def test_a_pool_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError):
        ProcessExecutor(**wrong)


def settings_of(**options: Any) -> PoolSettings:
    """Return the settings of the pool of an executor."""
    seen: list[PoolSettings] = []

    class SeenPool(Pool):
        """A pool whose settings are seen."""

        def __init__(self, settings: PoolSettings) -> None:
            seen.append(settings)
            super().__init__(settings)

    class SeenExecutor(ProcessExecutor):
        """An executor with such a pool."""

        pool_class = SeenPool

    SeenExecutor(**options).close()
    return seen[0]


@pytest.mark.parametrize("workers", [1, 10_000])
def test_a_task_of_the_usual_share_needs_no_worker_of_its_own(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of OS threads is what numeric libraries in each worker are told; what
    the user has set is left out.
    """
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    settings = settings_of(max_workers=workers, env={"OMP_NUM_THREADS": "7"})

    assert str(settings.share) == settings.env["MKL_NUM_THREADS"]
    assert "7" == settings.env["OMP_NUM_THREADS"]
    assert "MKL_NUM_THREADS" in settings.capped
    assert "OMP_NUM_THREADS" not in settings.capped


@pytest.mark.parametrize("grace", [0, 0.5])
def test_a_task_may_have_no_time_to_end(grace: float) -> None:
    """It is killed at once then."""
    assert grace == settings_of(grace=grace).grace


def test_a_pool_is_set_up_as_its_executor_is_told(tmp_path: Path) -> None:
    """Amounts of text are numbers then, and there is a CPU for each worker at least."""
    settings = settings_of(
        max_workers=10_000,
        initializer=abs,
        initargs=(-1,),
        worker_max_tasks=1,
        worker_max_rss=2,
        shared_memory=0,
        limits={"api": 2, "memory": "1GB"},
        limits_folder=tmp_path,
    )

    assert (10_000, 1, 2, 0, str(tmp_path)) == (
        settings.size,
        settings.worker_max_tasks,
        settings.worker_max_rss,
        settings.shared_limit,
        settings.limits_folder,
    )
    assert (abs, (-1,)) == pickle.loads(settings.initializer)
    assert (10_000, 1_000_000_000, 2) == tuple(
        settings.amounts[name] for name in ("cpus", "memory", "api")
    )


def test_a_pool_has_the_machine_if_its_executor_is_told_nothing() -> None:
    """As many workers as CPUs, of which each gets one; a part of the memory is shared
    with them.
    """
    settings = settings_of()

    assert cpu_count() == settings.size == settings.amounts["cpus"]
    assert 1 == settings.share
    assert (b"", "") == (settings.initializer, settings.limits_folder)
    assert 0 < settings.shared_limit


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pool_takes_as_many_jobs_ahead_for_each_worker(workers: int) -> None:
    """So a larger pool does not run out of work earlier."""
    one, more = ProcessExecutor(1), ProcessExecutor(workers)

    assert more.room == workers * one.room
    one.close()
    more.close()


def test_the_default_pool_is_one_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the next request makes another."""
    monkeypatch.setattr(executor, "_default", None)
    first = default_pool()
    assert first is default_pool()
    assert not first.is_closed

    first.close()

    second = default_pool()
    assert second is not first
    assert not second.is_closed
    second.close()
