"""Functions with which tests enqueue runs, and run `flowpregel work`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.func.flow import Flow

Enqueue = Callable[..., str]


def enqueue_on(saver: LMDBSaver) -> Enqueue:
    """Return a function that enqueues a run of a flow in a store."""

    def enqueue(flow: Flow[Any, Any], *args: Any, **kwargs: Any) -> str:
        return flow.copy({"checkpointer": saver}).enqueue(*args, **kwargs)

    return enqueue


def command(store: str, *words: str) -> Result:
    """Run a command on a store."""
    return CliRunner().invoke(app, [*words, "--store", store])


def work(store: str, *options: str) -> Result:
    """Run the command until nothing is due."""
    words = ["work", "--store", store, "--until-empty", *options]
    return CliRunner().invoke(app, words)


def start_work(store: str, *options: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    words = [sys.executable, "-m", "flowpregel", "work", "--store", store, *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def status_of(store: str, thread: str) -> str:
    """Return the status of a run."""
    with LMDBSaver(store, readonly=True) as saver:
        info = saver.thread(thread)
    assert info is not None
    return info.status
