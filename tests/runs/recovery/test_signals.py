"""Handlers of any signal: they are called where what they raise breaks nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import InMemorySaver, _interrupts
from flowpregel.errors import TaskExitError
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from tests.runs.cli_jobs import environment

LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1]


class Alarm(Exception):
    """Raised by a handler."""


def ring(*_: Any) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the handlers back that a test sets."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_handler_waits_for_the_end_of_what_is_held(number: signal.Signals) -> None:
    """It is called once, with the frame that it broke off, and is in its place
    again.
    """
    seen: list[Any] = []

    def note(number: int, frame: Any) -> None:
        seen.append((number, frame.f_code.co_name))

    signal.signal(number, note)

    with _interrupts.defer_interrupts():
        with _interrupts.defer_interrupts():
            signal.raise_signal(number)
            seen.append("held")
        seen.append("outer")

    this = "test_a_handler_waits_for_the_end_of_what_is_held"
    assert ["held", "outer", (number, this)] == seen
    assert note is signal.getsignal(number)


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL, None])
def test_other_actions_are_left_alone(action: Any) -> None:
    """A signal that is ignored or has its default action, and a handler in C."""
    number = signal.SIGSEGV if action is None else signal.SIGUSR1
    if action is not None:
        signal.signal(number, action)
    before = signal.getsignal(number)

    with _interrupts.defer_interrupts():
        assert before == signal.getsignal(number)

    assert before == signal.getsignal(number)


def test_every_signal_that_came_is_handled() -> None:
    """Also those behind one whose handler raises, and each as often as it came."""
    seen: list[str] = []
    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))

    @_interrupts.defer_interrupts()
    def work() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGUSR1)
        assert [] == seen

    with pytest.raises(Alarm):
        work()

    assert ["usr1", "usr1"] == seen


def test_a_handler_that_a_task_sets_is_held_back_when_the_task_has_ended() -> None:
    """And stays when the run has."""
    seen: list[str] = []

    def note(*_: Any) -> None:
        seen.append("rung")

    with _interrupts.defer_interrupts():
        _interrupts.interruptible(signal.signal, signal.SIGALRM, note)
        signal.raise_signal(signal.SIGALRM)
        seen.append("held")

    assert ["held", "rung"] == seen
    assert note is signal.getsignal(signal.SIGALRM)


def test_a_handler_that_a_handler_sets_is_held_back() -> None:
    """As a first Ctrl-C does that asks for a second one."""
    seen: list[str] = []

    def first(*_: Any) -> None:
        seen.append("first")
        signal.signal(signal.SIGINT, lambda *_: seen.append("second"))

    signal.signal(signal.SIGINT, first)

    with _interrupts.defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        _interrupts.raise_pending_interrupts()
        signal.raise_signal(signal.SIGINT)
        seen.append("held")

    assert ["first", "held", "second"] == seen


def test_a_handler_that_was_saved_inside_may_be_put_back_later() -> None:
    """What is put back calls the program's own handler, and at once."""
    seen: list[str] = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append("rung"))

    with _interrupts.defer_interrupts():
        saved = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, saved)
    signal.raise_signal(signal.SIGALRM)

    assert ["rung"] == seen
    with _interrupts.defer_interrupts():
        signal.raise_signal(signal.SIGALRM)
        seen.append("held")
    assert ["rung", "held", "rung"] == seen


def test_on_another_os_thread_nothing_is_held_back() -> None:
    """Handlers run on the main thread, which may be waiting for that one."""
    seen: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("noted"))
    is_held, is_noted = threading.Event(), threading.Event()

    def hold() -> None:
        with _interrupts.defer_interrupts():
            is_held.set()
            is_noted.wait(LONG)

    other = threading.Thread(target=hold)
    other.start()
    is_held.wait(LONG)
    signal.raise_signal(signal.SIGUSR1)

    assert ["noted"] == seen
    is_noted.set()
    other.join()


# ---------------------------------------------------------------- in a run


@task
def one() -> int:
    return 1


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_run_that_waits_reacts_at_once(executor: str, drive: Any) -> None:
    """It ends with what the handler raises, and goes on in the same process."""
    has_begun = threading.Event()
    signal.signal(signal.SIGALRM, ring)

    @task
    def sleep_first() -> int:
        return 1

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(is_first: bool) -> int:
        first = one().result()
        if is_first and not has_begun.is_set():
            has_begun.set()
            os.kill(os.getpid(), signal.SIGALRM)
            threading.Event().wait(0.2)
        return first + sleep_first().result()

    with pytest.raises(Alarm):
        drive.invoke(flow, True, thread_id="1")

    assert 2 == drive.invoke(flow, None, thread_id="1")


def test_what_a_handler_raises_in_an_inline_task_is_no_failure_of_it(
    drive: Any,
) -> None:
    """The run ends with it, and the task is made again, though it would not be
    retried.
    """
    tries: list[int] = []
    signal.signal(signal.SIGALRM, ring)

    @task
    def work() -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            signal.raise_signal(signal.SIGALRM)
        return len(tries)

    @entrypoint(checkpointer=InMemorySaver(), executor="inline")
    def flow(_: int) -> int:
        return work().result()

    with pytest.raises(Alarm):
        drive.invoke(flow, 1, thread_id="1")

    assert 2 == drive.invoke(flow, None, thread_id="1")


def test_a_task_may_bound_its_own_work_by_an_alarm() -> None:
    """What its handler raises is its own affair."""

    @task(executor="inline")
    def work() -> str:
        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.raise_signal(signal.SIGALRM)
        except Alarm:
            return "caught"
        finally:
            signal.signal(signal.SIGALRM, before)
        return "not raised"

    @entrypoint()
    def flow(_: int) -> str:
        return work().result()

    assert "caught" == flow.invoke(1)


def test_a_task_that_calls_exit_still_fails() -> None:
    """Only what a handler raises is meant for the whole program."""

    @task(executor="inline")
    def work() -> None:
        sys.exit(3)

    @entrypoint()
    def flow(_: int) -> None:
        work().result()

    with pytest.raises(TaskExitError, match="SystemExit"):
        flow.invoke(1)


@pytest.mark.slow
def test_a_reducer_that_never_ends_can_be_broken_off() -> None:
    """By a signal that comes once, after some seconds: as a test runner's time limit
    does.
    """
    signal.signal(signal.SIGALRM, ring)

    def reduce(_: int, __: int) -> int:
        signal.raise_signal(signal.SIGALRM)
        until = threading.Event()
        while not until.wait(0.05):
            pass
        return 1

    graph = StateGraph(dict)
    graph.add_node("node", lambda state: state)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: reduce(1, 2) and END)

    with pytest.raises(Alarm):
        graph.compile(executor="inline").invoke({"n": 1})


def test_asyncios_own_handlers_go_on_to_work() -> None:
    """One that was added to the loop is called on it, and Ctrl-C cancels the main
    task.
    """
    seen: list[str] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @task
    async def wait_for_it() -> None:
        is_told = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, is_told.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(is_told.wait(), LONG)
        seen.append("told")
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), LONG)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @entrypoint()
    async def flow(_: int) -> None:
        await wait_for_it()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow.ainvoke(1))

    assert ["told", "cancelled"] == seen
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_the_reader_of_an_async_stream_is_not_held() -> None:
    """Between two items, its own code runs."""
    signal.signal(signal.SIGUSR1, ring)

    @entrypoint(executor="inline")
    def flow(_: int) -> int:
        return one().result()

    async def read() -> None:
        async for _ in flow.astream(1, stream_mode=["updates", "tasks"]):
            assert ring is signal.getsignal(signal.SIGUSR1)
            with pytest.raises(Alarm):
                signal.raise_signal(signal.SIGUSR1)

    asyncio.run(read())


CONTAINER = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
from flowpregel.func import entrypoint, task

@task
def work(n):
    if n == 0 and not os.path.exists("told"):
        open("told", "w").close()
        pid = os.getppid() if EXECUTOR == "processes" else os.getpid()
        os.kill(pid, signal.SIGTERM)
        import time; time.sleep(60)
    return n

EXECUTOR = sys.argv[1]

@entrypoint(checkpointer="store", executor=EXECUTOR)
def job(count: int) -> int:
    return sum(future.result() for future in work.map(range(count)))

if __name__ == "__main__":
    print(job.run(4, id="job"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_program_that_exits_on_sigterm_exits_and_goes_on(
    executor: str, tmp_path: Path
) -> None:
    """With the status that its handler says; run again, it comes to its result."""
    (tmp_path / "job.py").write_text(CONTAINER)

    def run() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "job.py", executor],
            cwd=tmp_path,
            env=environment(),
            check=False,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LONG,
        )
        return done.returncode, done.stdout

    assert [(0, ""), (0, "6\n")] == [run(), run()]
