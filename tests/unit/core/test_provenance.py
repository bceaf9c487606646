"""What is recorded of failed attempts, and what a person is shown of changed code."""

from __future__ import annotations

import pytest

from flowpregel._core.provenance import (
    OtherCodeNotice,
    add_failed_attempt,
    first_difference,
)
from flowpregel._core.records import Kind, Task
from tests.unit.core.programs import node

DOUBLE = "def f(n):\n    return 2 * n\n"
TRIPLE = "def f(n):\n    return 3 * n\n"
OTHER = "\ndef g(n):\n    n += 1\n    return {}\n"


@pytest.mark.parametrize(
    ("recorded", "now", "difference"),
    [
        (DOUBLE, DOUBLE, ""),
        ("", DOUBLE, ""),
        (DOUBLE, "", ""),
        (DOUBLE, TRIPLE, "-    return 2 * n | +    return 3 * n"),
        (DOUBLE, f"{DOUBLE}K = 1\n", "+K = 1"),
        ("K = 1;\n", "K = 2;\n", "-K = 1 | +K = 2"),
        ("-- by day\n", "-- by week\n", "--- by day | +-- by week"),
        (
            DOUBLE + OTHER.format(1),
            TRIPLE + OTHER.format(2),
            "-    return 2 * n | +    return 3 * n",
        ),
        (
            DOUBLE,
            "def f(n):\n    n += 1\n    return n\n",
            "-    return 2 * n | +    n += 1",
        ),
        (
            "def f(n):\n    n += 1\n    return n\n",
            DOUBLE,
            "-    n += 1 | +    return 2 * n",
        ),
    ],
)
def test_the_first_line_that_differs_is_shown_as_both_have_it(
    recorded: str, now: str, difference: str
) -> None:
    """Of several lines or places that differ, the first one is enough."""
    assert difference == first_difference(recorded, now)


def task_of_n() -> Task:
    """Return a task of a node ``n``."""
    return Task(id="1", node=node("n"), kind=Kind.PULL, input=1, path="p")


def test_of_many_attempts_that_failed_the_last_ten_are_recorded() -> None:
    """So the record of a task that is tried again for days stays small."""
    task = task_of_n()

    for number in range(12):
        add_failed_attempt(task, ValueError(number))

    lines = [line for _, _, _, line, _ in task.attempt.failed]
    assert [f"ValueError: {number}" for number in range(2, 12)] == lines


@pytest.mark.parametrize(("started", "began"), [(7, 7), (None, 0)])
def test_an_attempt_that_nobody_measured_began_when_its_task_was_started(
    started: int | None, began: int
) -> None:
    """Its worker died, for example."""
    task = task_of_n()
    task.attempt.first_started = started

    add_failed_attempt(task, ValueError("n"))

    ((when, seconds, pid, _, _),) = task.attempt.failed
    assert (began, 0.0, 0) == (when, seconds, pid)


KEPT = (
    "computed by other code and used as recorded (on_code_change='rerun' computes them"
)


@pytest.mark.parametrize(
    ("old", "new", "difference", "text"),
    [
        (1, 0, "", f"work: 1 result was {KEPT} again)"),
        (2, 0, "-a | +b", f"work: 2 results were {KEPT} again): -a | +b"),
        (
            1,
            2,
            "",
            f"work: 1 result was {KEPT} again); 1 result by the old code, 2 by the new",
        ),
        (
            1_000,
            1,
            "+b",
            f"work: 1,000 results were {KEPT} again); 1,000 results by the old code, "
            "1 by the new: +b",
        ),
    ],
)
def test_a_notice_of_other_code_counts_the_results_of_both(
    old: int, new: int, difference: str, text: str
) -> None:
    """And has what differs, if that is known."""
    notice = OtherCodeNotice("work", "before", "now", old, new)

    assert text == notice.text(difference)
