"""Store requests of tasks: the store answers in the coordinator, and may not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel.context import get_store
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.store.memory import InMemoryStore
from tests.runs.pooling import Run, error_of, value_of

pytestmark = pytest.mark.slow
LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers."""
    with ProcessExecutor(2, grace=0.3) as pool:
        yield pool


class SilentStore(InMemoryStore):
    """Answers nothing until the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        self.requests = 0

    def get(self, *_: Any, **__: Any) -> None:
        """Answer too late."""
        self.requests += 1
        self.is_over.wait(LONG)


class CountingStore(InMemoryStore):
    """Answers four requests at a time, and notes how many there were at once."""

    def __init__(self) -> None:
        super().__init__()
        self.four = threading.Barrier(4)
        self.lock = threading.Lock()
        self.present = self.most = 0

    def get(self, *_: Any, **__: Any) -> None:
        """Answer when three others are to be answered."""
        with self.lock:
            self.present += 1
            self.most = max(self.most, self.present)
        self.four.wait(LONG)
        with self.lock:
            self.present -= 1


class LeavingStore(InMemoryStore):
    """Ends the program, if one lets it."""

    def get(self, *_: Any, **__: Any) -> None:
        """Raise what ends programs."""
        raise SystemExit("the store left")


def look(key: str) -> Any:
    return get_store().get(("tests",), key)


def look_often(count: int) -> int:
    store = get_store()
    with ThreadPoolExecutor(count) as threads:
        return len([*threads.map(lambda key: store.get(("tests",), key), "k" * count)])


def test_a_store_that_does_not_answer_holds_up_its_own_run_alone(
    pool: ProcessExecutor,
) -> None:
    """Its tasks time out; those of another run get their answers."""
    silent = SilentStore()
    stuck = Run(pool)

    def time_out(count: int, seconds: float) -> None:
        outcome = stuck.outcome(look_often, count, store=silent, timeout=seconds)
        assert isinstance(error_of(outcome), NodeTimeoutError)

    seconds = 0.5
    while silent.requests < 4:
        time_out(4, seconds)
        # A busy machine may need longer until a task has sent its requests.
        seconds *= 2
    time_out(1, seconds)
    other = Run(pool).outcome(look, "k", store=InMemoryStore(), timeout=LONG)
    silent.is_over.set()

    assert value_of(other) is None
    assert 4 == silent.requests


def test_a_run_has_four_store_requests_answered_at_a_time(
    pool: ProcessExecutor,
) -> None:
    """The others wait, and are answered in turn."""
    store = CountingStore()

    answers = Run(pool).outcome(look_often, 12, store=store)

    assert 12 == value_of(answers)
    assert 4 == store.most


def test_what_a_store_raises_is_the_askers(pool: ProcessExecutor) -> None:
    """Also if it is not an `Exception`; later requests are answered."""
    run = Run(pool)

    for _ in range(5):
        error = error_of(run.outcome(look, "k", store=LeavingStore(), timeout=LONG))
        assert "the store left" in str(error)


PROGRAM = """
import threading

from flowpregel.func import entrypoint, task
from flowpregel.context import get_store
from flowpregel.errors import NodeTimeoutError
from flowpregel.store.memory import InMemoryStore


class SilentStore(InMemoryStore):
    def get(self, *_, **__):
        threading.Event().wait()


@task(timeout=0.5)
def look():
    return get_store().get(("tests",), "k")


@entrypoint(store=SilentStore())
def flow(_):
    look().result()


if __name__ == "__main__":
    try:
        flow.invoke(1)
    except NodeTimeoutError:
        print("timed out")
"""


def test_a_program_ends_though_its_store_does_not_answer(tmp_path: Any) -> None:
    """Nobody waits for the answer any more."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    ended = subprocess.run(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        timeout=LONG,
        text=True,
        check=True,
    )

    assert "timed out\n" == ended.stdout
