"""The command shows a run of another process while it goes on, and says how it
ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app as command
from flowpregel.cli.console import Code
from flowpregel.cli.watching import WatchView, task_line
from flowpregel.types import interrupt
from tests.runs.cli_jobs import COMMAND, environment
from tests.runs.screens import Terminal, on_terminal, plain
from tests.runs.watched import JOB, job, reading, until


def watch(*words: str, store: Path) -> Any:
    return CliRunner().invoke(command, ["watch", *words, "--store", str(store)])


@contextmanager
def watching(
    folder: Path,
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[str]]]:
    """Run the job in a process, and watch it from another as soon as it tells what it
    does.
    """
    words = [*COMMAND, "watch", "--store", str(folder / "store")]
    with job(folder) as running:
        with LMDBSaver(folder / "store") as saver, reading(saver) as reader:
            until(lambda: reader.live("job"))
        shown = subprocess.Popen(
            words, env=environment(), text=True, stdout=subprocess.PIPE
        )
        with shown:
            try:
                yield running, shown
            finally:
                shown.kill()


@pytest.mark.slow
def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    """What runs, how far it is, and what is to do, in lines where there is no
    terminal.
    """
    with watching(tmp_path) as (running, shown):
        assert shown.stdout is not None
        lines = iter(shown.stdout.readline, "")
        seen = next(line for line in lines if "hold(0)" in line and "hold(1)" in line)
        told = CliRunner().invoke(
            command, ["show", "job", "--store", str(tmp_path / "store")]
        )
        (tmp_path / "go").touch()
        running.wait()
        rest = [*lines]
        code = shown.wait()

    assert seen.startswith("job: ")
    assert "hold: 0 done, 3 to do" in seen
    assert "0/10 (0 %) at it \\x1b[2J" in seen
    assert "hold(0)  running" in told.stdout
    assert "at it \\x1b[2J" in told.stdout
    assert '{"hold": 1}' in told.stdout
    assert "hold: 3 done" in rest[-2]
    assert "job: done\n" == rest[-1]
    assert Code.OK == code


@pytest.mark.slow
def test_watching_ends_with_a_process_that_was_killed(tmp_path: Path) -> None:
    """With the code of what is to be run again."""
    with watching(tmp_path) as (running, shown):
        assert shown.stdout is not None
        shown.stdout.readline()
        running.send_signal(signal.SIGKILL)
        *_, last = shown.stdout
        code = shown.wait()

    assert "job: stopped\n" == last
    assert Code.AGAIN == code


@pytest.mark.slow
def test_watching_ends_with_ctrl_c(tmp_path: Path) -> None:
    """The run goes on."""
    with watching(tmp_path) as (running, shown):
        assert shown.stdout is not None
        shown.stdout.readline()
        shown.send_signal(signal.SIGINT)
        code = shown.wait()

        assert Code.STOPPED == code
        assert running.poll() is None


def test_an_empty_store_has_nothing_to_watch(tmp_path: Path) -> None:
    LMDBSaver(tmp_path / "store").close()

    result = CliRunner().invoke(command, ["watch", "--store", str(tmp_path / "store")])

    assert Code.USAGE == result.exit_code
    assert "store has no threads yet" in result.stderr


def test_how_a_run_has_ended_is_the_exit_code(tmp_path: Path) -> None:
    """Without an ID it is the run that changed last."""

    @task(executor="inline")
    def work(n: int) -> int:
        if n == 1:
            raise ValueError("no")
        return int(interrupt("which?")) if n == 2 else n

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(n: int) -> int:
            return work(n).result()

        for n in (0, 1, 2):
            with suppress(ValueError):
                flow.invoke(n, thread_id=str(n))

    codes = [watch(str(n), store=tmp_path / "store").exit_code for n in (0, 1, 2)]
    newest = watch("--json", store=tmp_path / "store")
    unknown = watch("9", store=tmp_path / "store")

    assert [Code.OK, Code.FAILED, Code.WAITING] == codes
    assert '{"thread_id": "2", "status": "waiting"}\n' == newest.stdout
    assert Code.USAGE == unknown.exit_code
    assert "the store has no thread '9'" in unknown.stderr


def test_failures_come_first_and_escapes_are_shown(tmp_path: Path) -> None:
    """In names, arguments and errors alike."""
    name = "work\x1b[31m"

    @task(executor="inline", name=name)
    def work(text: str) -> int:
        raise ValueError("no \x1b]0;title\x07")

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(text: str) -> None:
            work(text).exception()

        flow.invoke("\x1b[2J", thread_id="t\x1b[1m")
        reader = StoreReader(saver)
        view = WatchView(reader, "t\x1b[1m")
        view.refresh()
        header, first, *_ = lines = view.lines(0.0)
        reader.close()

    assert header.startswith("t\\x1b[1m: ")
    assert (
        "  work\\x1b[31m('\\x1b[2J') failed: ValueError: no \\x1b]0;title\\x07" == first
    )
    assert all(line.isprintable() for line in lines)


def test_a_task_that_runs_is_told_in_a_line() -> None:
    """How long, which attempt, and how far it says it is."""
    told = {
        "text": "",
        "name": "fit",
        "began": 1_000_000_000,
        "attempt": 2,
        "done": 3,
        "total": 12,
        "message": "fitting",
    }

    assert "fit: 1.5 s, attempt 2, 3/12 (25 %) fitting" == task_line(told, 2.5)
    assert "fit: 0.0 s" == task_line({**told, "attempt": 1, "done": None}, 0.5)


# ---------------------------------------------------------------- on a terminal


@contextmanager
def started(program: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a process, and wait until one of its calls runs."""
    (folder / "job.py").write_text(program)
    words = [sys.executable, "job.py", "store", "go"]
    with subprocess.Popen(words, cwd=folder, env=environment()) as running:
        try:
            until(lambda: (folder / "go.begun").exists())
            yield running
        finally:
            running.kill()


@contextmanager
def watched_on_terminal(
    folder: Path, program: str = JOB
) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """Run the job, and watch it on a terminal as soon as two of its calls run."""
    words = [*COMMAND, "watch", "job", "--store", "store"]
    with started(program, folder) as running, on_terminal(words, folder) as terminal:
        terminal.until("hold(0)", "hold(1)", "q leave")
        yield running, terminal


@pytest.mark.slow
def test_a_terminal_shows_each_running_call_with_its_progress(tmp_path: Path) -> None:
    """Two lines each, in colour; and the sums of all calls, each counted once."""
    with watched_on_terminal(tmp_path) as (running, terminal):
        shown = terminal.until("2 calls run now, 1 more wait", "0/10 (0 %) at it")
        (tmp_path / "go").touch()
        running.wait()
        code = terminal.wait()

    assert "0 of 3 calls (0 %)" in shown
    assert "hold  2 running, 1 to do" in shown
    assert "\\x1b[2J" in shown
    assert "\x1b[36m" in terminal.written
    assert plain(terminal.written).endswith("job: Done.\n  hold  3 done\n")
    assert Code.OK == code


@pytest.mark.slow
def test_keys_change_what_a_terminal_shows(tmp_path: Path) -> None:
    """And the way back; other keys do nothing, whatever is pressed with them."""
    with watched_on_terminal(tmp_path) as (running, terminal):
        terminal.press("e")
        errors = terminal.until("no call has failed")
        terminal.press("l")
        terminal.until("l logs")
        terminal.press("\x1b[A\x1bOQ?c\x1b")
        terminal.until("hold(0)")
        terminal.press("r")
        terminal.until("r do not retry")
        terminal.press("q")
        code = terminal.wait()

        assert running.poll() is None
    assert "hold(0)" not in errors.rpartition("no call has failed")[2]
    assert "job is still running" in terminal.written
    assert Code.STOPPED == code


@pytest.mark.slow
def test_a_run_is_cancelled_after_a_question(tmp_path: Path) -> None:
    """Any other key than y goes back."""
    program = JOB.replace('executor="threads"', 'executor="processes"')
    with watched_on_terminal(tmp_path, program) as (running, terminal):
        terminal.press("x")
        terminal.until("cancel the run?")
        terminal.press("n")
        terminal.until("q leave")
        terminal.press("x")
        terminal.until("cancel the run?")
        terminal.press("y")
        terminal.until("the run is being cancelled")
        running.wait()
        code = terminal.wait()

    shown = plain(terminal.written)
    assert "job: Stopped before its end; " in shown
    assert "resume it: flowpregel resume job " in shown
    assert Code.AGAIN == code


@pytest.mark.slow
def test_a_killed_run_is_summed_up(tmp_path: Path) -> None:
    """By what its process did last: what had begun, and what had not."""
    with watched_on_terminal(tmp_path) as (running, terminal):
        running.send_signal(signal.SIGKILL)
        code = terminal.wait()

    shown = plain(terminal.written)
    assert "ended unexpectedly; no call had finished, 2 calls had begun, 1 had" in shown
    assert "resume it: flowpregel resume job " in shown
    assert Code.AGAIN == code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables"),
    [((), {"TERM": "dumb"}), (("--json",), {})],
    ids=["dumb", "json"],
)
def test_lines_are_printed_where_no_screen_can_be_drawn(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    """On a terminal that cannot move its cursor, and for a program."""
    command = [*COMMAND, "watch", "job", "--store", "store", *words]
    with (
        started(JOB, tmp_path) as running,
        on_terminal(command, tmp_path, **variables) as terminal,
    ):
        terminal.until("hold: 0 done, 3 to do")
        (tmp_path / "go").touch()
        running.wait()
        code = terminal.wait()

    assert "q leave" not in terminal.written
    assert "\x1b[?1049h" not in terminal.written
    last = '{"thread_id": "job", "status": "done"}' if words else "job: done"
    assert last == terminal.written.splitlines()[-1]
    assert Code.OK == code


FAILING = """
import os, pathlib, sys, time
from flowpregel import entrypoint, task

@task
def hold(n):
    open("go.begun", "a").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    if n == 0 and not os.path.exists("mended"):
        pathlib.Path("mended").touch()
        raise ValueError(f"no {n}")
    return n

@entrypoint(checkpointer="store", executor="threads")
def flow(count):
    return sum(future.exception() is None for future in hold.map(range(count)))

if __name__ == "__main__":
    flow.run(2, id="job")
"""


@pytest.mark.slow
def test_failed_calls_are_tried_again_when_the_run_ends(tmp_path: Path) -> None:
    """After a key that was pressed before; with the exit code of the second run."""
    words = [*COMMAND, "watch", "job", "--store", "store"]
    with started(FAILING, tmp_path), on_terminal(words, tmp_path) as terminal:
        terminal.until("hold(0)", "q leave")
        terminal.press("r")
        terminal.until("r do not retry")
        (tmp_path / "go").touch()
        code = terminal.wait()

    shown = plain(terminal.written)
    assert "job: Done, but 1 call failed." in shown
    assert "1 x hold: ValueError: no " in shown
    assert "try it again: flowpregel retry job --failed --store store" in shown
    assert "2" == shown.splitlines()[-1]
    assert Code.OK == code


STUBBORN = """
import os, pathlib, sys, time
from flowpregel import entrypoint, task

@task
def hold(n):
    if n == 0 and not os.path.exists("mended"):
        raise ValueError(f"no {n}")
    open("go.begun", "a").close()
    while n and not os.path.exists("go"):
        time.sleep(0.01)
    return n

@entrypoint(checkpointer="store", executor="processes")
def flow(count):
    return sum(future.exception() is None for future in hold.map(range(count)))

if __name__ == "__main__":
    flow.run(2, id="job")
"""


@pytest.mark.slow
def test_failed_calls_are_tried_again_while_the_run_is_under_way(
    tmp_path: Path,
) -> None:
    """The run is stopped, resumed by another process, and watched until its end."""
    words = [*COMMAND, "watch", "job", "--store", "store"]
    with (
        started(STUBBORN, tmp_path) as running,
        on_terminal(words, tmp_path) as terminal,
    ):
        terminal.until("r retry (1)")
        terminal.press("r")
        terminal.until("try the failed calls again (1)?")
        terminal.press("n")
        terminal.until("q leave")
        (tmp_path / "mended").touch()
        terminal.press("r")
        terminal.until("try the failed calls again (1)?")
        terminal.press("y")
        running.wait()
        (tmp_path / "go").touch()
        code = terminal.wait()

    shown = plain(terminal.written)
    assert "job: Done." in shown
    assert "failed" not in shown.rpartition("job: Done.")[2]
    assert Code.OK == code
