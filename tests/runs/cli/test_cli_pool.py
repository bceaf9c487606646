"""`flowpregel pool` changes the number of workers of a run under way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.console import Code
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs import jobs
from tests.runs.pooling import wait_until
from tests.runs.queues import command

meet = task(jobs.meet)


@contextmanager
def study(store: str, folder: Path, count: int) -> Iterator[object]:
    """Run *count* calls, which end once they all run, with a single worker."""
    with LMDBSaver(store) as saver, ProcessExecutor(1) as pool:

        @entrypoint(checkpointer=saver, executor=pool)
        def flow(folder: str) -> list[int]:
            return [future.result() for future in meet.map([(folder, count)] * count)]

        handle = flow.start(str(folder), id="study")
        wait_until(lambda: any(folder.iterdir()))
        try:
            yield handle
        finally:
            (folder / "go").touch()


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The path of a store."""
    return str(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.mark.slow
def test_a_run_under_way_gets_more_workers(store: str, folder: Path) -> None:
    """Its calls wait for each other, so with one worker it would never end."""
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 2
    with study(store, folder, 2) as handle:
        result = command(store, "pool", "study", "--workers", "2", "--nice", str(nice))
        shown = command(store, "show", "study")
        (folder / "go").touch()
        values = handle.result()  # type: ignore[attr-defined]

    assert result.exit_code == Code.OK, result.output
    assert f"study: up to 2 workers, nice {nice}\n" == result.stdout
    assert f"up to 2 workers, nice {nice}" in shown.stdout
    assert [nice, nice] == values


@pytest.mark.slow
def test_without_options_it_shows_the_size(store: str, folder: Path) -> None:
    """And leaves no request in the store."""
    with study(store, folder, 2):
        result = command(store, "pool", "study", "--json")
        command(store, "pool", "study", "--workers", "2")
        with LMDBSaver(store) as saver:
            request = saver.pool_request("study")

    assert {"thread_id": "study", "pools": [{"workers": 1, "nice": None}]} == (
        json.loads(result.stdout)
    )
    assert request is None


def test_a_run_that_has_ended_has_no_workers(store: str) -> None:
    """The command says so, and does not wait."""
    with LMDBSaver(store) as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> int:
            return number

        flow.run(1, id="study")

    result = command(store, "pool", "study", "--workers", "2")

    assert result.exit_code == Code.USAGE
    assert "nothing runs on thread 'study'" in result.stderr
