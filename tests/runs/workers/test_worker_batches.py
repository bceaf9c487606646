"""Fine-grained tasks travel in batches, and each is still a task of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Arguments, Withdrawn
from flowpregel._engine.inbox import RunInbox
from flowpregel.context import current_scope
from flowpregel.errors import WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, error_of, job_of, node_of, value_of, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers."""
    with ProcessExecutor(2) as pool:
        yield pool


def sleep_if(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.slow
def test_a_slow_task_in_a_batch_holds_up_nobody(run: Run) -> None:
    """The others are taken back from its worker, and run where there is room."""
    node = node_of(sleep_if)
    run.outcomes(*(run.start(node, 0) for _ in range(50)))
    slow, *fast = [run.start(node, 0.8 if n == 0 else 0) for n in range(100)]

    run.outcomes(*fast)

    assert slow.task.id not in run.ended_at
    assert value_of(run.outcomes(slow)[0])


def die_if(given: bool) -> int:
    if given:
        os.kill(os.getpid(), 9)
    return os.getpid()


def test_a_death_in_a_batch_costs_the_task_that_died(run: Run) -> None:
    """Those behind it have not begun, and run elsewhere."""
    node = node_of(die_if)
    run.outcomes(*(run.start(node, False) for _ in range(50)))

    outcomes = run.outcomes(*(run.start(node, n == 40) for n in range(100)))

    assert [40] == [n for n, each in enumerate(outcomes) if not hasattr(each, "writes")]
    assert isinstance(error_of(outcomes[40]), WorkerDiedError)


def die_after_a_while(given: bool) -> int:
    time.sleep(0.003)
    return die_if(given)


@pytest.mark.slow
def test_a_death_costs_no_task_that_was_sent_behind_it(run: Run) -> None:
    """A worker is given more before it is done; what it has not begun runs
    elsewhere.
    """
    node = node_of(die_after_a_while)
    run.outcomes(*(run.start(node, False) for _ in range(10)))

    outcomes = run.outcomes(*(run.start(node, n in (20, 50)) for n in range(100)))

    assert [20, 50] == [
        n for n, each in enumerate(outcomes) if not hasattr(each, "writes")
    ]
    assert all(isinstance(error_of(outcomes[n]), WorkerDiedError) for n in (20, 50))


def note(file: Path, seconds: float) -> None:
    with file.open("a") as out:
        out.write("begun\n")
    time.sleep(seconds)


@pytest.mark.slow
def test_stopping_a_task_costs_no_task_that_was_sent_behind_it(tmp_path: Any) -> None:
    """Those are taken back, and none of them is run twice."""
    begun = tmp_path / "begun"
    with ProcessExecutor(1, grace=0.05) as pool:
        run, node = Run(pool), node_of(note)
        run.outcomes(
            *(run.start(node, Arguments((begun, 0.003), {})) for _ in range(10))
        )
        jobs = [
            run.start(node, Arguments((begun, 30 if n == 9 else 0.003), {}))
            for n in range(40)
        ]
        wait_until(lambda: begun.read_text().count("begun") >= 20)
        pool.cancel(jobs[9].key, kill=True)
        outcomes = run.outcomes(*jobs)

    assert [9] == [n for n, each in enumerate(outcomes) if each == Withdrawn()]
    assert 50 == begun.read_text().count("begun")


def wait_if(file: str | None) -> int:
    if file is not None:
        open(file + ".begun", "w").close()
        wait_until(lambda: os.path.exists(file))
    return os.getpid()


@pytest.mark.slow
def test_cancelling_tasks_of_a_batch_costs_no_other_task(tmp_path: Any) -> None:
    """Those that have not begun are taken back; nobody is killed for them."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with ProcessExecutor(1, grace=0.05) as pool:
        run, node = Run(pool), node_of(wait_if)
        worker = value_of(run.outcomes(*(run.start(node) for _ in range(50)))[0])
        # While the first holds the worker, the others come together: they are sent as a
        # batch.
        before = run.start(node, first)
        jobs = [run.start(node, second if n == 0 else None) for n in range(60)]
        open(first, "w").close()
        run.outcomes(before)
        wait_until(lambda: os.path.exists(second + ".begun"))

        for job in jobs[20:40]:
            pool.cancel(job.key, kill=True)
        ended: dict[str, Any] = {}
        wait_until(lambda: ended.update(run.some(0.01)) or len(ended) >= 20)
        open(second, "w").close()
        wait_until(lambda: ended.update(run.some(0.01)) or len(ended) == 60)

    outcomes = [ended[job.task.id] for job in jobs]
    assert [Withdrawn()] * 20 == outcomes[20:40]
    assert {worker} == {value_of(each) for each in outcomes[:20] + outcomes[40:]}


own = ContextVar("own", default=0)


def tell(number: int) -> tuple[Any, ...]:
    before = own.get()
    own.set(number)
    scope = current_scope("tell")
    scope.run_client.emit(number)
    print(f"task {number}")
    config: Any = scope.job.run.config
    config["seen"] = (*config.get("seen", ()), number)
    return number, before, scope.job.task.id, config["seen"]


@pytest.mark.slow
def test_each_task_of_a_batch_has_its_own_of_everything(pool: Any, capfd: Any) -> None:
    """What it knows, sets, emits and prints, although it was sent as what it has
    alone.
    """
    run, node = Run(pool), node_of(tell)
    warm = [job_of(node, Arguments((0,), {})) for _ in range(40)]
    jobs = [job_of(node, Arguments((number,), {})) for number in range(200)]
    for batch in (warm, jobs):
        pool.start(batch, run.mailbox)
        outcomes = run.outcomes(*batch)

    values = [value_of(each) for each in outcomes]
    expected = [(n, 0, job.task.id, (n,)) for n, job in enumerate(jobs)]
    assert expected == values
    assert [0] * 40 + [*range(200)] == sorted(run.chunks)
    assert {f"[tell] task {n}" for n in range(200)} <= {
        *capfd.readouterr().out.splitlines()
    }


@pytest.mark.slow
def test_each_task_of_a_batch_says_when_it_ran(pool: Any) -> None:
    """One after the other, and none for longer than all took."""
    mailbox, node, begun = RunInbox(), node_of(sleep_if), time.time_ns()
    pool.start([job_of(node, Arguments((0.0002,), {})) for _ in range(100)], mailbox)
    ended: list[Any] = []
    soon = 100_000_000
    wait_until(
        lambda: (
            ended.extend(mailbox.take(time.monotonic_ns() + soon)) or len(ended) >= 100
        ),
        20,
    )

    by_worker: dict[int, list[tuple[int, float]]] = {}
    for event in ended:
        assert "processes" == event.span.executor
        assert event.span.seconds >= 0.0002
        by_worker.setdefault(event.span.pid, []).append(
            (event.span.began, event.span.seconds)
        )
    assert 2 >= len(by_worker)
    for spans in by_worker.values():
        spans.sort()
        assert begun - 10**7 < spans[0][0]
        ends = [began + int(seconds * 1e9) for began, seconds in spans]
        for end, (began, _) in zip(ends, spans[1:], strict=False):
            assert end <= began + 10**6
