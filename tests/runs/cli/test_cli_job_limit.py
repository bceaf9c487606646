"""Commands stop before the end of a SLURM job, unless the user sets another time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowpregel.cli.console import Code
from flowpregel.cli.job_limit import JOB_END, seconds_of_job
from tests.runs import queue_flows
from tests.runs.queues import Enqueue, command, status_of

WAITING = f"{queue_flows.FLOWS}:two_parts"


@pytest.fixture
def ending_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has less time left than its runs need to stop."""
    monkeypatch.setenv(JOB_END, str(int(time.time()) + 5))


def files_of(folder: Path) -> list[str]:
    """Return the arguments of a run that waits for a file, or until it must stop."""
    return [str(folder / name) for name in ("notes", "begun", "gate")]


def run_waiting(store: str, folder: Path, *options: str) -> tuple[int, str]:
    """Run a flow that waits, and return the exit code and what was printed."""
    file, begun, gate = files_of(folder)
    flow_input = f'{{"file": "{file}", "begun": "{begun}", "gate": "{gate}"}}'
    words = ["run", WAITING, f"--input={flow_input}", "--id=a", *options]
    result = command(store, *words)
    return result.exit_code, result.stderr


@pytest.mark.usefixtures("ending_job")
def test_a_run_stops_before_the_end_of_the_job(store: str, tmp_path: Path) -> None:
    """With the code for another try, and a note that explains it."""
    code, printed = run_waiting(store, tmp_path)

    assert Code.AGAIN == code
    assert "before the SLURM job ends" in printed
    assert "stopped" == status_of(store, "a")


@pytest.mark.usefixtures("ending_job")
def test_a_time_of_the_user_takes_precedence(store: str, tmp_path: Path) -> None:
    """The run has all the time that it needs."""
    (tmp_path / "gate").touch()

    code, printed = run_waiting(store, tmp_path, "--stop-after", "1h")

    assert Code.OK == code
    assert "SLURM" not in printed


@pytest.mark.usefixtures("ending_job")
def test_work_ends_before_the_end_of_the_job(
    store: str, tmp_path: Path, enqueue: Enqueue
) -> None:
    """Although it waits for more runs otherwise."""
    enqueue(queue_flows.two_parts, *files_of(tmp_path), id="a")

    result = command(store, "work")

    assert Code.AGAIN == result.exit_code


def test_a_time_limit_of_work_ends_it(store: str, enqueue: Enqueue) -> None:
    """Also outside a job."""
    assert enqueue

    result = command(store, "work", "--stop-after", "0.05s", "--every", "0.05")

    assert Code.AGAIN == result.exit_code


@pytest.mark.parametrize("value", ["", "soon"])
def test_another_value_is_no_end_of_a_job(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some schedulers set the variable otherwise."""
    monkeypatch.setenv(JOB_END, value)

    assert seconds_of_job({}) is None


def test_the_grace_period_is_left_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And half a minute for the rest."""
    monkeypatch.setenv(JOB_END, str(time.time() + 1_000))

    first, second = seconds_of_job({}), seconds_of_job({"stop_grace": 100.0})

    assert first is not None
    assert second is not None
    assert 940 < first <= 950
    assert 79 < first - second < 81
