"""The points of plots: which calls have one, and which stay when there are too many."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest

from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_points import PlotQuery, call_plot, plot_fields
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel._inspection.sweep_table import csv_of_calls
from tests.unit.test_call_index import call, change, index_of, running


def train(number: int, loss: Any, **arguments: Any) -> CallRow:
    """Return a call with a preview."""
    preview = {"a": arguments, "r": {"loss": loss}}
    path = f"p{number:06}"
    return call(number, path=path, preview=json.dumps(preview))


def points(index: CallIndex, text: str = "", **plot: Any) -> list[tuple[Any, ...]]:
    """Return the coordinates and colours of a plot's points."""
    drawn = call_plot(index, CallQuery(text=text), PlotQuery(**plot))
    return [point[:3] for point in drawn.points]


MANY = 9_000
"""Calls of which a plot of at most 1,000 points leaves most out."""


@cache
def many_calls() -> CallIndex:
    """Return calls whose loss is a wave, with one far outlier."""
    index = CallIndex()
    rows = [
        train(number, math.sin(number / 50), lr=number / MANY, seed=number % 3)
        for number in range(MANY)
    ]
    rows[MANY // 3] = train(MANY // 3, 500.0, lr=1 / 3, seed=0)
    index.update(CallChanges(MANY, True, False, tuple(rows)))
    return index


def test_a_point_is_a_call_with_both_numbers() -> None:
    index = index_of(
        train(1, 0.5, lr=0.1, name="a"),
        train(2, ["nan"], lr=0.2, name="b"),
        train(3, 0.25, lr=0.05, name="a"),
        train(4, True, lr=0.3),
        train(5, 10**400, lr=0.3),
    )

    assert [(0.05, 0.25, "a"), (0.1, 0.5, "a")] == points(
        index, x="lr", y="loss", colour="name"
    )
    assert [(0.1, 0.5, None)] == points(index, "lr:>0.07", x="lr", y="loss")


def test_the_order_of_calls_is_that_of_their_positions() -> None:
    index = index_of(train(3, 0.3), train(1, 0.1), train(2, 0.2))

    assert [(1, 0.1), (2, 0.2), (3, 0.3)] == [
        point[:2] for point in points(index, x="order", y="loss")
    ]


def test_calls_begin_in_seconds_after_the_first() -> None:
    index = index_of(
        call(1, began=5_000_000_000), call(2, began=7_500_000_000), call(3, began=0)
    )

    assert [0.0, 2.5] == [x for x, *_ in points(index, x="began", y="took")]


def test_a_running_call_has_no_duration() -> None:
    index = index_of(call(1))
    index.set_running([running(2)])

    assert 1 == call_plot(index, CallQuery(), PlotQuery(x="tries", y="took")).total


@pytest.mark.parametrize("is_line", [False, True])
@pytest.mark.parametrize("colour", ["", "seed", "lr"])
def test_a_plot_of_many_calls_has_few_points_and_all_extremes(
    is_line: bool, colour: str
) -> None:
    index = many_calls()
    query = PlotQuery(x="lr", y="loss", colour=colour, is_line=is_line, most=1_000)

    plot = call_plot(index, CallQuery(), query)

    assert MANY == plot.total
    assert 100 < len(plot.points) <= 1_000
    assert 500.0 == max(point.y for point in plot.points)
    xs = [point.x for point in plot.points]
    assert sorted(xs) == xs
    assert (0.0, 1.0) == (xs[0], pytest.approx(xs[-1], abs=0.02))
    if colour == "seed":
        assert {0, 1, 2} == {point.colour for point in plot.points}


def test_a_line_of_many_calls_keeps_the_least_and_the_greatest_of_each_part() -> None:
    index = many_calls()
    plot = PlotQuery(x="lr", y="loss", is_line=True, most=1_000)

    kept = [point.y for point in call_plot(index, CallQuery(), plot).points]

    # The outlier is among them, and each wave has a least and a greatest value.
    waves = round(MANY / 50 / math.tau)
    assert waves <= sum(y > 0.99 for y in kept)
    assert waves <= sum(y < -0.99 for y in kept)


def test_values_of_any_size_are_plotted() -> None:
    index = index_of(*(train(n, n * 1.7e308 / 300, lr=-n) for n in range(300)))
    query = PlotQuery(x="lr", y="loss", most=100)

    assert 1 < len(call_plot(index, CallQuery(), query).points) <= 100


def test_equal_values_are_plotted() -> None:
    index = index_of(*(train(n, 1.0, lr=2) for n in range(300)))

    assert [(2, 1.0, None)] == points(index, x="lr", y="loss", most=100)


def test_the_fields_of_a_plot_are_numbers_of_calls() -> None:
    index = index_of(train(1, 0.5, lr=0.1, name="a", flag=True))

    fields = plot_fields(index)

    assert ("lr", "loss") == fields.chosen
    assert "order" == fields.common[0]
    assert ("lr", "name", "flag", "loss", "task") == fields.groups[:5]


# ------------------------------------------------ CSV


def test_a_csv_file_has_the_calls_of_the_query_in_its_order() -> None:
    index = index_of(
        train(1, 0.5, lr=0.1), train(2, 0.25, lr=0.1), train(3, 0.125, lr=0.5)
    )
    query = CallQuery(text="lr:0.1", order="loss")

    assert ["call,loss", "train(2),0.25", "train(1),0.5"] == [
        *csv_of_calls(index, query, ["call", "loss"])
    ]


def test_a_csv_file_has_all_columns_unless_some_are_chosen() -> None:
    index = index_of(train(1, 'a "text", of two\nlines', lr=0.1))

    assert [
        "task,call,state,error,took,memory,tries,lr,loss",
        'train,train(1),done,,1.0,0,1,0.1,"a ""text"", of two\nlines"',
    ] == [*csv_of_calls(index, CallQuery())]


def test_calls_that_change_while_a_csv_file_is_made_are_in_it() -> None:
    index = index_of(train(1, 0.5), train(2, 0.25))
    lines = csv_of_calls(index, CallQuery(order="call"), ["call", "loss"])

    first = [next(lines), next(lines)]
    change(index, train(2, 0.75), train(3, 0.1))

    assert ["call,loss", "train(1),0.5", "train(2),0.75"] == [*first, *lines]


def test_a_running_call_has_no_duration_in_a_csv_file() -> None:
    index = index_of()
    index.set_running([running(2)])

    assert ["call,took", "train(2),"] == [
        *csv_of_calls(index, CallQuery(), ["call", "took"])
    ]
