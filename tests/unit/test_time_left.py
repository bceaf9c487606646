"""The time that is left, estimated from made-up durations."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from flowpregel._inspection.time_left import (
    CallDurations,
    PlannedTime,
    TimeLeft,
    time_left,
)

Draw = Callable[[random.Random], float]
CALLS = 200
DRAWS: dict[str, Draw] = {
    "constant": lambda _: 2.0,
    "uniform": lambda rng: rng.uniform(1, 3),
    "exponential": lambda rng: rng.expovariate(0.5),
    "two sizes": lambda rng: rng.choice([0.2, 5.0]),
}


def spans_of(draw: Draw, workers: int, seed: int) -> list[tuple[float, float]]:
    """Return the beginning and the end of each call, in order of the ends."""
    rng = random.Random(seed)
    free = [0.0] * workers
    spans = []
    for _ in range(CALLS):
        began = heapq.heappop(free)
        ended = began + draw(rng)
        spans.append((began, ended))
        heapq.heappush(free, ended)
    return sorted(spans, key=lambda span: span[1])


def estimated(
    draw: Draw, workers: int, share: float, seed: int
) -> tuple[TimeLeft | None, float]:
    """Return the estimate after a share of the calls, and the true time left."""
    spans = spans_of(draw, workers, seed)
    now = spans[int(CALLS * share) - 1][1]
    durations = CallDurations()
    for began, ended in spans:
        if ended <= now:
            durations.add("fit", ended - began)
    running = [("fit", now - began) for began, ended in spans if began <= now < ended]
    waiting = {"fit": sum(began > now for began, _ in spans)}
    return time_left(durations, running, waiting, workers), spans[-1][1] - now


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_truth_is_mostly_within_the_range(
    draw: Draw, workers: int, share: float
) -> None:
    """And the range is narrow enough to be of use."""
    results = [estimated(draw, workers, share, seed) for seed in range(100)]

    hits = 0
    widths = []
    for estimate, truth in results:
        assert estimate is not None
        hits += estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        widths.append((estimate.high - estimate.low) / truth)
    assert hits >= 85
    assert sorted(widths)[50] < 2


def test_more_calls_make_a_narrower_range() -> None:
    """In proportion to the time that is left."""
    widths = []
    for share in (0.1, 0.3, 0.6):
        estimate, truth = estimated(DRAWS["exponential"], 1, share, seed=1)
        assert estimate is not None
        widths.append((estimate.high - estimate.low) / truth)

    assert sorted(widths, reverse=True) == widths


@pytest.mark.parametrize(
    ("ended", "running", "waiting", "workers"),
    [
        (2, [], {"fit": 1}, 1),
        (7, [], {"fit": 1}, 4),
        (9, [], {"fit": 1, "other": 1}, 1),
        (9, [("other", 1.0)], {"fit": 1}, 1),
        (9, [], {}, 1),
    ],
    ids=["two ends", "few for four workers", "other waits", "other runs", "nothing"],
)
def test_nothing_is_estimated_while_too_little_is_known(
    ended: int, running: list[tuple[str, float]], waiting: dict[str, int], workers: int
) -> None:
    """No estimate is better than a wrong one."""
    durations = CallDurations()
    for _ in range(ended):
        durations.add("fit", 2.0)

    assert time_left(durations, running, waiting, workers) is None


def test_a_call_that_is_overdue_may_take_as_long_again() -> None:
    """Or end now."""
    durations = CallDurations()
    for _ in range(4):
        durations.add("fit", 2.0)

    assert TimeLeft(0.0, 9.0) == time_left(durations, [("fit", 9.0)], {}, 1)


def test_earlier_runs_count_until_enough_calls_have_ended() -> None:
    """A run may have other inputs than the runs before it."""
    earlier = CallDurations()
    for _ in range(10):
        earlier.add("fit", 60.0)
    durations = CallDurations(earlier)

    before = time_left(durations, [], {"fit": 1}, 1)
    for _ in range(50):
        durations.add("fit", 2.0)
    after = time_left(durations, [], {"fit": 1}, 1)

    assert TimeLeft(60.0, 60.0) == before
    assert TimeLeft(2.0, 2.0) == after


def test_a_bounded_number_of_durations_is_kept() -> None:
    """The latest ones."""
    durations = CallDurations()
    for number in range(1000):
        durations.add("fit", float(number))

    assert [*map(float, range(800, 1000))] == [*durations.of("fit")]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, 0.4, "about 1 s"),
        (40.2, 55.0, "40 to 55 s"),
        (64.0, 89.0, "64 to 89 s"),
        (64.0, 170.0, "1 to 3 min"),
        (3000.0, 7300.0, "1 to 3 h"),
    ],
)
def test_a_range_is_shown_without_false_precision(
    low: float, high: float, text: str
) -> None:
    assert text == str(TimeLeft(low, high))


def test_the_time_of_planned_calls_names_how_many_run_at_once() -> None:
    """The range alone does not show on how many workers it counts."""
    estimate = TimeLeft(480.0, 715.0)

    assert "8 to 12 min, 8 calls at once" == str(PlannedTime(estimate, 8))
    assert "8 to 12 min, one call at a time" == str(PlannedTime(estimate, 1))
