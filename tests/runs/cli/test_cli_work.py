"""``flowpregel work`` runs what is enqueued: in order, once, and through kills."""

from __future__ import annotations

import json
import random
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel._core.records import RETURN, Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from tests.runs import queue_flows
from tests.runs.pooling import wait_until
from tests.runs.queues import Enqueue, start_work, status_of, work


def test_the_greatest_priority_begins_first_and_then_the_oldest(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """Whatever the names of the runs."""
    for line, priority in [("c", 0), ("b", 5), ("z", 9), ("a", 5), ("d", -1)]:
        enqueue(queue_flows.note, str(notes), line, id=line, priority=priority)

    ended = work(store)

    assert ended.exit_code == Code.OK
    assert ended.stdout.split() == [
        word for line in "zbacd" for word in ("done:", line)
    ]
    assert notes.read_text().split() == [*"zbacd"]


def test_a_run_that_was_enqueued_twice_runs_once(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """Also if it is enqueued again when it is done."""
    for _ in range(2):
        enqueue(queue_flows.note, str(notes), "a", id="a")
    work(store)
    enqueue(queue_flows.note, str(notes), "a", id="a")

    assert work(store).stdout == ""
    assert notes.read_text() == "a\n"
    assert status_of(store, "a") == "done"


def test_a_run_that_may_not_begin_yet_is_left_in_the_queue(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """It stays enqueued, and the others are run."""
    later = timedelta(hours=1)
    enqueue(queue_flows.note, str(notes), "later", id="later", not_before=later)
    enqueue(queue_flows.note, str(notes), "now", id="now", not_before=-later)

    work(store)

    assert notes.read_text() == "now\n"
    assert status_of(store, "later") == "enqueued"


def test_a_failed_run_does_not_stop_the_others(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """Its error is printed, and it is not tried again by itself."""
    enqueue(queue_flows.fail, "no licence", id="bad", priority=1)
    enqueue(queue_flows.note, str(notes), "good", id="good")

    ended = work(store)

    assert ended.exit_code == Code.FAILED
    assert ended.stdout.splitlines() == [
        "failed: bad: ValueError: no licence",
        "done: good",
    ]
    assert work(store).stdout == ""
    assert status_of(store, "bad") == "failed"


def test_only_runs_of_the_named_flows_are_taken(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """So that machines can have different work."""
    enqueue(queue_flows.note, str(notes), "a", id="a")
    enqueue(queue_flows.note_priority, str(notes), 7, id="b")

    ended = work(store, "--flow", f"{queue_flows.FLOWS}:note_priority", "--json")

    assert json.loads(ended.stdout) == {
        "thread_id": "b",
        "status": "done",
        "output": "7",
    }
    assert status_of(store, "a") == "enqueued"


def test_a_parameter_with_the_name_of_an_option_gets_the_argument(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """As in `run`."""
    enqueue(queue_flows.note_priority, str(notes), priority=3, id="a")

    work(store)

    assert notes.read_text() == "3\n"


def test_a_run_that_waits_is_resumed_when_its_signal_has_been_sent(
    store: str, enqueue: Enqueue
) -> None:
    """Until then it takes no job, and is not tried in vain."""
    enqueue(queue_flows.approve, "ok", id="a")

    first, second = work(store), work(store)
    with LMDBSaver(store) as saver:
        saver.send_signal("a", "ok", True)
    third = work(store)

    assert first.stdout == "waiting: a\n"
    assert second.stdout == ""
    assert third.stdout == "done: a\n"


def test_the_list_of_runs_shows_what_is_enqueued(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """With its priority, and what to do."""
    enqueue(queue_flows.note, str(notes), "a", id="a", priority=5)

    shown = CliRunner().invoke(app, ["show", "a", "--store", store])
    listed = CliRunner().invoke(app, ["ls", "--store", store, "--json"])

    assert "Enqueued with priority 5; `flowpregel work` runs it." in shown.stdout
    (thread,) = json.loads(listed.stdout)
    assert thread["status"] == "enqueued"


@pytest.mark.slow
def test_a_process_that_is_told_to_end_leaves_its_run_to_the_next(
    store: str, notes: Path, tmp_path: Path, enqueue: Enqueue
) -> None:
    """The running call ends, what is recorded is kept, and nothing new begins."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    files = str(notes), str(begun), str(gate)
    enqueue(queue_flows.two_parts, *files, id="a", priority=1)
    enqueue(queue_flows.note, str(notes), "next", id="b")
    process = start_work(store)
    wait_until(begun.exists)

    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)

    assert process.returncode == Code.AGAIN
    assert printed == "stopped: a\n"
    assert [status_of(store, thread) for thread in "ab"] == ["stopped", "enqueued"]
    assert work(store, "--jobs", "2").exit_code == Code.OK
    assert sorted(notes.read_text().splitlines()) == ["first part", "next", "stopped"]


@pytest.mark.slow
def test_a_killed_process_s_run_is_taken_by_the_next(
    store: str, notes: Path, tmp_path: Path, enqueue: Enqueue
) -> None:
    """What was recorded is not done again."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    enqueue(queue_flows.two_parts, str(notes), str(begun), str(gate), id="a")
    process = start_work(store)
    wait_until(begun.exists)
    # The first part is on disk when its commit in the background has ended.
    wait_until(lambda: has_results(store, "a"))
    process.kill()
    process.communicate(timeout=60)
    gate.touch()

    assert work(store).stdout == "done: a\n"
    assert notes.read_text().splitlines() == ["first part", "found"]


def has_results(store: str, thread: str) -> bool:
    """Return whether the result of a call is on disk."""
    with LMDBSaver(store, readonly=True) as saver:
        saved = saver.load(Address(thread))
    assert saved is not None
    return RETURN in {write.channel for write in saved.writes}


@pytest.mark.slow
def test_no_run_is_lost_or_done_twice_though_processes_are_killed(
    store: str, notes: Path, enqueue: Enqueue
) -> None:
    """Three processes share the queue. A call that was killed may have run twice, but
    each run has one result.
    """
    chance = random.Random(5)
    lines = [str(number) for number in range(60)]
    for line in lines:
        enqueue(queue_flows.note, str(notes), line, id=line)
    options = ["--jobs", "2", "--every", "0.1"]
    processes = [start_work(store, *options) for _ in range(3)]
    for most in range(6, 48, 7):
        wait_until(lambda most=most: len(done_runs(store)) >= most)
        victim = processes.pop(chance.randrange(3))
        victim.kill()
        victim.communicate(timeout=60)
        processes.append(start_work(store, *options))
    wait_until(lambda: len(done_runs(store)) == 60)

    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    # A process that has only just started has no handler yet.
    codes = {process.returncode for process in processes}
    assert codes <= {Code.AGAIN, -signal.SIGTERM}
    assert {*notes.read_text().split()} == {*lines}
    assert len(notes.read_text().split()) <= 60 + 6 * 2


def done_runs(store: str) -> list[str]:
    """Return the threads whose runs are done."""
    with LMDBSaver(store, readonly=True) as saver:
        return [info.thread_id for info in saver.threads() if info.status == "done"]
