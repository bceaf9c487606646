"""What tasks print and log is written aside: a screen or handler that blocks costs
nobody else.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel.errors import NodeTimeoutError, WorkerDiedError
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.processes.coordinator import side_threads
from tests.runs import gated
from tests.runs.cli_jobs import environment
from tests.runs.gated import LONG, Gate
from tests.runs.pooling import wait_until

pytestmark = pytest.mark.slow
_MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[ProcessExecutor]:
    """Three workers, so that two are free while a task is held back."""
    with ProcessExecutor(3, grace=0.3) as pool:
        list(pool.map(gated.double, range(3)))
        yield pool


class BlockedPipe(io.StringIO):
    """A stream into a pipe that nobody reads until `read_all` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = os.pipe()

    def write(self, text: str) -> int:
        data = text.encode()
        while data:
            data = data[os.write(self._write, data) :]
        return len(text)

    def fill(self) -> None:
        """Fill the pipe."""
        os.set_blocking(self._write, False)
        try:
            while True:
                os.write(self._write, b"\n" * 4096)
        except BlockingIOError:
            os.set_blocking(self._write, True)

    def read_all(self) -> list[str]:
        """Return the lines that are written, from now until `end`."""
        with open(self._read, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line != "\n"]

    def end(self) -> None:
        """Write nothing more."""
        os.close(self._write)


@task
def flood(megabytes: int) -> int:
    for number in range(megabytes * 1024):
        print(f"{number:07} {'x' * 1015}")
    return megabytes


@task
def say(text: str) -> str:
    print(text)
    return text


@task(timeout=0.3)
def say_and_hang(text: str) -> None:
    print(text)
    while True:
        os.sched_yield()


@task
def say_and_die(text: str) -> None:
    print(text)
    os._exit(3)


@task
def warn(text: str) -> str:
    logging.getLogger("study").warning(text)
    return text


double = task(gated.double)


def unrelated(pool: ProcessExecutor) -> None:
    """Run another flow, whose tasks print too: a result, a timeout, a death and a
    cancel.
    """

    @entrypoint(executor=pool)
    def flow(number: int) -> Any:
        assert isinstance(say_and_hang("late").exception(), NodeTimeoutError)
        assert isinstance(say_and_die("dead").exception(), WorkerDiedError)
        cancelled = task(gated.wait_for)("/nowhere/at/all")
        cancelled.cancel()
        return say("other").result(), double(number).result()

    assert ("other", 42) == flow.start(21).result(LONG)


def test_a_screen_that_takes_nothing_holds_up_nobody_else(
    pool: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who prints much is held back by its own socket; when the screen takes it, nothing
    is lost.
    """
    screen = BlockedPipe()
    screen.fill()
    monkeypatch.setattr(sys, "stdout", screen)
    flow = entrypoint(executor=pool)(lambda megabytes: flood(megabytes).result())
    handle = flow.start(12)
    workers = pool._pool.workers  # noqa: SLF001 - what is in memory, nobody else knows
    wait_until(lambda: any(each.link.is_paused() for each in workers), LONG)

    unrelated(pool)

    assert sum(each.output.unwritten.size for each in workers) < 3 * _MIB
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(screen.read_all()))
    reader.start()
    assert 12 == handle.result(LONG)
    pool.close()
    screen.end()
    reader.join(LONG)
    printed = [line for line in lines if line.startswith("[flood]")]
    assert [
        f"[flood] {number:07} {'x' * 1015}" for number in range(12 * 1024)
    ] == printed
    assert {"[say] other", "[say_and_die] dead"} <= {*lines}


def test_a_log_handler_that_blocks_holds_up_nobody_else(pool: ProcessExecutor) -> None:
    """Nor the run of the task that logged: the record is handled later."""
    handled: list[str] = []

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gated.wait_at("gate")
            handled.append(record.getMessage())

    logger, handler = logging.getLogger("study"), Blocking()
    logger.addHandler(handler)
    flow = entrypoint(executor=pool)(lambda text: warn(text).result())
    try:
        with Gate("gate") as gate:
            assert "careful" == flow.start("careful").result(LONG)
            assert gate.reached.wait(LONG)

            unrelated(pool)
            assert [] == handled
        wait_until(lambda: handled, LONG)
    finally:
        logger.removeHandler(handler)
    assert ["careful"] == handled


def test_a_structlog_processor_that_blocks_holds_up_nobody_else() -> None:
    """It is called on the OS thread for output as well."""
    structlog = pytest.importorskip("structlog")
    handled: list[str] = []

    def block(_: Any, __: str, event: dict[str, Any]) -> Any:
        gated.wait_at("gate")
        handled.append(event["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[block])
    try:
        with (
            Gate("gate") as gate,
            ProcessExecutor(
                3, grace=0.3, initializer=import_module, initargs=("structlog",)
            ) as pool,
        ):
            assert 1 == pool.submit(log_event, "seen").result(LONG)
            assert gate.reached.wait(LONG)

            unrelated(pool)
            gate.is_open.set()
            wait_until(lambda: handled, LONG)
    finally:
        structlog.reset_defaults()
    assert ["seen"] == handled


def log_event(event: str) -> int:
    import structlog

    structlog.get_logger().warning(event)
    return 1


def test_what_a_task_has_printed_is_written_before_its_run_returns(
    pool: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the screen takes it: who reads the program's output sees it in its
    order.
    """
    # On a busy machine the OS thread that writes may get no turn for a second.
    monkeypatch.setattr(side_threads, "_STUCK_AFTER", LONG)

    class Screen(io.StringIO):
        """Gives other OS threads every chance to be first."""

        def write(self, text: str) -> int:
            for _ in range(20):
                os.sched_yield()
            return super().write(text)

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    flow = entrypoint(executor=pool)(lambda text: say(text).result())
    for number in range(100):
        screen.write(f"before {number}\n")
        flow.invoke(f"said {number}")
    with pytest.raises(WorkerDiedError):
        entrypoint(executor=pool)(lambda text: say_and_die(text).result()).invoke(
            "last words"
        )

    expected = [each for n in range(100) for each in (f"before {n}", f"[say] said {n}")]
    assert [*expected, "[say_and_die] last words"] == screen.getvalue().splitlines()


PROGRAM = """
import logging, sys
from flowpregel import entrypoint, task

# On a busy machine the watchdog may warn that the I/O thread got no turn for a second.
logging.getLogger("flowpregel.worker").setLevel(logging.ERROR)

@task
def speak(count):
    for number in range(count):
        print("line", number)
    print("to stderr", file=sys.stderr)
    return count

@entrypoint(executor="processes")
def flow(count):
    speak(count)
    return speak(count).result()

if __name__ == "__main__":
    print("returned", flow.invoke(int(sys.argv[1])))
"""


def test_nothing_that_was_printed_is_lost_when_the_program_ends(tmp_path: Path) -> None:
    """Of the call that nobody waited for, too."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "program.py", "2000"]

    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=LONG,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert 4_000 == sum(line.startswith("[speak] line") for line in lines)
    assert "returned 2000" in lines
    assert ["[speak] to stderr"] * 2 == done.stderr.splitlines()


def test_a_program_ends_though_nobody_reads_what_its_tasks_have_printed(
    tmp_path: Path,
) -> None:
    """In a bounded time, and in good order: what cannot be written by then is lost."""
    (tmp_path / "program.py").write_text(PROGRAM.replace('print("returned", ', "("))
    words = [sys.executable, "program.py", "50000"]

    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        code = program.wait(LONG)
        errors = program.stderr.read()

    assert (0, b"") == (code, errors.replace(b"[speak] to stderr\n", b""))
