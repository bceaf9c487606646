"""`flowpregel pause` keeps `work` from taking runs, and `cancel` lasts."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.console import Code
from tests.runs import queue_flows
from tests.runs.pooling import wait_until
from tests.runs.queues import (
    Enqueue,
    command,
    start_work,
    status_of,
    work,
)

NOTE = f"{queue_flows.FLOWS}:note"


@pytest.mark.parametrize(
    "words", [("a", "b"), ("--flow", NOTE), ("--all",)], ids=["run", "flow", "all"]
)
def test_what_is_paused_is_not_taken_until_the_pause_ends(
    store: str, notes: Path, enqueue: Enqueue, words: tuple[str, ...]
) -> None:
    """Single runs, those of a flow, or all."""
    for line in "ab":
        enqueue(queue_flows.note, str(notes), line, id=line)

    assert command(store, "pause", *words).exit_code == Code.OK
    assert work(store).stdout == ""
    assert command(store, "unpause", *words).exit_code == Code.OK

    assert work(store).stdout.splitlines() == ["done: a", "done: b"]


def test_the_other_runs_are_taken(store: str, notes: Path, enqueue: Enqueue) -> None:
    """A pause concerns only the runs that it names."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    enqueue(queue_flows.note_priority, str(notes), 1, id="b")
    command(store, "pause", "--flow", NOTE)

    assert work(store).stdout == "done: b\n"


def test_a_pause_of_a_flow_holds_for_later_runs(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """For the night in which a licence server is down."""
    enqueue(queue_flows.note_priority, str(notes), 1, id="x")
    command(store, "pause", "--flow", NOTE)
    enqueue(queue_flows.note, str(notes), "a", id="a")

    assert work(store).stdout == "done: x\n"


def test_a_run_that_waits_is_not_woken_while_it_is_paused(
    store: str, enqueue: Enqueue
) -> None:
    """Neither by `work` nor by `wake`."""
    enqueue(queue_flows.approve, "ok", id="a")
    work(store)
    command(store, "signal", "a", "ok", "true")
    command(store, "pause", "a")

    assert work(store).stdout == ""
    assert command(store, "wake", "--json").stdout == ""
    command(store, "unpause", "a")
    assert work(store).stdout == "done: a\n"


@pytest.mark.parametrize(
    ("words", "sentence", "step"),
    [
        (("a",), "It is paused", "flowpregel unpause a"),
        (("--all",), "All runs are paused", "flowpregel unpause --all"),
        (
            ("--flow", NOTE),
            "Its flow is paused",
            f"flowpregel unpause --flow {NOTE}",
        ),
    ],
)
def test_the_status_shows_the_pause_and_how_to_end_it(
    store: str,
    notes: Path,
    enqueue: Enqueue,
    words: tuple[str, ...],
    sentence: str,
    step: str,
) -> None:
    """In the list and for one run."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    command(store, "pause", *words)

    (listed,) = json.loads(command(store, "ls", "--json").stdout)
    shown = command(store, "show", "a").stdout

    assert listed["short"] == "enqueued, paused"
    assert f"{sentence}: `flowpregel work` does not take it." in shown
    assert f"end the pause: {step} --store" in shown


def test_a_run_that_is_done_shows_no_pause(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """Nothing would take it in any case."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    work(store)
    command(store, "pause", "--all")

    (listed,) = json.loads(command(store, "ls", "--json").stdout)

    assert listed["short"] == "done"


def test_to_resume_a_paused_run_ends_its_pause(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """A later run of the same thread is not paused."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    command(store, "pause", "a")

    assert command(store, "resume", "a", "--quiet").exit_code == Code.OK

    with LMDBSaver(store, readonly=True) as saver:
        assert saver.paused().threads == frozenset()


def test_a_deleted_run_leaves_no_pause(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """The next run with this id is another one."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    command(store, "pause", "a")
    command(store, "rm", "a", "--yes")
    enqueue(queue_flows.note, str(notes), "a", id="a")

    assert work(store).stdout == "done: a\n"


def test_unpause_says_what_still_pauses_the_run(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """The pause of all runs, or of its flow."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    command(store, "pause", "--flow", NOTE)
    of_flow = command(store, "unpause", "a")
    command(store, "pause", "--all")
    of_all = command(store, "unpause", "a")

    assert f"a: its flow is still paused: {NOTE}" in of_flow.stderr
    assert "all runs are still paused: `unpause --all`" in of_all.stderr


@pytest.mark.parametrize("words", [(), ("a", "--all")])
def test_pause_needs_one_selection(store: str, words: tuple[str, ...]) -> None:
    """It never pauses everything by default."""
    LMDBSaver(store).close()

    result = command(store, "pause", *words)

    assert result.exit_code == Code.USAGE
    assert "pass RUN, --flow MODULE:FLOW, or --all" in result.stderr


@pytest.mark.parametrize("label", [["x"], {"a": 1}, 7], ids=["list", "dict", "int"])
def test_a_label_of_ones_own_stops_no_worker(
    store: str, notes: Path, enqueue: Enqueue, label: object
) -> None:
    """The user's ``metadata=`` may have a ``flow`` that names no flow."""
    with LMDBSaver(store) as saver:
        flow = queue_flows.fail.copy({"checkpointer": saver, "executor": "inline"})
        with pytest.raises(ValueError, match="b"):
            flow.invoke("b", thread_id="b", metadata={"flow": label})
    enqueue(queue_flows.note, str(notes), "a", id="a")

    assert work(store).stdout == "done: a\n"
    assert Code.OK == command(store, "wake", "--quiet").exit_code


def test_a_flow_that_no_run_has_is_noted(store: str) -> None:
    """It is paused all the same, because the pause is for later runs too."""
    LMDBSaver(store).close()
    paused = command(store, "pause", "--flow", "X")
    unpaused = command(store, "unpause", "--flow", "X")
    again = command(store, "unpause", "--flow", "X")

    assert "no run of 'X' is in the store yet; later ones pause\n" == paused.stderr
    assert "" == unpaused.stderr
    assert "the flow 'X' was not paused\n" == again.stderr
    assert {Code.OK} == {paused.exit_code, unpaused.exit_code, again.exit_code}


def test_pause_refuses_an_unknown_run(store: str) -> None:
    """A typing mistake is not a pause."""
    LMDBSaver(store).close()

    assert "has no thread 'b'" in command(store, "pause", "b").stderr


@pytest.mark.slow
def test_a_running_run_ends_after_its_calls_and_resumes_after_the_pause(
    store: str, notes: Path, tmp_path: Path, enqueue: Enqueue
) -> None:
    """The same process takes it again."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    enqueue(queue_flows.two_parts, str(notes), str(begun), str(gate), id="a")
    process = start_work(store, "--every", "0.05")
    wait_until(begun.exists)

    command(store, "pause", "--all")
    wait_until(lambda: status_of(store, "a") == "stopped")
    printed = notes.read_text().splitlines()
    command(store, "unpause", "--all")
    wait_until(lambda: status_of(store, "a") == "done")

    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "paused: a\ndone: a\n"
    assert printed == ["first part"]
    # The call noticed the pause, ended in time, and is not made again.
    assert notes.read_text().splitlines() == ["first part", "stopped"]


@pytest.mark.slow
def test_a_cancelled_run_is_not_taken_by_another_process(
    store: str, notes: Path, tmp_path: Path, enqueue: Enqueue
) -> None:
    """Until a person ends the pause."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    enqueue(queue_flows.two_parts, str(notes), str(begun), str(gate), id="a")
    process = start_work(store, "--until-empty")
    wait_until(begun.exists)

    cancelled = command(store, "cancel", "a")
    # The OS thread of the call ends when it finds the file.
    gate.touch()
    process.communicate(timeout=60)
    second = work(store)
    command(store, "unpause", "a")
    third = work(store)

    assert cancelled.stdout == "stopped: a; finished work is kept\n"
    assert second.stdout == ""
    assert third.stdout == "done: a\n"


@pytest.mark.slow
def test_a_run_that_was_cancelled_without_the_command_is_paused_too(
    store: str, tmp_path: Path, enqueue: Enqueue
) -> None:
    """As the page and `watch` do it."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    enqueue(queue_flows.wait_in_a_worker, str(begun), str(gate), id="a")
    process = start_work(store, "--until-empty")
    wait_until(begun.exists)

    with LMDBSaver(store, readonly=True) as saver:
        saver.cancel("a")
    printed, _ = process.communicate(timeout=60)
    gate.touch()

    assert printed == "stopped: a\n"
    assert work(store).stdout == ""
    with LMDBSaver(store, readonly=True) as saver:
        assert saver.paused().threads == {"a"}


# ---------------------------------------------------------------- what the list shows


def test_the_time_in_the_queue_is_not_part_of_the_duration(
    store: str, notes: Path, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a moment that waited for a day took a moment."""
    real = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real() - 86_400 * 10**9)
        enqueue(queue_flows.note, str(notes), "a", id="a")
    waiting = command(store, "ls").stdout
    work(store)
    done = command(store, "ls").stdout

    assert "ago" not in waiting
    assert "now" in done
    assert " d " not in done


def test_the_place_in_the_queue_has_a_row_of_its_own(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """By priority and age."""
    for line, priority in [("a", 0), ("b", 5), ("c", 0)]:
        enqueue(queue_flows.note, str(notes), line, id=line, priority=priority)

    shown = command(store, "show", "c").stdout
    record = json.loads(command(store, "show", "b", "--json").stdout)

    (row,) = [line for line in shown.splitlines() if line.startswith("queue ")]
    assert row.split(maxsplit=1)[1] == "place 3 of 3, priority 0"
    assert record["queue"] == {
        "place": 1,
        "length": 3,
        "priority": 5,
        "not_before": None,
    }
