"""The picture of a watched run: what is on it, at every size of a terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flowpregel._inspection.error_kinds import ErrorKind, SharedFields
from flowpregel._inspection.situations import RunFacts, describe_status
from flowpregel._inspection.time_left import TimeLeft
from flowpregel.cli.screens import ScreenState, screen_lines
from flowpregel.cli.snapshots import RunSnapshot

ESCAPES = "\x1b[2J\n\u202e"


def running(name: str, **fields: Any) -> dict[str, Any]:
    """Return a call that has run since second 10."""
    report = {"done": None, "total": None, "message": None}
    task = {"text": name, "name": "fit", "began": 10 * 10**9, "attempt": 1, "pid": 7}
    return {**task, **report, **fields}


def snapshot_of(status: Any = "running", **fields: Any) -> RunSnapshot:
    """Return a run at second 41, which began at second 0."""
    facts = RunFacts(thread_id="study", status=status, owner="process 5 on here")
    values: dict[str, Any] = {
        "counts": {"fit": Counter(done=6, failed=1, running=1, waiting=2)},
        "running": [running("fit(1)")],
        "workers": [{"pid": 7, "memory": 812_000_000}],
        **fields,
    }
    return RunSnapshot(
        thread_id="study",
        status=status,
        text=describe_status(facts),
        now=41.0,
        began=0.0,
        **values,
    )


def drawn(
    snapshot: RunSnapshot, size: tuple[int, int] = (100, 20), **state: Any
) -> list[str]:
    lines = screen_lines(snapshot, ScreenState(**state), ["old", "new"], size)
    return [line.plain for line in lines]


def test_a_call_has_two_lines_with_what_it_reports() -> None:
    report = {"done": 3, "total": 12, "message": "reading", "attempt": 2}

    lines = drawn(snapshot_of(running=[running("fit(1)", **report)]))

    first = next(number for number, line in enumerate(lines) if "fit(1)" in line)
    assert lines[first].startswith("fit(1)")
    assert lines[first].endswith("31.0 s, attempt 2")
    assert lines[first + 1].startswith("  █████░░░░░░░░░░░░░░░  3/12 (25 %) reading")
    assert lines[first + 1].endswith("process 7, 812 MB")


def test_the_numbers_add_up() -> None:
    """Ended calls of all calls that are known."""
    lines = drawn(snapshot_of(time_left=TimeLeft(64.0, 170.4)))

    assert "7 of 10 calls (70 %), 1 failed, 1 to 3 min left" in lines[1]
    assert "41.0 s, 1 worker with 812 MB, 0.1 calls/s" == lines[2]
    assert "  fit  6 done, 1 failed, 1 running, 2 to do" in lines


def test_the_size_of_a_pool_is_shown_that_has_fewer_workers() -> None:
    """Others may still start, or the pool has grown a moment ago."""
    lines = drawn(snapshot_of(pools=[{"workers": 4, "nice": None}]))

    assert "41.0 s, 1 of 4 workers with 812 MB, 0.1 calls/s" == lines[2]


@pytest.mark.parametrize(("status", "is_full"), [("running", False), ("done", True)])
def test_the_bar_is_full_only_when_the_run_is_done(status: str, is_full: bool) -> None:
    """A body may make more calls until then."""
    line = drawn(snapshot_of(status, counts={"fit": Counter(done=9)}, running=[]))[1]

    assert is_full is ("░" not in line)
    assert "9 of 9 calls (100 %)" in line


def test_no_time_is_claimed_if_none_is_known() -> None:
    assert "time left unknown" in drawn(snapshot_of())[1]
    without_calls = snapshot_of(counts={}, running=[])
    assert "the body decides what is next" in drawn(without_calls)[1]


def test_calls_of_an_earlier_run_are_done_and_counted_apart() -> None:
    lines = drawn(snapshot_of(counts={"fit": Counter(before=4, done=2, waiting=1)}))

    assert "  fit  6 done, 1 to do, 4 of them before" in lines
    assert "6 of 7 calls" in lines[1]


def test_errors_are_shown_by_kind_with_examples() -> None:
    calls = tuple(f"fit({number})" for number in range(9))
    shared = SharedFields(fields={"fit.depth": 12}, matching=0, others=3)
    group = ErrorKind(
        name="fit",
        error="ValueError: nan at epoch #",
        calls=calls,
        ids=calls,
        shared=shared,
    )

    lines = drawn(snapshot_of(errors=[group]), view="errors")

    kind = "9 x fit: ValueError: nan at epoch #, only where depth = 12"
    assert kind in lines
    assert "    fit(0), fit(1), fit(2), ..." in lines
    assert "e errors (9)" in lines[-1]


def test_a_small_terminal_shows_the_last_of_the_output() -> None:
    whole = drawn(snapshot_of(), view="logs")
    small = drawn(snapshot_of(), (100, 9), view="logs")

    assert {"old", "new"} <= {*whole}
    assert "new" in small
    assert "old" not in small


def test_a_question_replaces_the_keys() -> None:
    assert "cancel?" == drawn(snapshot_of(), message="cancel?")[-1]
    assert drawn(snapshot_of(), retries=True)[-1].startswith("c calls")
    assert "r do not retry" in drawn(snapshot_of(), retries=True)[-1]


@pytest.mark.parametrize("view", ["calls", "errors", "logs"])
@pytest.mark.parametrize("size", [(1, 1), (20, 4), (30, 9), (80, 24), (300, 99)])
def test_a_picture_has_the_size_of_the_terminal(
    view: str, size: tuple[int, int]
) -> None:
    """Whatever is in it, and no escape sequence of a run is obeyed."""
    name = f"{ESCAPES}{'x' * 500}日本"
    snapshot = snapshot_of(
        counts={name: Counter(done=1, failed=2)},
        running=[running(name, done=1, total=2, message=name)] * 30,
        reports=[running(name, done=1, total=None, message=name)],
        errors=[ErrorKind(name=name, error=name, calls=(name,) * 5, ids=())] * 30,
    )

    lines = screen_lines(snapshot, ScreenState(view=view), [name] * 30, size)  # type: ignore[arg-type]

    assert size[1] == len(lines)
    assert all(line.cell_len <= size[0] for line in lines)
    assert all(line.plain.isprintable() for line in lines)


def test_the_cpus_in_use_are_told_if_they_are_known() -> None:
    """They are not, before the second answer of the process of the run."""
    workers = [{"pid": 1, "memory": 10**6, "cpu": 2.0, "task": None}]
    lines = [
        "\n".join(
            line.plain
            for line in screen_lines(
                snapshot_of(workers=workers, cpus=cpus), ScreenState(), [], (80, 24)
            )
        )
        for cpus in (2.5, None)
    ]

    assert "1 worker with 1 MB, 2.5 CPUs used" in lines[0]
    assert "CPUs used" not in lines[1]
