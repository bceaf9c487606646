"""What a task changes in the process of its worker, and how that is put back."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from flowpregel._core.records import Withdrawn
from flowpregel.errors import TaskCancelled, TaskExitError
from flowpregel.executors.processes.wire import protocol
from tests.process_changes import (
    CHANGES,
    change_folder,
    close_descriptors,
    descriptors,
    enter,
    exchange_descriptors,
    folder,
    forget_marks,
    handlers,
    lose_copies,
    redirect_descriptors,
    remove_and_leave,
)
from tests.unit.executors.driven_workers import (
    DrivenWorker,
    WorkerMaker,
    error_of,
    value,
)
from tests.unit.executors.quick_pools import job_of

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def lasting(worker: DrivenWorker, function: Callable[..., Any], *args: Any) -> str:
    """Return what stays of a call, as *worker* names it."""
    (number,) = worker.order(job_of(function, *args))
    worker.end(number)
    return worker.frame(protocol.SPOILED).body.decode()


# ------------------------------------------------ what is put back


@pytest.mark.parametrize(
    ("change", "look"), CHANGES, ids=lambda function: function.__name__
)
def test_the_next_task_finds_the_process_as_it_was(
    change: Callable[[], None], look: Callable[[], Any], worker: DrivenWorker
) -> None:
    """The worker sends nothing but the end of each task: it is not spoiled."""
    before = value(worker, look)

    value(worker, change)

    assert before == value(worker, look)


@pytest.mark.parametrize(
    "change", [redirect_descriptors, exchange_descriptors, close_descriptors]
)
def test_descriptors_are_put_back_where_open_files_cannot_be_marked(
    change: Callable[[], None], worker_of: WorkerMaker
) -> None:
    """They are known by what they are open on."""
    worker = worker_of(initializer=pickle.dumps((forget_marks, ())))
    before = value(worker, descriptors)

    value(worker, change)

    assert before == value(worker, descriptors)


def test_the_initializer_decides_what_tasks_find(
    worker_of: WorkerMaker, tmp_path: Path
) -> None:
    """The worker is put back to the state after it."""
    worker = worker_of(initializer=pickle.dumps((os.chdir, (str(tmp_path),))))

    value(worker, change_folder)

    assert str(tmp_path) == value(worker, folder)


# ------------------------------------------------ what interrupts that


def interrupt_the_end(kind: type[BaseException]) -> None:
    """Have an error raised where the worker first puts something back."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.settrace(partial(raise_in_settle, kind))


def raise_in_settle(kind: type[BaseException], frame: FrameType, *_: Any) -> None:
    """Raise an error; the interpreter calls it where a function is called."""
    if frame.f_code.co_name == "settle":
        raise kind("from a trace function")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(OSError, OSError), (SystemExit, TaskExitError), (TaskCancelled, None)],
)
def test_an_error_while_a_task_is_ended_is_its_outcome(
    raised: type[BaseException],
    expected: type[BaseException] | None,
    worker: DrivenWorker,
) -> None:
    """The process is put back nevertheless."""
    before = value(worker, handlers)
    (number,) = worker.order(job_of(interrupt_the_end, raised))

    outcome, _ = worker.end(number)

    if expected is None:
        assert isinstance(outcome, Withdrawn)
    else:
        assert isinstance(error_of(outcome), expected)
        assert "from a trace function" in str(error_of(outcome))
    assert before == value(worker, handlers)


# ------------------------------------------------ what cannot be put back


def become_another_user() -> None:
    """Give up what only root may do, for good, and a limit with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard - 1))
    os.setgid(1)
    os.setuid(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_and_a_limit_that_are_given_up_stay_so(worker: DrivenWorker) -> None:
    """Both are named."""
    assert "resource limits, users and groups" == lasting(worker, become_another_user)


def change_root(path: str) -> None:
    """Change the root directory."""
    os.chroot(path)
    os.chdir("/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change that")
def test_another_root_directory_stays_so(worker: DrivenWorker, tmp_path: Path) -> None:
    """The working directory cannot be reached from there."""
    names = lasting(worker, change_root, str(tmp_path))

    assert "working directory, root directory" == names


def test_a_descriptor_of_which_there_is_no_copy_stays_closed(
    worker: DrivenWorker,
) -> None:
    """The worker says what the system says."""
    assert os.strerror(errno.EBADF) in lasting(worker, lose_copies)


def test_a_working_directory_that_was_removed_is_not_found(
    worker_of: WorkerMaker, tmp_path: Path
) -> None:
    """The worker cannot go back to it."""
    own = str(tmp_path / "own")
    worker = worker_of(initializer=pickle.dumps((enter, (own,))))

    assert "working directory" == lasting(worker, remove_and_leave, own)
