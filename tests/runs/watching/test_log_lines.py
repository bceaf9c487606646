"""What flowpregel itself logs: replaced workers, takeovers, lost leases, retention."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flowpregel.checkpoint.durable import DurableSaver, Retention
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import LeaseLostError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.testing.saver_hooks import Timeline
from tests.runs import jobs
from tests.runs.pooling import Run, value_of

SAVERS = {
    "lmdb": LMDBSaver,
    "sqlite": lambda path, **options: SQLiteSaver(path / "runs.db", **options),
}


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """Return what a logger has logged, each message with its level."""
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name == name
    ]


def change_for_good(_: object) -> None:
    """Change what a worker cannot restore: a hard limit, and the user of root."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, most - 1))
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "function", "reason"),
    [
        ({"worker_max_tasks": 1}, jobs.pid, "tasks it has run: 1 (worker_max_tasks=1)"),
        ({"worker_max_rss": 1}, jobs.pid, "bytes of memory (worker_max_rss=1)"),
        ({}, change_for_good, "its last task has changed what cannot be restored: "),
    ],
)
def test_a_replaced_worker_is_logged_with_the_reason(
    options: dict[str, int],
    function: Callable[[object], int | None],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator sees what recycles the workers, and how often."""
    with (
        caplog.at_level(logging.INFO, "flowpregel"),
        ProcessExecutor(1, **options) as pool,
    ):
        value_of(Run(pool).outcome(function))
        value_of(Run(pool).outcome(jobs.pid))

    first, *_ = lines(caplog, "flowpregel.worker")
    assert first.startswith("INFO worker process ")
    assert " is replaced: " in first
    assert reason in first


@pytest.fixture(params=SAVERS)
def saver_of(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., DurableSaver]:
    """A function that opens a store of each kind."""
    return lambda **options: SAVERS[request.param](tmp_path, **options)


def test_a_takeover_and_the_lost_lease_are_logged(
    saver_of: Callable[..., DurableSaver], caplog: pytest.LogCaptureFixture
) -> None:
    """By the run that takes over, and by the run that is refused."""
    with (
        saver_of() as saver,
        saver.lease("t") as old,
        saver.lease("t", on_conflict="takeover"),
        pytest.raises(LeaseLostError) as caught,
    ):
        saver.commit([replace(Timeline(saver, "t").batch(1), fence=old.fence)])

    owner = f"process {os.getpid()}"
    takeover, lost = lines(caplog, "flowpregel.store")
    assert takeover.startswith(f"WARNING thread 't' is taken over from {owner}")
    assert lost == f"WARNING {caught.value}"


def test_what_retention_deletes_is_logged(
    saver_of: Callable[..., DurableSaver], caplog: pytest.LogCaptureFixture
) -> None:
    """For those who ask why a checkpoint is gone."""
    with (
        caplog.at_level(logging.DEBUG, "flowpregel"),
        saver_of(retention=Retention(keep_last=1)) as saver,
    ):
        line = Timeline(saver, "t")
        for number in range(40):
            saver.commit([line.batch(number)])

    found = lines(caplog, "flowpregel.store")
    assert "DEBUG thread 't': its retention has deleted 31 checkpoints" in found


UNCONFIGURED = """
import sys
from flowpregel.checkpoint.lmdb import LMDBSaver

with (
    LMDBSaver(sys.argv[1]) as saver,
    saver.lease("t"),
    saver.lease("t", on_conflict="takeover"),
):
    print("taken over")
"""


def test_a_program_that_configures_no_logging_prints_nothing(tmp_path: Path) -> None:
    """As of any library; its own output stays its own."""
    ended = subprocess.run(
        [sys.executable, "-c", UNCONFIGURED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ended.stdout == "taken over\n"
    assert ended.stderr == ""
