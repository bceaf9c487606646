"""What the live view counts."""

from __future__ import annotations

from typing import Any

from flowpregel.cli.progress import Counters, TaskCounts


def event(kind: str, name: str, number: int, **more: Any) -> dict[str, Any]:
    payload = {"id": f"{name}-{number}", "name": name, "error": None, "interrupts": [], **more}
    return {"type": kind, "step": 3, "payload": payload}


def test_tasks_are_counted_by_name_and_by_what_became_of_them() -> None:
    counters = Counters(0.0)
    for number in range(4):
        counters.note(event("task", "f", number), 0.0)
    counters.note(event("task_result", "f", 0), 1.0)
    counters.note(event("task_result", "f", 1, error=ValueError()), 1.0)
    counters.note(event("task_result", "f", 2, interrupts=[{"id": "q"}]), 1.0)

    assert {"f": TaskCounts(running=1, done=1, failed=1, waiting=1)} == counters.by_name
    assert "1 done, 1 in flight, 1 failed, 1 waiting" == counters.by_name["f"].text()


def test_a_task_that_starts_again_is_counted_once() -> None:
    counters = Counters(0.0)
    counters.note(event("task", "f", 0), 0.0)
    counters.note(event("task", "f", 0), 1.0)

    assert 1 == counters.by_name["f"].running


def test_the_rate_is_that_of_the_last_tasks() -> None:
    counters = Counters(0.0)
    for number in range(1_000):  # ten a second, then a hundred a second
        now = number / 10 if number < 500 else 50 + (number - 500) / 100
        counters.note(event("task_result", "f", number), now)

    assert 99 < counters.rate(55.0) < 102


def test_supersteps_are_counted_when_they_end() -> None:
    counters = Counters(0.0)
    for source in ("input", "loop", "loop"):
        counters.note(
            {"type": "checkpoint", "step": 0, "payload": {"metadata": {"source": source}}}, 0
        )

    assert 2 == counters.steps


def test_the_time_left_is_that_of_the_names_of_which_some_have_ended() -> None:
    counters = Counters(0.0)
    counters.note(event("task", "body", 0), 0.0)
    for number in range(10):
        counters.note(event("task", "f", number), 0.0)
    assert counters.left(1.0) is None
    for number in range(4):
        counters.note(event("task_result", "f", number), 2.0)

    assert 3.0 == counters.left(2.0)  # six, at two a second
    assert "about 3 s left" in counters.summary(2.0)
