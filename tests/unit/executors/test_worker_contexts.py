"""`Context` channels in a worker: which it enters, and when it exits them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Outcome, Raised, Returned
from flowpregel.channels import Context
from flowpregel.context import Job
from flowpregel.executors.processes.wire import messages, protocol, serialization
from tests.unit.executors.driven_workers import DrivenWorker, value_of
from tests.unit.executors.quick_pools import job_of

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@contextlib.contextmanager
def opened(file: Path, name: str) -> Iterator[str]:
    """Note in *file* when it is entered and left."""
    note(file, f"enter {name}")
    try:
        yield name
    except OSError as error:
        note(file, f"failed {error}")
        raise
    finally:
        note(file, f"exit {name}")


@contextlib.contextmanager
def stubborn(file: Path, name: str) -> Iterator[str]:
    """Refuse to be left."""
    yield name
    note(file, f"refused {name}")
    raise RuntimeError("it cannot be left")


@contextlib.contextmanager
def moving(folder: Path) -> Iterator[str]:
    """Change the working directory when it is left."""
    yield "moving"
    os.chdir(folder)


def note(file: Path, line: str) -> None:
    """Add a line."""
    with file.open("a") as out:
        out.write(f"{line}\n")


def run(worker: DrivenWorker, channel: Context[Any]) -> Any:
    """Return what a task in *worker* gets that reads *channel*."""
    job: Job = job_of(str, contexts=("log",))
    job.task.input = channel
    (number,) = worker.order(job)
    return value_of(worker.end(number)[0])


def leave(
    worker: DrivenWorker, channels: Sequence[Context[Any]], outcome: Outcome | None
) -> None:
    """Tell *worker* that the run of *channels* has ended with an outcome."""
    tokens = [channel.held.token for channel in channels]
    packed = None if outcome is None else messages.pack_outcome(outcome, "")
    worker.send(protocol.LEAVE, 5, serialization.pack((tokens, packed)).data)


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (None, []),
        (Returned(()), []),
        (Raised(OSError("on purpose")), ["failed on purpose"]),
    ],
    ids=["ended", "returned", "failed"],
)
def test_a_context_is_entered_once_and_left_when_its_run_ends(
    outcome: Outcome | None, failure: list[str], worker: DrivenWorker, tmp_path: Path
) -> None:
    """With the error of the run, if it has one; the worker tells when that is done."""
    file = tmp_path / "log"
    channels: list[Context[Any]] = [
        Context(partial(opened, file, name)) for name in ("one", "two")
    ]
    assert ["one", "two", "one"] == [
        run(worker, channels[position]) for position in (0, 1, 0)
    ]

    leave(worker, channels[:1], outcome)

    assert 5 == worker.frame(protocol.LEFT).number
    lines = ["enter one", "enter two", *failure, "exit one"]
    assert lines == file.read_text().splitlines()
    worker.send(protocol.STOP)
    assert 0 == worker.exit_code()
    assert [*lines, "exit two"] == file.read_text().splitlines()


def test_a_context_that_cannot_be_left_is_logged(
    worker: DrivenWorker, tmp_path: Path
) -> None:
    """The run has ended; others are left."""
    file = tmp_path / "log"
    channels: list[Context[Any]] = [
        Context(partial(stubborn, file, "one")),
        Context(partial(opened, file, "two")),
    ]
    for channel in channels:
        run(worker, channel)

    leave(worker, channels, None)

    assert b"it cannot be left" in worker.frame(protocol.LOGGED).body
    assert 5 == worker.frame(protocol.LEFT).number
    assert ["enter two", "refused one", "exit two"] == file.read_text().splitlines()


def test_a_context_that_was_never_entered_is_left_without_more(
    worker: DrivenWorker,
) -> None:
    """Its run may have used other workers alone."""
    leave(worker, [Context(partial(opened, Path("/nowhere"), "one"))], None)

    assert 5 == worker.frame(protocol.LEFT).number


def test_what_a_context_changes_when_it_is_left_is_put_back(
    worker: DrivenWorker, tmp_path: Path
) -> None:
    """As what a task has changed."""
    channel: Context[Any] = Context(partial(moving, tmp_path))
    run(worker, channel)
    leave(worker, [channel], None)
    worker.frame(protocol.LEFT)

    (number,) = worker.order(job_of(os.getcwd))

    assert os.getcwd() == value_of(worker.end(number)[0])
