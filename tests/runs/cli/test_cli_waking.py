"""The command sends signals, and wakes runs whose time or signal has come."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import UnansweredError
from flowpregel.func import provided
from tests.runs.cli_flows import FLOWS, wait


@pytest.fixture
def invoke(tmp_path: Path) -> Any:
    """Return what runs a command on one store."""

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store")])

    return invoke


def start(invoke: Any, flow: str, given: Any, thread: str) -> None:
    """Begin a run that stops where it would wait, as after a kill."""
    token = provided.pauses.set(True)
    try:
        words = ["run", f"{FLOWS}:{flow}", "--id", thread, "--input", json.dumps(given)]
        assert Code.WAITING == invoke(*words, "--quiet").exit_code
    finally:
        provided.pauses.reset(token)


def status_of(invoke: Any, thread: str) -> str:
    """Return how a run stands."""
    status: str = json.loads(invoke("show", thread, "--json").stdout)["status"]
    return status


def test_only_runs_whose_time_has_come_are_woken(
    invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sleeps on is not even looked at."""
    start(invoke, "rest", 3600, "a")
    start(invoke, "rest", 7200, "b")
    early = invoke("wake", "--quiet")
    now = time.time() + 3600
    monkeypatch.setattr("flowpregel._clock.SystemClock.wall", lambda self: now)

    late = invoke("wake", "--quiet")

    assert (Code.OK, "") == (early.exit_code, early.stdout)
    assert (Code.OK, '"awake"\n') == (late.exit_code, late.stdout)
    assert ("done", "waiting") == (status_of(invoke, "a"), status_of(invoke, "b"))


def test_what_is_wrong_with_a_run_does_not_keep_the_others_waiting(
    invoke: Any, tmp_path: Path
) -> None:
    """It is told, and the exit code is that of the worst."""
    start(invoke, "wait", ["go"], "b")
    with LMDBSaver(tmp_path / "store") as saver:
        flow = wait.copy({"checkpointer": saver})
        stopped = replace(flow.once, flow="no.such.module:flow")
        flow.once = stopped
        token = provided.pauses.set(True)
        with pytest.raises(UnansweredError):
            flow.run(["go"], id="a")
        provided.pauses.reset(token)
    for thread in "ab":
        invoke("signal", thread, "go", "1")

    woken = invoke("wake", "--quiet")

    assert Code.USAGE == woken.exit_code
    assert "error: a: no.such.module cannot be imported" in woken.stderr
    assert "[1]\n" == woken.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, Code.AGAIN), (signal.SIGINT, Code.STOPPED)]
)
def test_who_is_told_to_end_wakes_no_other_run(
    invoke: Any, number: int, code: Code
) -> None:
    """A batch system would kill it, and a person would have to press Ctrl-C for
    each.
    """
    for thread in "ab":
        words = [
            "run",
            f"{FLOWS}:told_to_end",
            "--id",
            thread,
            "--input",
            str(int(number)),
        ]
        assert code == invoke(*words, "--quiet").exit_code
    assert ["stopped", "stopped"] == [status_of(invoke, thread) for thread in "ab"]

    woken = invoke("wake", "--quiet")

    assert code == woken.exit_code
    assert woken.stderr.count("finished work is kept") == 1


def test_a_signal_that_was_sent_wakes_a_run(invoke: Any) -> None:
    """The value is JSON, or text."""
    start(invoke, "wait", ["go", "stop"], "a")
    assert Code.OK == invoke("wake", "--quiet").exit_code
    assert "waiting" == status_of(invoke, "a")

    assert "sent: go to a\n" == invoke("signal", "a", "go", '{"n": 1}').stdout
    woken = invoke("wake", "--quiet")

    assert Code.OK == woken.exit_code
    assert "waits for a signal: flowpregel signal a stop VALUE --store" in woken.stdout
    invoke("signal", "a", "stop", "1", "--text")
    assert '[{"n": 1}, "1"]\n' == invoke("wake", "--quiet").stdout
    assert "done" == status_of(invoke, "a")


def test_one_run_that_sleeps_is_woken_before_its_time(invoke: Any) -> None:
    start(invoke, "rest", 3600, "a")
    start(invoke, "rest", 7200, "b")

    woken = invoke("wake", "b", "--quiet")

    assert (Code.OK, '"awake"\n') == (woken.exit_code, woken.stdout)
    assert ("waiting", "done") == (status_of(invoke, "a"), status_of(invoke, "b"))


def test_a_run_that_is_done_cannot_be_woken(invoke: Any) -> None:
    start(invoke, "rest", 3600, "a")
    invoke("wake", "a", "--quiet")

    woken = invoke("wake", "a", "--quiet")

    assert Code.USAGE == woken.exit_code
    assert "thread 'a' neither sleeps nor waits for a signal" in woken.stderr


def test_a_signal_can_wake_the_run_at_once(invoke: Any) -> None:
    """And no other run."""
    start(invoke, "wait", ["go"], "a")
    start(invoke, "rest", 3600, "b")

    sent = invoke("signal", "a", "go", "1", "--wake")

    assert (Code.OK, "sent: go to a\n[1]\n") == (sent.exit_code, sent.stdout)
    assert ("done", "waiting") == (status_of(invoke, "a"), status_of(invoke, "b"))


def test_a_signal_to_a_run_that_has_not_begun_is_sent_with_a_note(invoke: Any) -> None:
    """The id may be misspelled."""
    start(invoke, "wait", ["go"], "a")

    known = invoke("signal", "a", "go", "1")
    unknown = invoke("signal", "aa", "go", "1")

    assert (Code.OK, "") == (known.exit_code, known.stderr)
    assert (Code.OK, "sent: go to aa\n") == (unknown.exit_code, unknown.stdout)
    assert "there is no run 'aa' yet" in unknown.stderr
