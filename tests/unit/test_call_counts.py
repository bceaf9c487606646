"""The calls of a run are each counted once."""

from __future__ import annotations

from typing import Any

from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel.cli.call_counts import CallCounts

SECOND = 10**9


def row(id: str, state: Any = "done", **fields: Any) -> CallRow:
    """Return the row of a call that began at second 10 and took two seconds."""
    values: dict[str, Any] = {
        "name": "work",
        "text": f"work({id})",
        "step": 0,
        "checkpoint_id": "c",
        "namespace": "",
        "path": id,
        "caller": "body",
        "error": "",
        "questions": 0,
        "planned": 5 * SECOND,
        "began": 10 * SECOND,
        "seconds": 2.0,
        "attempts": 1,
        "executor": "",
        "host": "",
        "pid": 0,
        "cpu": 0.0,
        "peak": 0,
    }
    return CallRow(id=id, state=state, **{**values, **fields})


def counts_of(*rows: CallRow) -> CallCounts:
    counts = CallCounts()
    counts.apply(CallChanges(mark=len(rows), is_whole=True, is_more=False, rows=rows))
    return counts


def running(id: str, began: float = 10, name: str = "work") -> dict[str, Any]:
    """Return a call that runs, as its process publishes it."""
    return {"id": id, "name": name, "began": began * SECOND, "role": "leaf"}


def activity(at: float, *tasks: dict[str, Any], **waiting: int) -> dict[str, Any]:
    return {"at": at * SECOND, "running": list(tasks), "waiting": waiting}


def test_a_call_that_ended_since_is_not_running() -> None:
    """Nor waiting, if it had not even begun when its process last published."""
    counts = counts_of(row("a"), row("b"))

    found = counts.without_ended(activity(11, running("a"), running("c"), work=3))

    assert ["c"] == [task["id"] for task in found["running"]]
    assert {"work": 2} == found["waiting"]


def test_a_call_that_ended_before_is_not_subtracted() -> None:
    counts = counts_of(row("a"))

    assert {"work": 3} == counts.without_ended(activity(13, work=3))["waiting"]


def test_a_call_that_was_planned_later_was_not_waiting() -> None:
    counts = counts_of(row("a", planned=9 * SECOND))

    assert {"work": 3} == counts.without_ended(activity(8, work=3))["waiting"]


def test_a_call_that_failed_and_runs_again_is_running() -> None:
    counts = counts_of(row("a", "failed"))
    again = running("a", began=12.5)

    assert [again] == counts.without_ended(activity(11, again))["running"]


def test_a_body_is_no_call() -> None:
    """In whatever order the records are read."""
    body = row("body", name="flow", text="", caller="")

    assert {"flow"} == counts_of(body, row("a")).bodies
    assert {"flow"} == counts_of(row("a"), body).bodies


def test_errors_that_differ_in_numbers_are_one_kind() -> None:
    """The most frequent kind comes first."""
    rows = [
        row(str(n), "failed", error=f"ValueError: nan at epoch {n}") for n in range(3)
    ]
    alone = row("alone", "failed", error="KeyError: 7")

    many, single = counts_of(alone, *rows).errors()

    assert ("work", "ValueError: nan at epoch #") == (many.name, many.error)
    assert ("work(0)", "work(1)", "work(2)") == many.calls
    assert "KeyError: 7" == single.error


def test_a_call_that_succeeds_later_has_not_failed() -> None:
    counts = counts_of(row("a", "failed", error="E: 1"))

    counts.apply(CallChanges(mark=2, is_whole=False, is_more=False, rows=(row("a"),)))

    assert [] == counts.errors()
    assert {"done": 1} == {k: v for k, v in counts.counts["work"].items() if v}
