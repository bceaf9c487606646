"""Workflows that are killed at every fault point: nothing is lost, nothing done
twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flowpregel import _fault
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.crash import (
    CrashError,
    CrashReport,
    Point,
    Violation,
    crash_everywhere,
)
from tests.runs import crash_flows

ROOT = Path(__file__).parents[3]
FLOWS = "tests.runs.crash_flows"
ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
"""Whether runs are killed at all of their points; the daily run kills a few at some."""


def killed(name: str, **more: Any) -> CrashReport:
    """Kill a workflow of `crash_flows` everywhere."""
    report = crash_everywhere(f"{FLOWS}:{name}", modules=(FLOWS,), **more)
    print(name, report)
    return report


# ---------------------------------------------------------------- the promise


def test_a_small_workflow_that_is_killed_anywhere_loses_nothing() -> None:
    """Every point of a run of two tasks in this process."""
    report = killed("short")

    assert report.ok, report
    assert len(report.points) - len(report.missed) == report.kills > 30
    # Where the first run was slow, its tasks were committed apart: once more often than
    # in the runs that were to be killed there.
    names = {point.name for point in report.missed}
    of_commits = ("store.commit.", "committer.", "writer.commit.")
    assert all(name.startswith(of_commits) for name in names), report.missed


@pytest.mark.slow
def test_workers_and_coordinator_may_be_killed() -> None:
    """Six tasks in worker processes: some points, those in the workers among them."""
    report = killed("processes", at_most=None if ALL else 5)

    assert report.ok, report
    assert any(point.name.startswith("worker.") for point in report.points)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inline", "threads", "lagging", "at_exit"])
def test_six_tasks_may_be_killed_anywhere(name: str) -> None:
    """The executors of this process with `sync`, and each durability; a kill is two
    processes.
    """
    report = killed(name, at_most=None if ALL else 12)

    assert report.ok, report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asking", "graph"])
def test_questions_and_nested_graphs_survive(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some points of a run that is answered, and of a graph with a graph inside."""
    if not ALL:
        # else it starts workers for each kill
        monkeypatch.setenv("FLOWPREGEL_EXECUTOR", "threads")
    report = killed(name, at_most=None if ALL else 8)

    assert report.ok, report


@pytest.mark.slow
def test_a_second_kill_while_it_goes_on_does_no_harm() -> None:
    """Pairs of points: some first ones, and for each some of its recovery."""
    report = killed("short", in_a_row=2, at_most=5)

    assert report.ok, report
    # Which commits are made together depends on the machine, so a point of the recovery
    # may not be met.
    assert 25 <= report.kills + len(report.missed)


@pytest.mark.slow
def test_three_kills_in_a_row_do_no_harm() -> None:
    """A kill, one while it goes on, and one while it goes on after that."""
    report = killed("short", in_a_row=3, at_most=2)

    assert report.ok, report
    assert 14 <= report.kills + len(report.missed)


# ---------------------------------------------------------------- the harness sees


def test_a_saver_that_acknowledges_too_early_is_found() -> None:
    """What it said is committed runs again."""
    report = killed("early", at_most=10)

    assert not report.ok
    assert any(
        "ran again after its result was committed" in str(v) for v in report.violations
    )


@pytest.mark.slow
def test_a_saver_that_forgets_is_found() -> None:
    """Pending writes that are gone after a crash."""
    report = killed("forgetful", at_most=12)

    assert any(
        "was made again by a committed task" in str(v) for v in report.violations
    )


def starts_anew(folder: Path) -> int:
    """Go on in a way that gives another result and another history."""
    tries = folder / "tries"
    tries.write_text(f"{tries.read_text() if tries.exists() else ''}x")
    with LMDBSaver(folder / "store") as saver:
        return crash_flows.run(saver, "inline", tasks=2) + len(tries.read_text())


def test_another_result_is_found() -> None:
    """It is compared with that of the run which nobody disturbed."""
    report = crash_everywhere(starts_anew, at_most=2)

    assert {"the result is 3, not 2"} == {
        violation.problem for violation in report.violations
    }


def with_more(folder: Path) -> int:
    """Run anew each time, with other input."""
    tries = folder / "tries"
    tries.write_text(f"{tries.read_text() if tries.exists() else ''}xx")
    shutil.rmtree(folder / "store", ignore_errors=True)
    with LMDBSaver(folder / "store") as saver:
        crash_flows.run(saver, "inline", tasks=len(tries.read_text()))
    return 0


def test_another_history_is_found() -> None:
    """The message says which checkpoint, and what it has."""
    report = crash_everywhere(with_more, at_most=2)

    assert 2 == len(report.violations), report
    assert all(
        "checkpoint -1 of thread '1'" in str(each) for each in report.violations
    ), report


def fails(folder: Path) -> None:
    """Fail by itself."""
    raise OSError("by itself")


def test_a_workflow_that_fails_undisturbed_is_refused() -> None:
    """There is nothing to compare with; the message has what it printed."""
    with pytest.raises(CrashError, match="by itself"):
        crash_everywhere(fails)


def test_a_report_reads_as_a_sentence() -> None:
    """First the counts, then each violation with where it was killed."""
    points = (Point("a", 1), Point("b", 2))
    report = CrashReport(
        points, writes=1, kills=2, runs=5, violations=[Violation(points, "it was lost")]
    )

    assert (
        "2 fault points (1 at durable writes, 0 at effects), 2 kills, 5 runs, 0 points "
        "not met, "
        "1 violations\n"
        "  killed at a:1, then b:2: it was lost"
    ) == str(report)


# ---------------------------------------------------------------- fault points


def run_with(fault: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Pass one point three times in a process with a fault."""
    code = (
        "from flowpregel._fault import fault\nfor n in (0, 1, 2): fault('p'); "
        "print(n, flush=1)"
    )
    env = {
        _fault.FAULT: fault,
        _fault.TRACE: str(tmp_path / "log"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_fault_acts_at_its_pass(tmp_path: Path) -> None:
    """And the trace has the passes up to it."""
    done = run_with("p:2:kill", tmp_path)

    assert (-signal.SIGKILL, "0\n") == (done.returncode, done.stdout)
    names = [
        line.split("\t")[::2][:2]
        for line in (tmp_path / "log").read_text().splitlines()
    ]
    assert [["p", "1"], ["p", "2"]] == names


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("p:2:raise", "InjectedFault: a fault was asked for at p:2"),
        ("p:2", "use name:n:action"),
    ],
)
def test_a_fault_may_raise_and_must_be_readable(
    tmp_path: Path, fault: str, message: str
) -> None:
    """The message says where, or what to write."""
    assert message in run_with(fault, tmp_path).stderr


# ---------------------------------------------------------------- the plugin

PAGE = """
    import pytest
    from flowpregel import LMDBSaver
    from flowpregel.func import entrypoint, task

    @task
    def double(n):
        return 2 * n

    @pytest.mark.crash_everywhere(at_most=6)
    @pytest.mark.parametrize("n", [4])
    def test_doubling(tmp_path, n):
        with LMDBSaver(tmp_path / "store") as saver:
            @entrypoint(checkpointer=saver, executor="inline")
            def flow(n):
                return double(n).result()
            result = flow.invoke(n, thread_id="1", run_id="one", durability="sync")
            assert 2 * n == result

    @pytest.mark.crash_everywhere(at_most=2)
    def test_once(tmp_path):
        (tmp_path / "once").touch(exist_ok=False)
        test_doubling(tmp_path, 4)
"""


MUTATING = """
    import warnings
    from flowpregel.func import entrypoint, task

    @task
    def score(rows):
        rows.append(0)
        return len(rows)

    @entrypoint(executor="inline")
    def flow(rows):
        return score(rows).result()

    def test_score():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert 2 == flow.run([1])
"""


def pytest_on(
    folder: Path, *options: str, page: str = PAGE, **variables: str
) -> tuple[int, str]:
    """Run pytest on a test file with the plugin."""
    (folder / "test_page.py").write_text(textwrap.dedent(page))
    environment = {**os.environ}
    environment.pop("FLOWPREGEL_CHECK_MUTATIONS", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            "-p",
            "flowpregel.testing.plugin",
            "test_page.py",
            *options,
        ],
        cwd=folder,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_marked_test_runs_once_without_the_option(tmp_path: Path) -> None:
    """As any other test."""
    code, output = pytest_on(tmp_path)

    assert 0 == code, output
    assert "2 passed" in output
    assert "killed everywhere" not in output


@pytest.mark.slow
def test_a_marked_test_is_killed_everywhere_with_the_option(tmp_path: Path) -> None:
    """The summary has the count of points; one that cannot go on fails."""
    code, output = pytest_on(tmp_path, "--crash-everywhere")

    assert 1 == code, output
    assert "1 failed, 1 passed" in output
    assert "test_page.py::test_doubling[4]: " in output
    assert "6 kills, 13 runs, 0 points not met, 0 violations" in output
    assert "FAILED test_page.py::test_once" in output
    assert "FileExistsError" in output


@pytest.mark.slow
def test_the_plugin_turns_notices_about_changed_arguments_on(tmp_path: Path) -> None:
    """Inline tasks hide that such a change is lost in a worker process."""
    code, output = pytest_on(tmp_path, page=MUTATING)

    assert 1 == code, output
    assert "argument 'rows' of task 'score' was changed during the call" in output


@pytest.mark.slow
def test_the_environment_turns_these_notices_off(tmp_path: Path) -> None:
    """For all tests."""
    settings = {"FLOWPREGEL_CHECK_MUTATIONS": "0"}

    code, output = pytest_on(tmp_path, page=MUTATING, **settings)

    assert 0 == code, output
