"""An executor whose machines are jobs of SLURM, named by a URL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.by_name import executor_named
from flowpregel.func import entrypoint, task
from tests.slurm_cluster import Cluster, serving, until

pytestmark = pytest.mark.slow
URL = "slurm://?time=1h&mem=500M"
PROGRAM = f"""
import time
from flowpregel.func import entrypoint, task

@task
def wait():
    time.sleep(600)

@entrypoint(executor="{URL}")
def flow(_):
    return wait().result()

if __name__ == "__main__":
    flow.run(0)
"""


@pytest.fixture(scope="module", autouse=True)
def jobqueue() -> Any:
    """The package that submits jobs."""
    return pytest.importorskip(
        "dask_jobqueue", reason="the extra slurm is not installed"
    )


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """The cluster that this process uses."""
    with serving() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster


@task
def job_of_task(number: int) -> tuple[int, str]:
    """Return the number, and the id of the SLURM job in which this runs."""
    return number, os.environ["SLURM_JOB_ID"]


def connect(location: str) -> Any:
    """Return the plug-in's executor."""
    from flowpregel.plugins.cluster.slurm import connect_to_slurm

    return connect_to_slurm(location)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("batch", "there is no option 'batch'"),
        ("?time=1h", "mem must be given"),
        ("", "time and mem must be given"),
        ("?time=1h&mem=1G&memory=2G", "there is no option 'memory'"),
        ("?time=1h&mem=1G&mem=2G", "mem='2G': give the option one value"),
        ("?time=1h&mem=", "mem='': give the option one value"),
        ("?time=90&mem=1G", "time='90': use a duration"),
        ("?time=soon&mem=1G", "time='soon': use a duration"),
        ("?time=1h&mem=8", "mem='8': name an amount and its unit"),
        ("?time=1h&mem=much", "mem='much': name an amount"),
        ("?time=1h&mem=0G", "mem='0G': name an amount"),
        ("?time=1h&mem=1G&cpus=0", "cpus='0': use a whole number"),
        ("?time=1h&mem=1G&cpus=two", "cpus='two': use a whole number"),
        ("?time=1h&mem=1G&jobs=-1", "jobs='-1': use a whole number"),
        ("?time=1h&mem=1G&wait=9", "wait='9': use a duration"),
    ],
)
def test_a_wrong_option_is_named(location: str, reason: str) -> None:
    """Before anything is submitted, and with what to write instead."""
    with pytest.raises(ConfigurationError) as caught:
        connect(location)

    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("3h50m", 13_800), ("1d", 86_400), ("04:00:00", 14_400)],
)
def test_a_time_is_ours_or_slurms(text: str, seconds: int) -> None:
    """Plain numbers are refused above, as they mean minutes there and seconds here."""
    from flowpregel.plugins.cluster.slurm import duration_in_seconds

    assert seconds == duration_in_seconds("time", text)


def test_a_machine_without_slurm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the machines that have it."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ExecutorUnavailableError, match="no sbatch on this machine"):
        executor_named(URL)


def test_what_slurm_would_refuse_is_reported_in_its_words(slurm: Cluster) -> None:
    """When the executor is made, not in a log when tasks wait."""
    with pytest.raises(ConfigurationError, match=r"invalid partition.*: nowhere"):
        connect("?time=1h&mem=500M&partition=nowhere")

    assert [] == slurm.jobs()


def test_jobs_exist_while_tasks_wait(slurm: Cluster) -> None:
    """None before, at most as many as the URL allows, none when all is done."""
    with connect("?time=1h&mem=500M&cpus=2&jobs=1&partition=other") as executor:
        before = slurm.jobs()

        @entrypoint(executor=executor)
        def flow(count: int) -> list[tuple[int, str]]:
            return [future.result() for future in job_of_task.map(range(count))]

        numbers, jobs = zip(*flow.run(6), strict=True)
        header = slurm.run(
            "squeue", "-h", "-t", "all", "-o", "%C %m %l %P", "-j", jobs[0]
        )
        until(lambda: not slurm.jobs())

    assert [] == before
    assert (0, 1, 2, 3, 4, 5) == numbers
    assert 1 == len(set(jobs))
    assert "2 500M 1:00:00 other" == header


def test_a_closed_executor_leaves_no_job(slurm: Cluster) -> None:
    """Although a task runs."""
    executor = connect("?time=1h&mem=500M")
    executor.submit(signal.pause)
    until(lambda: bool(slurm.jobs("--states=RUNNING")))

    executor.close()

    until(lambda: not slurm.jobs())


def test_a_killed_program_leaves_no_job(slurm: Cluster, tmp_path: Path) -> None:
    """Its jobs end when they have lost it."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    program = subprocess.Popen([sys.executable, str(file)], cwd=tmp_path)
    until(lambda: bool(slurm.jobs("--states=RUNNING")))

    program.kill()
    program.wait()

    until(lambda: not slurm.jobs())
