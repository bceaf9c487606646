"""The due times of schedules, decided without a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.pregel.schedule import MOST_AT_ONCE, CatchUp, Schedule, scheduled_run_id

BERLIN = "Europe/Berlin"
SPRING = datetime(2026, 3, 29, tzinfo=UTC)
"""The day on which the clocks of Berlin skip the hour from 2 to 3."""
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)
"""The day on which they repeat the hour from 2 to 3."""
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def hours(first: datetime, count: int, **options: Any) -> list[str]:
    """Return the due times of a cron expression in Berlin after a moment."""
    pytest.importorskip("cronsim")
    schedule = Schedule(timezone=BERLIN, **options)
    return [f"{due:%d %H:%M%z}" for due in schedule.next_times(first, count)]


def test_a_time_that_spring_skips_is_due_right_after_the_change() -> None:
    """The run is not lost on that day, and is due once."""
    begin = SPRING - timedelta(hours=12)

    assert hours(begin, 3, cron="30 2 * * *") == [
        "29 03:00+0200",
        "30 02:30+0200",
        "31 02:30+0200",
    ]


def test_a_time_that_autumn_repeats_is_due_once() -> None:
    """At its first occurrence."""
    begin = AUTUMN - timedelta(hours=12)

    assert hours(begin, 2, cron="30 2 * * *") == ["25 02:30+0200", "26 02:30+0100"]


def test_each_half_hour_is_due_through_both_changes() -> None:
    """The skipped hour has no times, and the repeated hour has them twice."""
    spring = hours(SPRING + timedelta(minutes=10), 3, cron="*/30 * * * *")
    autumn = hours(AUTUMN - timedelta(minutes=10), 5, cron="*/30 * * * *")

    assert spring == ["29 01:30+0100", "29 03:00+0200", "29 03:30+0200"]
    assert autumn == [
        "25 02:00+0200",
        "25 02:30+0200",
        "25 02:00+0100",
        "25 02:30+0100",
        "25 03:00+0100",
    ]


@pytest.mark.parametrize("day", [SPRING, AUTUMN])
@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "0 3 * * *", "15 */2 * * *", "*/20 * * * *", "59 1,2 * * *"]
)
def test_the_times_do_not_depend_on_the_moment_of_the_look(
    day: datetime, cron: str
) -> None:
    """A process that starts in the middle of a change sees the same times."""
    pytest.importorskip("cronsim")
    schedule = Schedule(cron=cron, timezone=BERLIN)
    begin = day - timedelta(hours=6)
    every_time = schedule.next_times(begin, 60)

    for minutes in range(0, 12 * 60, 7):
        moment = begin + timedelta(minutes=minutes)
        expected = [due for due in every_time if due > moment][:3]
        assert schedule.next_times(moment, 3) == expected


def test_periods_are_counted_from_the_epoch() -> None:
    """So that each process computes the same times."""
    schedule = Schedule(every="1h30m")

    assert schedule.next_times(NOON, 2) == [
        NOON.replace(hour=13, minute=30),
        NOON.replace(hour=15),
    ]


@pytest.mark.parametrize(
    ("catch_up", "due"),
    [("skip", []), ("last", [14]), ("all", [13, 14])],
)
def test_catch_up_decides_on_missed_times(catch_up: CatchUp, due: list[int]) -> None:
    """None of them, the last one, or all."""
    schedule = Schedule(every="1h", catch_up=catch_up)
    now = NOON.replace(hour=14, minute=5)

    assert [each.hour for each in schedule.due_times(NOON, now)] == due


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_a_punctual_time_is_due_with_each_policy(catch_up: CatchUp) -> None:
    """A process that looks once a second sees it a moment late."""
    schedule = Schedule(every="1h", catch_up=catch_up)
    due = NOON.replace(hour=13)

    assert schedule.due_times(NOON, due + timedelta(seconds=1)) == [due]
    assert schedule.due_times(due, due + timedelta(seconds=1)) == []


def test_the_last_time_of_a_long_pause_is_found() -> None:
    """Also if it was long ago."""
    pytest.importorskip("cronsim")
    schedule = Schedule(cron="0 0 1 1 *")
    now = datetime(2026, 12, 1, tzinfo=UTC)

    assert schedule.due_times(now.replace(year=2020), now) == [
        datetime(2026, 1, 1, tzinfo=UTC)
    ]


def test_all_missed_times_come_in_parts() -> None:
    """A clock that is wrong by years does not fill the store at once."""
    schedule = Schedule(every=60, catch_up="all")

    due = schedule.due_times(NOON, NOON + timedelta(days=365))

    assert len(due) == MOST_AT_ONCE
    assert due[0] == NOON + timedelta(minutes=1)


def test_the_jitter_depends_on_the_run_alone() -> None:
    """Two processes choose the same delay, and two runs different ones."""
    schedule = Schedule(every="1h", jitter="10m")
    ids = [scheduled_run_id("jobs:study", NOON.replace(hour=hour)) for hour in (1, 2)]
    delays = [schedule.delay(run_id) for run_id in ids]

    assert delays == [schedule.delay(run_id) for run_id in ids]
    assert delays[0] != delays[1]
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either cron= or every="),
        ({"every": 60, "cron": "* * * * *"}, "either cron= or every="),
        ({"every": "soon"}, "every='soon'; use seconds"),
        ({"every": 0.5}, "of at least 1 seconds"),
        ({"every": 60, "jitter": -1}, "jitter=-1"),
        ({"every": 60, "timezone": "Berlin"}, "timezone='Berlin' is no time zone"),
        ({"every": 60, "catch_up": "none"}, "catch_up='none'; use 'skip'"),
    ],
)
def test_a_wrong_schedule_is_refused(options: dict[str, Any], message: str) -> None:
    """When the workflow is defined."""
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        Schedule(**options)


def test_a_wrong_cron_expression_is_refused() -> None:
    """With the reason."""
    pytest.importorskip("cronsim")

    with pytest.raises(ConfigurationError, match=r"cron='61 \* \* \* \*': Bad minute"):
        Schedule(cron="61 * * * *")
