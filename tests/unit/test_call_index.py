"""The index of a run's calls: pages that stay right while calls change."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowpregel._inspection import call_index, call_table
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import STATES, CallQuery
from flowpregel._inspection.call_rows import CallChanges, CallRow

ORDERS = ("urgency", "-began", "began", "-took", "took", "call", "-call", "error")


def call(number: int, state: Any = "done", **fields: Any) -> CallRow:
    """Return a call of ``train``, which took as many seconds as its number."""
    usual: dict[str, Any] = {
        "id": f"{number:032x}",
        "name": "train",
        "text": f"train({number})",
        "state": state,
        "step": 0,
        "checkpoint_id": "c",
        "namespace": "",
        "path": f"p{number}",
        "caller": "body",
        "error": "ValueError: bad" if state == "failed" else "",
        "questions": 0,
        "planned": 1_000,
        "began": 1_000 + number,
        "seconds": float(number),
        "attempts": 1,
        "executor": "inline",
        "host": "here",
        "pid": 7,
        "cpu": 0.0,
        "peak": 0,
    }
    return CallRow(**usual | fields)


def index_of(*rows: CallRow) -> CallIndex:
    """Return an index of these calls."""
    index = CallIndex()
    index.update(CallChanges(100, True, False, rows))
    return index


def change(index: CallIndex, *rows: CallRow) -> None:
    """Change calls of an index."""
    index.update(CallChanges(index.mark + len(rows), False, False, rows))


def running(number: int, **fields: Any) -> dict[str, Any]:
    """Return a task that runs, as the live state of a run lists it."""
    usual = {
        "id": f"{number:032x}",
        "name": "train",
        "text": f"train({number})",
        "role": "leaf",
        "caller": "",
        "path": f"p{number}",
        "attempt": 1,
        "planned": 900,
        "began": 2_000,
        "pid": 8,
    }
    return {**usual, **fields}


def texts(index: CallIndex, **query: Any) -> list[str]:
    """Return the calls of a page as texts."""
    page = index.page(CallQuery(**query))
    return [page.rows[number].text for number in page.numbers]


def test_the_most_urgent_calls_come_first_and_the_newest_of_these() -> None:
    index = index_of(
        call(1), call(2, "failed"), call(3, "waiting"), call(4, "failed"), call(5)
    )

    expected = ["train(4)", "train(2)", "train(3)", "train(5)", "train(1)"]
    assert expected == texts(index)
    assert {"done": 2, "failed": 2, "waiting": 1} == index.counts


def test_a_page_is_a_part_of_the_order() -> None:
    index = index_of(*map(call, range(10)))

    page = index.page(CallQuery(order="began", offset=4, count=3))

    assert (10, (4, 5, 6)) == (page.total, page.numbers)
    assert ["train(5)", "train(4)"] == texts(index, order="-began", offset=4, count=2)
    assert [] == texts(index, order="-began", offset=10)


def test_a_query_selects_by_text_state_and_task() -> None:
    other = call(3, name="measure", text="measure(3)")
    index = index_of(call(1), call(2, "failed"), other)

    assert ["train(2)"] == texts(index, text="BAD")
    assert ["train(2)"] == texts(index, states={"failed"})
    assert ["measure(3)"] == texts(index, task="measure")
    assert ["measure(3)", "train(2)"] == texts(index, text="took:>=2", order="-began")
    assert [] == texts(index, text="took:>=2 train", states={"done"})


def test_fields_of_the_users_code_are_searched_and_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls without the field come last in both directions."""
    values = {"train(1)": 8, "train(2)": 12, "train(4)": "deep"}
    monkeypatch.setattr(
        call_table,
        "recorded_fields",
        lambda row: {"depth": values[row.text]} if row.text in values else {},
    )
    index = index_of(*map(call, (1, 2, 3)))
    assert ["train(2)"] == texts(index, text="depth:12")
    assert [1, 0, 2] == [*index.select(CallQuery(order="-depth"))]
    assert [0, 1, 2] == [*index.select(CallQuery(order="depth"))]

    change(index, call(4))

    assert [0, 1, 3, 2] == [*index.select(CallQuery(order="depth"))]


def test_a_word_becomes_a_field_when_a_call_has_the_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = index_of(call(1))
    assert [] == texts(index, text="depth:8")
    monkeypatch.setattr(call_table, "recorded_fields", lambda row: {"depth": 8})

    change(index, call(1), call(2))

    assert ["train(2)", "train(1)"] == texts(index, text="depth:8")


def test_only_rows_that_the_caller_lacks_are_returned() -> None:
    index = index_of(*map(call, range(5)))
    query = CallQuery(order="began")
    first = index.page(query)
    change(index, call(3, "failed"), call(7))

    second = index.page(query, since=first.version, known=first.numbers)

    assert (0, 1, 2, 3, 4, 5) == second.numbers
    assert {3, 5} == {*second.rows}
    assert {} == index.page(query, since=second.version, known=second.numbers).rows


def test_a_running_call_is_shown_until_it_ends() -> None:
    index = index_of(call(1, "unfinished"), call(2))

    index.set_running([running(1), running(2), running(3)])
    assert {"running": 2, "done": 1, "unfinished": 0} == index.counts
    assert ["train(3)", "train(1)"] == texts(index, states={"running"})
    assert ["train(3)", "train(1)", "train(2)"] == texts(index, order="-took")

    index.set_running([running(3)])
    assert ["train(1)"] == texts(index, states={"unfinished"})
    change(index, call(3, "done"))
    index.set_running([running(3)])
    assert 0 == index.counts["running"]
    assert 3 == len(texts(index))


def test_the_recorded_rows_do_not_depend_on_what_runs() -> None:
    rows = [call(1, "unfinished"), call(2)]
    index = index_of(*rows)
    index.set_running([running(1), running(3)])
    assert rows == [*index.recorded_rows()]

    index.set_running([])
    assert rows == [*index.recorded_rows()]


def test_a_running_call_that_leaves_no_record_vanishes() -> None:
    index = index_of(call(1))
    index.set_running([running(5)])
    index.set_running([])

    assert ["train(1)"] == texts(index)
    assert 1 == index.counts.total()
    change(index, call(5, "failed"))
    assert ["train(5)", "train(1)"] == texts(index)


def test_a_run_that_begins_again_replaces_all_calls() -> None:
    index = index_of(call(1), call(2))
    epoch = index.epoch

    index.update(CallChanges(500, True, False, (call(9),)))

    assert ["train(9)"] == texts(index)
    assert epoch != index.epoch


def test_a_page_is_right_when_the_changes_since_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_index, "_MOST_LOGGED", 20)
    index = index_of(*map(call, range(10)))
    assert 10 == len(texts(index))
    for number in range(10, 60):
        change(index, call(number))

    assert [f"train({number})" for number in range(60)] == texts(index, order="began")
    assert 60 == len(texts(index))


def test_a_page_is_right_after_other_queries() -> None:
    index = index_of(*map(call, range(10)))
    for number in range(10):
        assert [f"train({number})"] == texts(index, text=f"train({number})")
        change(index, call(number + 10))

    assert 20 == len(texts(index))


@pytest.mark.parametrize("order", ORDERS)
def test_an_updated_selection_equals_a_new_one(order: str) -> None:
    """Whatever changes: states, errors, durations, and times that are equal."""
    generator = random.Random(order)
    index = index_of(*map(call, range(200)))
    queries = [
        CallQuery(order=order, text=text, states=states, count=1_000)
        for text, states in (("", ()), ("bad", ()), ("", ("done", "failed")))
    ]
    for _ in range(40):
        for query in queries:
            index.page(query)
        rows = [
            call(
                generator.randrange(300),
                generator.choice([state for state in STATES if state != "running"]),
                began=generator.randrange(5),
                seconds=float(generator.randrange(3)),
            )
            for _ in range(generator.choice((1, 3, 80)))
        ]
        change(index, *rows)
        index.set_running(
            running(generator.randrange(400), began=generator.randrange(5))
            for _ in range(3)
        )
        fresh = index_of(*map(index.table.row, range(len(index.table))))
        for query in queries:
            assert fresh.page(query).numbers == index.page(query).numbers
