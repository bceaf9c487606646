"""Where the time of a run went, from made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.time_use import TimeUse, time_use
from flowpregel.cli.diagnosis import time_parts
from tests.unit.test_error_kinds import row_of

BEGIN = 10**18


def call(id: str, planned: float, began: float, seconds: float, **more: Any) -> CallRow:
    """A call with times in seconds after the begin of the run."""
    fields = {
        "planned": BEGIN + int(planned * 1e9),
        "began": BEGIN + int(began * 1e9),
        "seconds": seconds,
        "attempts": 1,
        "executor": "processes",
        "host": "here",
        "pid": 1,
        "caller": "body",
        **more,
    }
    return row_of(id)._replace(**fields)


def body(began: float, seconds: float) -> CallRow:
    return call("body", began, began, seconds, path="body", caller="", text="", pid=0)


def use_of(*rows: CallRow) -> TimeUse:
    use = time_use(rows)
    assert use is not None
    return use


def test_each_moment_is_counted_once() -> None:
    """The body works for a second, and a call waits for two, before any call runs."""
    use = use_of(body(0, 10), call("a", 1, 3, 4), call("b", 1, 3, 5))

    assert 10 == pytest.approx(use.total)
    assert (5, 2, 3) == pytest.approx((use.busy, use.waiting, use.body))
    assert 2 == use.cores
    assert 11 == pytest.approx(use.idle)
    assert 4 == pytest.approx(use.idle_while_waiting)
    assert 0 == use.stopped
    assert 2 == pytest.approx(use.median_wait)


def test_the_body_is_no_call() -> None:
    use = use_of(body(0, 100), call("a", 0, 0, 1))

    assert [("train", 1)] == [(task.name, task.calls) for task in use.tasks]
    assert ["a"] == [slow.id for slow in use.slowest]


def test_the_time_in_which_no_process_ran_is_not_that_of_the_body() -> None:
    """It was killed after the first call, and resumed a day later."""
    use = use_of(call("a", 0, 0, 1), body(86_400, 3), call("b", 86_401, 86_401, 1))

    assert 86_403 == pytest.approx(use.total)
    assert (2, 2) == pytest.approx((use.busy, use.body))
    assert 86_399 == pytest.approx(use.stopped)
    assert 2 == pytest.approx(use.idle)
    lines = [line for line in time_parts(use) if isinstance(line, str)]
    assert any(
        line.startswith("  100%  23 h 59 min: the run was stopped") for line in lines
    )


def test_a_graph_whose_first_node_makes_no_calls_was_not_stopped() -> None:
    """Between two supersteps, the checkpoint is stored."""
    first = call("first", 0, 0, 1, caller="", text="")
    use = use_of(first, body(3, 2), call("a", 4, 4, 1))

    assert 0 == use.stopped
    assert (2, 3) == pytest.approx((use.busy, use.body))


def test_the_critical_path_follows_the_calls_that_others_waited_for() -> None:
    """The long call of the first pair, then the only call that came after it."""
    use = use_of(
        body(0, 9),
        call("long", 0, 0, 4),
        call("short", 0, 0, 1),
        call("last", 5, 6, 2),
        call("beside", 5, 5, 1),
    )

    path = use.path
    assert ["long", "last"] == [step.id for step in path.longest]
    assert (2, 6, 1, 1) == pytest.approx(
        (path.calls, path.seconds, path.waited, path.between)
    )


def test_calls_of_no_length_do_not_repeat_in_a_path() -> None:
    use = use_of(*[call(f"{number}", 0, 0, 0) for number in range(30)])

    assert 30 >= use.path.calls
    assert 10 == len(use.slowest)


def test_workers_have_their_work_their_cpu_time_and_their_memory() -> None:
    use = use_of(
        call("a", 0, 0, 1, cpu=0.5, peak=10),
        call("b", 0, 1, 2, cpu=2.0, peak=30),
        call("c", 0, 0, 1, pid=2, cpu=1.0, peak=20),
        call("d", 0, 0, 1, executor="inline", pid=3),
    )

    assert [(1, 2, 3, 2.5, 30), (2, 1, 1, 1, 20)] == [
        (worker.pid, worker.calls, worker.seconds, worker.cpu, worker.peak)
        for worker in use.workers
    ]


def test_a_run_without_calls_has_no_times() -> None:
    """A result that another run shared took no time."""
    assert time_use([]) is None
    assert time_use([call("a", 0, 1, 1, attempts=0)]) is None


def test_the_cpu_of_workers_over_time_is_spread_over_their_calls() -> None:
    """Two workers are busy for half of the time, one of them with half of a CPU."""
    use = use_of(
        body(0, 12),
        call("a", 0, 0, 6, pid=1, cpu=6.0, peak=100),
        call("b", 0, 0, 12, pid=2, cpu=6.0, peak=50),
    )

    assert 60 == len(use.usage)
    assert 0.2 * 59 == pytest.approx(use.usage[-1].at)
    early, late = use.usage[10], use.usage[50]
    assert (1.5, 2, 150) == pytest.approx(early[1:])
    assert (0.5, 1, 50) == pytest.approx(late[1:])
    total = sum(moment.cpu for moment in use.usage) * use.total / 60
    assert 12 == pytest.approx(total)
    assert early._asdict() == use.to_json()["usage"][10]


def test_calls_outside_of_workers_have_no_usage() -> None:
    use = use_of(call("a", 0, 0, 6, executor="threads"))

    assert () == use.usage
