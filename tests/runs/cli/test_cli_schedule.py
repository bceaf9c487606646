"""`flowpregel work` follows schedules: each due time is one run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.scheduled import ScheduledFlow
from flowpregel.cli.console import Code
from flowpregel.cli.scheduling import ScheduleFollower
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint
from flowpregel.pregel.schedule import Schedule, scheduled_run_id
from flowpregel.testing.clock import SkippingClock
from tests.runs import queue_flows
from tests.runs.pooling import wait_until
from tests.runs.queues import command, start_work, work

HOURLY: Final = f"{queue_flows.FLOWS}:hourly"
SCATTERED: Final = f"{queue_flows.FLOWS}:scattered"
EACH_SECOND: Final = f"{queue_flows.FLOWS}:each_second"
NOON: Final = 1_777_636_800.0
"""2026-05-01 12:00 UTC."""
HOUR: Final = 3_600


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The folder of a store."""
    return str(tmp_path / "store")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the scheduled flows append lines."""
    file = tmp_path / "notes"
    monkeypatch.setenv("FLOWPREGEL_TEST_NOTES", str(file))
    return file


@pytest.fixture
def saver(store: str) -> Iterator[LMDBSaver]:
    """A store that follows the hourly schedule since noon."""
    with LMDBSaver(store) as saver:
        saver.change_schedules(lambda flows: flows.update(queue_flows.since(NOON)))
        yield saver


def runs(saver: LMDBSaver) -> list[str]:
    """Return the due times of the runs in a store, without the date."""
    ids = sorted(info.thread_id for info in saver.threads())
    return [run_id.rpartition("T")[2] for run_id in ids]


def test_each_due_time_is_enqueued_once(saver: LMDBSaver) -> None:
    """By its id, whichever process sees it."""
    followers = [ScheduleFollower(saver), ScheduleFollower(saver)]

    for minute in range(0, 150, 10):
        for follower in followers:
            follower.enqueue_due(NOON + minute * 60)

    assert runs(saver) == ["13:00:00Z", "14:00:00Z"]


def test_two_processes_that_see_the_same_time_enqueue_one_run(
    saver: LMDBSaver,
) -> None:
    """The second has read the mark before the first moved it."""
    before = queue_flows.since(NOON)
    ScheduleFollower(saver).enqueue_due(NOON + HOUR)
    saver.change_schedules(lambda flows: flows.update(before))

    ScheduleFollower(saver).enqueue_due(NOON + HOUR)

    assert runs(saver) == ["13:00:00Z"]


def test_a_clock_that_jumps_back_repeats_no_time(saver: LMDBSaver) -> None:
    """Also if the run of that time was deleted."""
    follower = ScheduleFollower(saver)
    follower.enqueue_due(NOON + 2 * HOUR)
    (thread,) = saver.threads()
    saver.delete_thread(thread.thread_id)

    follower.enqueue_due(NOON + HOUR)
    follower.enqueue_due(NOON + 2 * HOUR)
    follower.enqueue_due(NOON + 3 * HOUR)

    assert runs(saver) == ["15:00:00Z"]


def test_a_clock_that_jumps_forward_starts_the_last_time_only(
    saver: LMDBSaver,
) -> None:
    """With the default policy."""
    follower = ScheduleFollower(saver)

    follower.enqueue_due(NOON + 5 * HOUR + 1)

    assert runs(saver) == ["17:00:00Z"]


def test_a_clock_that_was_ahead_by_days_does_not_stop_the_schedule(
    saver: LMDBSaver,
) -> None:
    """Once it is right, the schedule begins again."""
    follower = ScheduleFollower(saver)
    follower.enqueue_due(NOON + 1_000 * HOUR)

    follower.enqueue_due(NOON + HOUR)
    follower.enqueue_due(NOON + 2 * HOUR)

    assert "14:00:00Z" in runs(saver)


def test_work_until_empty_waits_for_the_end_of_the_jitter(
    store: str, notes: Path, flowpregel_clock: SkippingClock
) -> None:
    """A run that is due but delayed would otherwise be left to the next process."""
    now = flowpregel_clock.now.timestamp()
    scattered = {SCATTERED: ScheduledFlow(now)}
    with LMDBSaver(store) as saver:
        saver.change_schedules(lambda flows: flows.update(scattered))
    flowpregel_clock.advance(HOUR - now % HOUR)
    due = flowpregel_clock.now.replace(minute=0, second=0, microsecond=0)

    result = work(store)

    assert result.exit_code == Code.OK, result.output
    assert len(notes.read_text().split()) == 1
    delay = Schedule(every=HOUR, jitter="30m").delay(scheduled_run_id(SCATTERED, due))
    assert flowpregel_clock.now - due >= delay


def test_a_paused_schedule_catches_up_after_the_pause(saver: LMDBSaver) -> None:
    """By its policy."""
    follower = ScheduleFollower(saver)
    saver.pause(flows=[HOURLY])
    for hour in range(1, 4):
        follower.enqueue_due(NOON + hour * HOUR)
    paused = runs(saver)
    saver.unpause(flows=[HOURLY])
    follower.enqueue_due(NOON + 3.5 * HOUR)

    assert paused == []
    assert runs(saver) == ["15:00:00Z"]


def test_only_the_schedules_of_the_named_flows_are_followed(saver: LMDBSaver) -> None:
    """As with the runs that are taken."""
    ScheduleFollower(saver, ["jobs:other"]).enqueue_due(NOON + HOUR)

    assert runs(saver) == []


def test_the_body_gets_the_due_time(saver: LMDBSaver, store: str, notes: Path) -> None:
    """Not the time at which the run began."""
    ScheduleFollower(saver).enqueue_due(NOON + HOUR + 1)

    assert work(store, "--flow", HOURLY).exit_code == Code.OK
    assert "2026-05-01T13:00:00+00:00" in notes.read_text().split()


def test_the_command_adds_lists_and_removes_schedules(store: str) -> None:
    """`work` finds them in the store."""
    LMDBSaver(store).close()

    added = command(store, "schedule", HOURLY, "--count", "2", "--json")
    listed = command(store, "schedule", "--count", "1")
    removed = command(store, "schedule", HOURLY, "--remove", "--json")

    first, second = json.loads(added.stdout)
    assert first["flow"] == HOURLY
    assert first["due"] < second["due"]
    assert first["id"] in listed.stdout
    assert json.loads(removed.stdout) == []


def test_a_flow_without_a_schedule_is_refused(store: str) -> None:
    """With what to write."""
    LMDBSaver(store).close()

    result = command(store, "schedule", f"{queue_flows.FLOWS}:note")

    assert result.exit_code == Code.USAGE
    assert "has no schedule: write @entrypoint(cron=" in result.stderr


def test_a_schedule_that_cannot_be_imported_leaves_the_others(
    saver: LMDBSaver, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note names it, once."""
    saver.change_schedules(
        lambda flows: flows.update({"tests.runs.none:flow": flows[HOURLY]})
    )
    follower = ScheduleFollower(saver)
    follower.enqueue_due(NOON + HOUR)
    follower.enqueue_due(NOON + 2 * HOUR)

    assert runs(saver) == ["13:00:00Z", "14:00:00Z"]
    assert capsys.readouterr().err.count("the schedule of tests.runs.none:flow") == 1


def test_a_module_that_raises_leaves_the_other_schedules(
    saver: LMDBSaver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever it raises."""
    (tmp_path / "jobs_that_raise.py").write_text("raise ValueError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    saver.change_schedules(
        lambda flows: flows.update({"jobs_that_raise:flow": flows[HOURLY]})
    )

    ScheduleFollower(saver).enqueue_due(NOON + HOUR)

    assert runs(saver) == ["13:00:00Z"]
    assert "the schedule of jobs_that_raise:flow: " in capsys.readouterr().err


def test_a_run_that_cannot_be_enqueued_leaves_the_later_ones(
    saver: LMDBSaver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The id of its due time names a run of another workflow."""
    other = queue_flows.note.copy({"checkpointer": saver})
    other.enqueue("notes", "a", id=f"{HOURLY}@2026-05-01T13:00:00Z")
    follower = ScheduleFollower(saver)

    follower.enqueue_due(NOON + HOUR)
    follower.enqueue_due(NOON + 2 * HOUR)

    assert runs(saver) == ["13:00:00Z", "14:00:00Z"]
    assert "FlowMismatchError" in capsys.readouterr().err


def test_a_body_that_needs_more_than_the_due_time_is_refused() -> None:
    """When it is defined."""
    with pytest.raises(ConfigurationError, match="called with the due time alone"):

        @entrypoint(every="1h")
        def report(due: object, name: str) -> None: ...


def test_an_option_of_a_schedule_needs_a_schedule() -> None:
    """A time zone alone does nothing."""
    with pytest.raises(ConfigurationError, match=r"pass cron= or every="):
        entrypoint(timezone="Europe/Berlin")


@pytest.mark.slow
def test_two_processes_begin_one_run_for_each_second(store: str, notes: Path) -> None:
    """Though one of them is killed and another one starts."""
    LMDBSaver(store).close()
    command(store, "schedule", EACH_SECOND)
    options = ["--every", "0.05"]
    processes = [start_work(store, *options) for _ in range(2)]
    wait_until(lambda: notes.exists() and len(notes.read_text().split()) >= 2)
    processes[0].kill()
    processes[0].communicate(timeout=60)
    processes[0] = start_work(store, *options)
    wait_until(lambda: len(notes.read_text().split()) >= 6)
    command(store, "schedule", EACH_SECOND, "--remove")

    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    work(store)
    with LMDBSaver(store, readonly=True) as saver:
        seconds = [int(due[6:8]) for due in runs(saver)]
    # No second is left out: 59 is followed by 0.
    steps = {(b - a) % 60 for a, b in pairwise(seconds)}
    assert steps == {1}
    assert len({*notes.read_text().split()}) == len(seconds)
    # The killed process may have made its call already.
    assert len(notes.read_text().split()) <= len(seconds) + 1
