"""The points of a metric's series that are kept."""

from __future__ import annotations

from itertools import pairwise
from math import isnan, nan

import pytest

from flowpregel._core.metric_series import (
    MOST_POINTS,
    MetricPoint,
    MetricSeries,
    UnsentPoints,
    pack_series,
    unpack_series,
)


def series_of(count: int) -> MetricSeries:
    """Return a series of so many values, one a second."""
    series = MetricSeries()
    for number in range(count):
        series.add(float(number), number / 2)
    return series


@pytest.mark.parametrize("count", [0, 1, 2, MOST_POINTS - 1])
def test_few_points_are_all_kept(count: int) -> None:
    points = series_of(count).points()

    assert [number / 2 for number in range(count)] == [point.value for point in points]
    assert all(isnan(point.step) for point in points)


@pytest.mark.parametrize("count", [MOST_POINTS, 201, 399, 400, 401, 12_345])
def test_many_points_are_thinned_evenly(count: int) -> None:
    times = [point.at for point in series_of(count).points()]
    gaps = {after - before for before, after in pairwise(times[:-1])}

    assert MOST_POINTS / 2 <= len(times) <= MOST_POINTS
    assert 1 == len(gaps)
    assert [0.0, count - 1.0] == [times[0], times[-1]]
    assert times[-1] - times[-2] <= gaps.pop()


def test_a_series_is_read_as_it_was_recorded() -> None:
    series = MetricSeries()
    series.add(1.0, 0.1, step=7)
    series.add(2.5, float("inf"), step=8)
    single = series_of(1)

    media = pack_series({"loss": series, "single": single}, clock_offset=10.0)

    assert [("loss", "series")] == [(name, kind) for name, kind, _ in media]
    assert [(11.0, 0.1, 7.0), (12.5, float("inf"), 8.0)] == unpack_series(media[0][2])


def test_a_damaged_series_is_refused() -> None:
    with pytest.raises(ValueError, match="25 bytes"):
        unpack_series(bytes(25))


def sent_after(times: list[float]) -> list[list[float]]:
    """Return the times of the points of each message, if a value is added at each of
    *times*.
    """
    unsent = UnsentPoints()
    messages: list[list[float]] = []
    for at in times:
        points = unsent.add("loss", MetricPoint(at, 0.5, nan))
        if points:
            messages.append([point.at for point in points["loss"]])
    return messages


def test_a_short_call_sends_no_points() -> None:
    assert [] == sent_after([0, 0.1, 0.4])


def test_a_busy_call_sends_two_points_twice_a_second() -> None:
    times = [number / 100 for number in range(120)]

    assert [[0, 0.5], [0.51, 1.0]] == sent_after(times)


def test_a_slow_call_sends_all_its_points() -> None:
    assert [[0, 30], [60], [90]] == sent_after([0, 30, 60, 90])


def test_each_metric_is_in_the_next_message() -> None:
    unsent = UnsentPoints()
    unsent.add("rare", MetricPoint(0.1, 1.0, nan))
    unsent.add("loss", MetricPoint(0.2, 2.0, nan))

    assert {"rare", "loss"} == unsent.add("loss", MetricPoint(0.7, 3.0, nan)).keys()
    assert {} == unsent.add("loss", MetricPoint(0.8, 4.0, nan))
