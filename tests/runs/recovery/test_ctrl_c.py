"""Ctrl-C at random instants: the run ends with it, and goes on in the same process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel import _interrupts
from flowpregel.func import entrypoint, task
from tests.soak.interrupts import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_interrupted_anywhere_ends_at_once_and_goes_on(
    kind: str, tmp_path: Path
) -> None:
    """``python -m tests.soak.interrupts`` does it more often, and within two seconds.

    Coverage is left out: Ctrl-C may come while that holds a lock of its own, for good.
    """
    command = [sys.executable, "-m", "tests.soak.interrupts", "--kind", kind]
    command += [
        "--folder",
        str(tmp_path),
        "--count",
        "24",
        "--seed",
        "5",
        "--seconds",
        "20",
    ]

    bare = {
        name: value for name, value in os.environ.items() if not name.startswith("COV")
    }

    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=bare
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "'interrupted'" in done.stdout


@pytest.fixture
def pressed() -> list[str]:
    """Return what was noted when Ctrl-C was pressed, in order, by a handler of the
    program's.
    """
    return []


@pytest.fixture(autouse=True)
def handler(pressed: list[str]) -> Any:
    """Have the program note Ctrl-C, and not end."""
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append("pressed"))
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_the_end_of_what_is_held(pressed: list[str]) -> None:
    """The program's own handler is called, once, and is in its place again."""
    own = signal.getsignal(signal.SIGINT)

    with _interrupts.defer_interrupts():
        with _interrupts.defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            pressed.append("held")
        pressed.append("outer")

    assert pressed == ["held", "outer", "pressed"]
    assert signal.getsignal(signal.SIGINT) is own


def test_a_second_ctrl_c_does_not_wait(pressed: list[str]) -> None:
    """Whoever waits for something that does not end can get out."""
    with _interrupts.defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pressed.append("held")

    assert pressed == ["pressed", "held", "pressed"]


def test_the_users_code_may_be_broken_off_inside(pressed: list[str]) -> None:
    """What was pressed before comes first; what it holds in turn is held."""

    def work() -> None:
        pressed.append("work")
        signal.raise_signal(signal.SIGINT)
        with _interrupts.defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            pressed.append("held in it")

    with _interrupts.defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        _interrupts.interruptible(work)
        pressed.append("held")

    assert pressed == ["pressed", "work", "pressed", "held in it", "pressed", "held"]


def test_it_can_be_looked_for(pressed: list[str]) -> None:
    """Where it is safe, and where the main thread waits."""

    def wait() -> None:
        _interrupts.raise_pending_interrupts()
        signal.raise_signal(signal.SIGINT)

    with _interrupts.defer_interrupts():
        _interrupts.raise_pending_interrupts()
        signal.raise_signal(signal.SIGINT)
        _interrupts.wakeup_on_signal(wait, lambda: pressed.append("woken"))
        pressed.append("held")

    assert pressed == ["woken", "pressed", "woken", "held", "pressed"]


def test_it_is_noticed_even_if_it_does_not_end_a_wait() -> None:
    """As Python's own waits do not, if it comes an instant before them."""
    noticed, is_over = threading.Event(), threading.Event()
    signal.signal(signal.SIGINT, lambda *_: noticed.set())
    # Where the main thread does not take the signal, another one does, and the wait
    # goes on.
    other = threading.Thread(target=is_over.wait)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    @task(executor="threads")
    def wait() -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return noticed.wait(30)

    @entrypoint()
    def flow(_: int) -> bool:
        return wait().result()

    try:
        assert flow.invoke(1) is True
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        is_over.set()
        other.join()
