"""`Context` channels in worker processes: entered once a run, left when the run has
ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import loky
import pytest

from flowpregel.channels import Context, LastValue
from flowpregel.executors import ProcessExecutor
from flowpregel.pregel import NodeBuilder, Pregel


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Path]:
    """Note in *file* when it is entered and left, and where."""
    note(file, f"enter {os.getpid()}")
    try:
        yield file
    except OSError as error:
        note(file, f"failed {error}")
        raise
    finally:
        note(file, f"exit {os.getpid()}")


@contextlib.contextmanager
def stubborn(file: Path) -> Iterator[Path]:
    """Refuse to be left."""
    yield file
    note(file, "refused")
    raise RuntimeError("it cannot be left")


def note(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(f"{line}\n")


def count_down(state: dict[str, Any]) -> int | None:
    note(state["log"], f"use {os.getpid()}")
    return state["number"] - 1 or None


def fail(state: dict[str, Any]) -> int:
    note(state["log"], f"use {os.getpid()}")
    raise OSError("on purpose")


def app_of(
    file: Path, executor: Any, step: Any = count_down, factory: Any = opened
) -> Pregel:
    """Return a program that runs *step* again and again, with a context that notes its
    life.
    """
    node = (
        NodeBuilder()
        .subscribe_to("number")
        .read_from("log")
        .do(step)
        .write_to(number=same)
    )
    return Pregel(
        nodes={"step": node},
        channels={"number": LastValue(int), "log": Context(partial(factory, file))},
        input_channels=["number"],
        output_channels="number",
        executor=executor,
    )


def same(value: Any) -> Any:
    return value


def lines_of(file: Path) -> list[str]:
    """Return the lines without pids; the run has ended, so that all of them are
    there.
    """
    return [line.rstrip("0123456789 ") for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, so that one process sees it all."""
    with ProcessExecutor(1, grace=0.3) as pool:
        yield pool


def test_a_worker_enters_a_context_once_a_run(
    drive: Any, pool: Any, tmp_path: Path
) -> None:
    """All supersteps of the run find it entered; its end leaves it."""
    file = tmp_path / "log"

    drive.invoke(app_of(file, pool), {"number": 3})

    assert ["enter", "use", "use", "use", "exit"] == lines_of(file)
    pids = {int(line.split()[1]) for line in file.read_text().splitlines()}
    assert 1 == len(pids)
    assert {os.getpid()} != pids


def test_each_run_enters_its_own_in_a_worker(
    drive: Any, pool: Any, tmp_path: Path
) -> None:
    """The worker outlives runs; what they open does not."""
    file = tmp_path / "log"
    app = app_of(file, pool)

    drive.invoke(app, {"number": 1})
    drive.invoke(app, {"number": 1})

    assert 2 * ["enter", "use", "exit"] == lines_of(file)


def test_a_context_in_a_worker_is_told_how_its_run_failed(
    drive: Any, pool: Any, tmp_path: Path
) -> None:
    """As a ``with`` block would be: it may have to roll back."""
    file = tmp_path / "log"

    with pytest.raises(OSError, match="on purpose"):
        drive.invoke(app_of(file, pool, fail), {"number": 1})

    assert ["enter", "use", "failed on purpose", "exit"] == lines_of(file)


def test_every_worker_enters_and_leaves_its_own(tmp_path: Path) -> None:
    """Those that ran no task of the run have nothing to leave."""
    file = tmp_path / "log"
    with ProcessExecutor(1, worker_max_tasks=1) as pool:
        app_of(file, pool).invoke({"number": 2})

    assert 2 * ["enter", "use", "exit"] == lines_of(file)


def test_a_context_that_cannot_be_left_is_reported(
    pool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run had ended well, and stays so."""
    app_of(tmp_path / "log", pool, factory=stubborn).invoke({"number": 1})
    app_of(tmp_path / "next", pool).invoke({"number": 1})

    assert "a Context channel could not be left" in caplog.text
    assert "it cannot be left" in caplog.text


@pytest.mark.slow
def test_other_processes_enter_a_context_for_each_task(tmp_path: Path) -> None:
    """Nobody tells them when a run has ended."""
    file = tmp_path / "log"
    with loky.ProcessPoolExecutor(1) as engine:
        app_of(file, engine).invoke({"number": 2})

    assert 2 * ["enter", "use", "exit"] == lines_of(file)


def test_other_os_threads_share_the_runs_context(drive: Any, tmp_path: Path) -> None:
    """It is this process's, and the run leaves it."""
    file = tmp_path / "log"
    with concurrent.futures.ThreadPoolExecutor(1) as engine:
        drive.invoke(app_of(file, engine), {"number": 2})

    assert ["enter", "use", "use", "exit"] == lines_of(file)
