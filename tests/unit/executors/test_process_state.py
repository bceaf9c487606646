"""What a task changes in the process of its worker, and how that is put back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel.executors.processes.wire import protocol
from tests.process_changes import (
    CHANGES,
    change_folder,
    close_descriptors,
    descriptors,
    exchange_descriptors,
    folder,
    forget_marks,
    redirect_descriptors,
)
from tests.unit.executors.driven_workers import DrivenWorker, WorkerMaker, value
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
