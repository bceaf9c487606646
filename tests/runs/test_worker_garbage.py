"""Workers that send what cannot be read: it costs the task that sent it, and no other."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from flowpregel._core.records import Raised, Returned
from flowpregel.config import get_stream_writer
from flowpregel.errors import TaskSerializationError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor, protocol
from flowpregel.executors.processes.worker_io import WorkerLink
from tests.runs.pooling import Run, call_task, error_of, node_of, value_of

pytestmark = pytest.mark.slow


def explode() -> None:
    """Fail, as a class may while it is unpickled."""
    raise RuntimeError("it explodes")


class Bomb:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return explode, ()


def work(number: int) -> int:
    """Do what is right."""
    return number * number


def stream_a_bomb(_: Any) -> None:
    """Send a chunk that cannot be read."""
    get_stream_writer()(Bomb())


def call_with_a_bomb(_: Any) -> None:
    """Call a task with an argument that cannot be read."""
    call_task(work, Bomb()).result()


@pytest.mark.parametrize("task", [stream_a_bomb, call_with_a_bomb])
def test_what_cannot_be_unpickled_costs_its_task(task: Any) -> None:
    """Siblings end as they should, and the message has the cause."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        jobs = [run.start(node_of(work), number) for number in range(20)]

        bad, *good = run.outcomes(run.start(node_of(task)), *jobs)

    assert isinstance(error_of(bad), WorkerDiedError)
    assert "cannot be read in the coordinator (RuntimeError: it explodes)" in str(error_of(bad))
    assert [number * number for number in range(20)] == [value_of(each) for each in good]


def send_nonsense(seed: int) -> int:
    """Send frames that carry the link's mark, and nonsense in their bodies."""
    luck = random.Random(seed)
    (link,) = [each for each in gc.get_objects() if isinstance(each, WorkerLink)]
    kinds = [protocol.EMITTED, protocol.CALLED, protocol.ASKED, protocol.LOGGED, protocol.PRINTED]
    for _ in range(5):
        # Without the opcodes by which a pickle asks for any amount of memory.
        body = bytes(luck.choice(b"\0\1\2abcXYZ.)]}") for _ in range(luck.randrange(80)))
        link.send(luck.choice(kinds), luck.randrange(8), body)
    return seed


def test_frames_of_nonsense_cost_at_most_their_task() -> None:
    """With the mark of the link, which only our own code in the worker knows."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        nonsense = [run.start(node_of(send_nonsense), seed) for seed in range(12)]

        outcomes = run.outcomes(*nonsense, seconds=60)

        # Tasks whose worker was killed for another's nonsense are tried again.
        assert all(isinstance(each, Returned | Raised) for each in outcomes)
        errors = [each.error for each in outcomes if isinstance(each, Raised)]
        assert {WorkerDiedError, TaskSerializationError} >= {type(each) for each in errors}
        assert errors, "no nonsense was noticed"
        assert 49 == value_of(run.outcome(node_of(work), 7))


def end_with_nonsense(_: Any) -> None:
    """Send what should be how a task has ended, and is not."""
    (link,) = [each for each in gc.get_objects() if isinstance(each, WorkerLink)]
    link.send(protocol.ENDED, link.task, b"no result")


def test_results_that_cannot_be_read_cost_their_worker() -> None:
    """The coordinator goes on."""
    with ProcessExecutor(2) as pool:
        run = Run(pool)
        bad, good = run.outcomes(run.start(node_of(end_with_nonsense)), run.start(node_of(work), 3))

    assert isinstance(error_of(bad), WorkerDiedError)
    assert "cannot be read in the coordinator (error" in str(error_of(bad))
    assert 9 == value_of(good)


def end_another_task(_: Any) -> None:
    """Send how a task has ended that this worker was never sent, just before its own end."""
    (link,) = [each for each in gc.get_objects() if isinstance(each, WorkerLink)]
    link.send(protocol.ENDED, link.task + 1000)


def test_what_comes_together_with_what_cannot_be_read_is_not_believed() -> None:
    """Although it says that all went well."""
    with ProcessExecutor(1) as pool:
        outcome = Run(pool).outcome(node_of(end_another_task))

    assert isinstance(error_of(outcome), WorkerDiedError)
