"""Limits of all programs that name one folder: places are freed however their holder
ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.resources import CrossProcessLimit, Demand, SharedLimits

HOLDER = """
import sys, time
from flowpregel.executors.resources import CrossProcessLimit
from pathlib import Path
places = CrossProcessLimit(Path(sys.argv[1]), 2)
print(places.available(0, 0.0), places.available(1, 0.0), flush=True)
time.sleep(600)
"""


def test_a_place_is_one_programs_until_that_has_ended(tmp_path: Path) -> None:
    """Also if it was killed; the others are woken for each place."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert ["1", "2"] == holder.stdout.readline().split()
    wakes = threading.Semaphore(0)
    ours = CrossProcessLimit(tmp_path, 2, wakes.release)

    assert 0 == ours.available(0, 5.0)
    assert 5.0 < ours.next_change_at(5.0) < 6.0
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    # A thread that waits for a place has its lock for a moment before it wakes us.
    assert wakes.acquire(timeout=60)
    assert wakes.acquire(timeout=60)
    assert 1 == ours.available(0, 5.0)
    assert 2 == ours.available(1, 5.0)
    assert float("inf") == ours.next_change_at(5.0)
    ours.close()


def test_a_program_that_waits_is_woken_when_a_holder_is_killed(tmp_path: Path) -> None:
    """By the lock itself: nothing looks again and again."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert ["1", "2"] == holder.stdout.readline().split()
    woken = threading.Event()
    ours = CrossProcessLimit(tmp_path, 2, woken.set)
    assert 0 == ours.available(0, 5.0)
    assert not woken.is_set()

    os.kill(holder.pid, signal.SIGKILL)
    assert woken.wait(60)

    holder.wait()
    holder.stdout.close()
    assert 1 == ours.available(0, 5.0)
    ours.close()


def refuse_threads(frame: Any, event: str, _: Any) -> None:
    """Raise an error where an OS thread is started, as if there were too many."""
    if event == "call" and frame.f_code is threading.Thread.start.__code__:
        sys.setprofile(None)
        raise RuntimeError("can't start new thread")


def test_a_slot_is_tried_again_if_no_thread_can_wait_for_it(tmp_path: Path) -> None:
    """At the usual time, and then a thread waits if there is one."""
    theirs = CrossProcessLimit(tmp_path, 1)
    assert 1 == theirs.available(0, 0.0)
    woken = threading.Event()
    ours = CrossProcessLimit(tmp_path, 1, woken.set)

    sys.setprofile(refuse_threads)
    assert 0 == ours.available(0, 5.0)
    assert 5.0 < ours.next_change_at(5.0) < 6.0
    assert 0 == ours.available(0, 6.0)
    theirs.give_back(0)

    assert woken.wait(60)
    ours.close()
    theirs.close()


def test_a_slot_that_no_thread_can_open_is_tried_again_at_the_usual_time(
    tmp_path: Path,
) -> None:
    """If the thread woke the program, the program would try again at once, forever."""
    folder = tmp_path / "one"
    theirs = CrossProcessLimit(folder, 1)
    assert 1 == theirs.available(0, 0.0)
    woken = threading.Event()
    ours = CrossProcessLimit(folder, 1, woken.set)
    shutil.rmtree(folder)
    before = threading.enumerate()

    assert 0 == ours.available(0, 5.0)
    for thread in {*threading.enumerate()} - {*before}:
        thread.join(60)

    assert not woken.is_set()
    assert 5.0 < ours.next_change_at(5.0) < 6.0
    ours.close()
    theirs.close()


def test_a_limit_that_cannot_be_opened_leaves_no_descriptor_open(
    tmp_path: Path,
) -> None:
    """If the slots are too many for one process, for example."""
    (tmp_path / "3").mkdir()
    before = os.listdir("/proc/self/fd")

    with pytest.raises(IsADirectoryError):
        CrossProcessLimit(tmp_path, 5)

    assert len(before) == len(os.listdir("/proc/self/fd"))


def test_a_run_is_woken_when_another_program_releases_a_slot(tmp_path: Path) -> None:
    """The same for tasks that wait in this process."""
    theirs = CrossProcessLimit(tmp_path / "one", 1)
    assert 1 == theirs.available(0, 0.0)
    limits = SharedLimits({"one": 1}, str(tmp_path))
    woken = threading.Event()
    demand = Demand(["one"])
    assert limits.try_start("a", demand, "run", woken.set) is not None

    theirs.give_back(0)

    assert woken.wait(60)
    limits.close()
    theirs.close()


def test_places_that_are_not_used_are_given_back(tmp_path: Path) -> None:
    """To whoever asks next, in the same program too."""
    woken = threading.Event()
    ours = CrossProcessLimit(tmp_path, 1)
    theirs = CrossProcessLimit(tmp_path, 1, woken.set)
    assert (1, 0) == (ours.available(0, 0.0), theirs.available(0, 0.0))

    ours.give_back(0)

    assert woken.wait(60)
    assert (1, 0) == (theirs.available(0, 0.0), ours.available(0, 0.0))
    ours.close()
    theirs.close()


def hold_on(seconds: float) -> None:
    """Live on, as a fork of a program that holds places may."""
    time.sleep(seconds)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_does_not_hold_the_places_of_its_parent(tmp_path: Path) -> None:
    """They are free when the parent has given them back, while the fork lives on."""
    with ProcessExecutor(1, limits={"one": 1}, limits_folder=tmp_path) as pool:
        places = pool._pool.resources._shared["one"]  # noqa: SLF001 - no task of it runs long enough
        assert 1 == places.available(0, 0.0)
        fork = get_context("fork").Process(target=hold_on, args=(600,))
        fork.start()
    others = CrossProcessLimit(tmp_path / "one", 1)
    try:
        deadline = time.monotonic() + 60
        while not others.available(0, 0.0):
            assert time.monotonic() < deadline
    finally:
        fork.kill()
        fork.join()
        others.close()


@task(limit="one")
def alone(folder: str) -> bool:
    """Return whether this is the only call that runs, of both pools."""
    mark = Path(folder) / "running"
    try:
        mark.mkdir()
    except FileExistsError:
        return False
    time.sleep(0.01)
    mark.rmdir()
    return True


def test_pools_that_name_one_folder_share_its_limits(tmp_path: Path) -> None:
    """As programs do."""
    folder = tmp_path / "limits"
    with (
        ProcessExecutor(2, limits={"one": 1}, limits_folder=folder) as first,
        ProcessExecutor(2, limits={"one": 1}, limits_folder=folder) as second,
    ):

        @entrypoint()
        def both(place: str) -> list[bool]:
            calls = [
                alone.with_options(executor=pool)(place)
                for _ in range(4)
                for pool in (first, second)
            ]
            return [each.result() for each in calls]

        assert [True] * 8 == both.run(str(tmp_path))
