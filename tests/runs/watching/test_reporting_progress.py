"""Tasks that say how far they are: on every executor, in streams and in live views."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from flowpregel import get_runtime, report_progress
from flowpregel.cli.watching import RunView
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.pregel.progress import ProgressView
from flowpregel.types import TimeoutPolicy
from tests.runs.pooling import wait_until

EXECUTORS = ["inline", "threads", "processes"]


@task
def measure(total: int) -> int:
    for done in range(total + 1):
        report_progress(done, total, "measuring")
    return total


def reports_of(items: list[Any]) -> list[tuple[Any, ...]]:
    """Return the reports among the items of a stream, without the tasks' ids."""
    return [
        (each["name"], each["done"], each["total"], each["message"]) for each in items
    ]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_reports_arrive_labelled_with_their_task(drive: Any, executor: str) -> None:
    """The first and the last always; what follows at once says nothing new."""

    @entrypoint(executor=executor)
    def flow(total: int) -> int:
        return measure(total).result()

    items = drive.stream(flow, 3, stream_mode="progress")

    reports = reports_of(items)
    assert ("measure", 0, 3, "measuring") == reports[0]
    assert ("measure", 3, 3, "measuring") == reports[-1]
    assert 1 == len({each["id"] for each in items})


def test_an_async_task_reports(drive: Any) -> None:
    """On the event loop, through its runtime."""

    @task
    async def wander(steps: int) -> int:
        for step in range(steps):
            get_runtime().progress(step + 1, steps, f"step {step}")
            await asyncio.sleep(0)
        return steps

    @entrypoint()
    def flow(steps: int) -> int:
        return wander(steps).result()

    reports = reports_of(drive.stream(flow, 2, stream_mode="progress"))

    assert [("wander", 1, 2, "step 0"), ("wander", 2, 2, "step 1")] == reports


@task
def stop_half_way(file: str) -> None:
    report_progress(1, 2)
    wait_until(lambda: Path(file).read_text() == "seen")


@pytest.mark.slow
def test_a_report_of_a_worker_arrives_while_its_task_runs(
    drive: Any, tmp_path: Any
) -> None:
    """The task ends only when the reader has seen it."""
    file = tmp_path / "answer"
    file.write_text("")

    @entrypoint(executor="processes")
    def flow(_: None) -> None:
        stop_half_way(str(file)).result()

    def seen(item: Any) -> bool:
        file.write_text("seen")
        return False

    assert 1 == len(drive.stream_until(seen, flow, 0, stream_mode="progress"))


def test_other_modes_do_not_hear_of_it(drive: Any) -> None:
    """They are what they are without."""

    @entrypoint(executor="inline")
    def flow(total: int) -> int:
        return measure(total).result()

    items = drive.stream(flow, 1, stream_mode=["custom", "updates", "values"])

    assert [
        ("updates", {"measure": 1}),
        ("updates", {"flow": 1}),
        ("values", 1),
    ] == items


def test_a_report_shows_that_a_task_is_alive(drive: Any) -> None:
    """An idle timeout counts from it, as from anything a task streams."""

    @task(timeout=TimeoutPolicy(idle_timeout=0.5))
    async def work(_: int) -> str:
        for number in range(10):
            await asyncio.sleep(0.06)
            report_progress(number)
        return "done"

    @entrypoint()
    def flow(number: int) -> str:
        return work(number).result()

    assert "done" == drive.invoke(flow, 1)


@pytest.mark.parametrize("wrong", ["a lot", [1]])
def test_what_is_no_number_is_refused(drive: Any, wrong: Any) -> None:
    """By name, in the task that said it."""

    @entrypoint()
    def flow(done: Any) -> None:
        report_progress(done)

    with pytest.raises(ConfigurationError, match="done="):
        drive.invoke(flow, wrong)


def test_progress_is_reported_inside_of_runs_only() -> None:
    """The message says where it may be called."""
    with pytest.raises(RuntimeError, match="report_progress"):
        report_progress(1)


# ------------------------------------------------ live views


def report(
    done: float, total: float | None = None, message: str | None = None
) -> dict[str, Any]:
    return {"id": "1", "name": "work", "done": done, "total": total, "message": message}


def test_the_live_view_shows_how_far_running_tasks_are() -> None:
    """Until they end."""
    view = ProgressView("flow", io.StringIO(), lambda: 1.0)
    view.see(((), "tasks", {"name": "work", "id": "1", "input": None}))
    view.see(((), "progress", report(1500, 3000, "fitting")))

    assert "    1,500/3,000 (50 %) fitting" == view.lines(2.0)[-1]

    ended = {"name": "work", "id": "1", "result": {}, "error": None, "interrupts": []}
    view.see(((), "tasks", ended))

    assert "work: 1 done" in view.lines(2.0)[-1]


def test_the_live_view_shows_how_far_the_run_itself_is() -> None:
    """And how long the rest takes, of which what was recorded before tells nothing."""
    now = [0.0]
    view = ProgressView("flow", io.StringIO(), lambda: now[0], lambda: "")
    before = {"work": None, "__metadata__": {"cached": True}}
    started = {"name": "work", "id": "1", "input": None}
    ended = {"name": "work", "id": "1", "result": {}, "error": None, "interrupts": []}
    for event in [("updates", before)] * 9 + [("tasks", started)] * 3:
        view.see(((), *event))
    for seconds in (2.0, 4.0, 4.0):
        now[0] += seconds
        view.see(((), "tasks", ended))
    view.see(((), "progress", {**report(40, 100), "name": "flow"}))

    lines = view.lines(10.0)

    assert "flow: 10.0 s, 40/100 (40 %), 39 to 82 s left" == lines[0]
    assert "work: 12 done, 9 of them before" in lines[1]


def test_the_command_line_shows_how_far_running_tasks_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In its lines, beside the counts."""
    now = [0.0]
    with RunView("flow", lambda: now[0]) as view:
        view.see(((), "tasks", {"name": "work", "id": "1", "input": None}))
        now[0] = 3.0
        view.see(((), "progress", report(0.25)))

    assert "work: 0 done, 1 to do |    0.25" in capsys.readouterr().err
