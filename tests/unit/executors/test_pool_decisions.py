"""What the pool decides without a process: order, batches, paths to culprits, thread caps."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from flowpregel._core.records import Kind, Node
from flowpregel.context import TaskInfo
from flowpregel.errors import ConfigurationError
from flowpregel.executors.base import Job
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.processes.caps import thread_caps
from flowpregel.executors.processes.deadlines import Deadlines
from flowpregel.executors.processes.dispatch import WORTH, Dispatch
from flowpregel.executors.processes.line import CalledNodes, Line
from flowpregel.executors.processes.serialization import find_culprit
from flowpregel.executors.processes.shared_memory import Arena
from flowpregel.executors.processes.slot import Flight, Party, Slot
from flowpregel.executors.processes.worker import Turns


def flight(depth: int = 0, digest: bytes = b"a") -> Flight:
    """Return a flight that waits."""
    info = TaskInfo(task_id="t", name="n", namespace="", step=0, stop=1)
    job = Job(info=info, kind=Kind.PULL, node=Node(name="n"), input=None)
    nobody: Any = None
    return Flight(job, nobody, Party(True, depth, digest), 0)


def line_of(*flights: Flight) -> Line:
    """Return a line."""
    line = Line()
    for each in flights:
        line.add(each)
    return line


def test_children_go_before_their_parents_siblings() -> None:
    """And first come, first served among equals."""
    shallow, deep, later = flight(0), flight(2), flight(0)
    line = line_of(shallow, deep, later)

    assert [deep, shallow, later] == line.take(10, 0, 1.0, lambda party: 0.0)
    assert 0 == line.count


def test_who_is_not_taken_keeps_the_place_in_the_line() -> None:
    """Be there no room for more, or do those cost too much that come next."""
    cheap, also, dear, last = (flight(digest=each) for each in (b"a", b"a", b"b", b"a"))
    line = line_of(cheap, also, dear, last)

    def take(most: int, least: int, worth: float) -> list[Flight]:
        return line.take(most, least, worth, lambda party: 5.0 if party.digest == b"b" else 1.0)

    assert [cheap] == take(1, 0, 9.0)
    assert [also] == take(9, 0, 2.0)
    assert [] == take(9, 0, 2.0)
    assert [dear] == take(9, 1, 2.0)
    assert 1 == line.count
    assert [last] == line.all()


def test_a_node_called_at_two_depths_is_two_nodes() -> None:
    """Its object tells how deep a task is."""
    called = CalledNodes()
    nodes = [Node(name="n") for _ in range(2)]
    for depth, node in enumerate(nodes, 1):
        called.keep(b"code", depth, node)

    assert [1, 2] == [called.depth_of(node) for node in nodes]
    assert nodes[1] is called.find(b"code", 2)


@pytest.fixture
def dispatch() -> Dispatch:
    """A dispatch that has nothing to send to."""
    nothing: Any = None
    return Dispatch(nothing, nothing, Deadlines(), Arena(0))


def test_a_task_that_was_never_run_is_sent_alone(dispatch: Dispatch) -> None:
    """It may take an hour."""
    assert 1 == len(dispatch.group(line_of(*(flight() for _ in range(10))), 2))


def test_a_batch_is_worth_its_time_and_leaves_work_for_the_others(dispatch: Dispatch) -> None:
    """A fine task travels with many, but not with all there are."""
    dispatch.measured(flight(), WORTH / 100)

    assert 100 == len(dispatch.group(line_of(*(flight() for _ in range(1_000))), 2))
    assert 10 == len(dispatch.group(line_of(*(flight() for _ in range(20))), 2))


def test_one_task_that_was_held_up_does_not_end_batches(dispatch: Dispatch) -> None:
    """Half a second for the operating system says nothing about the others."""
    for seconds in (20e-6, 0.5):
        dispatch.measured(flight(), seconds)

    assert 100 < len(dispatch.group(line_of(*(flight() for _ in range(10_000))), 2))


def busy(*flights: Flight) -> Slot:
    """Return the slot of a worker that has *flights*."""
    slot = Slot("busy")
    slot.flights = dict(enumerate(flights))
    return slot


def test_a_worker_that_has_little_left_to_do_is_given_more(dispatch: Dispatch) -> None:
    """It need not wait for it; but the last ones go to whoever is done first."""
    dispatch.measured(flight(), WORTH / 4)

    def further(left: int, waiting: int) -> int:
        line = line_of(*(flight() for _ in range(waiting)))
        return len(dispatch.further(busy(*(flight() for _ in range(left))), line, 2))

    assert [4, 4, 0] == [further(left, 100) for left in (1, 4, 5)]
    assert [1, 0] == [further(1, waiting) for waiting in (2, 1)]


def test_nothing_is_put_behind_what_may_hold_it_up(dispatch: Dispatch) -> None:
    """A task that is to stop, or waits for others, or may take long; a worker that is gone."""
    dispatch.measured(flight(), WORTH / 100)
    line = line_of(*(flight() for _ in range(100)))
    stopped, waiting, gone = busy(flight()), busy(flight()), busy(flight())
    stopped.flights[0].stopping = "cancel"
    waiting.open_calls = 1
    gone.has_ended = True

    for slot in (stopped, waiting, gone, busy(flight(digest=b"never run")), busy()):
        assert [] == dispatch.further(slot, line, 2)
    assert 100 == line.count


def test_a_token_of_a_later_batch_is_kept_for_it() -> None:
    """The rest of the batch was recalled; the order that belongs to the token is on its way."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    turns = Turns(read)
    os.write(write, bytes((1, 3, 3)))

    assert [1, 0, 2, 0] == [len([*turns.of(batch)]) for batch in (1, 2, 3, 3)]
    os.close(read)
    os.close(write)


def test_deadlines_are_called_in_their_order() -> None:
    """And each once."""
    seen: list[str] = []
    deadlines = Deadlines()
    deadlines.add(2.0, lambda now: seen.append("second"))
    assert deadlines.add(1.0, lambda now: seen.append("first"))

    assert 2.0 == deadlines.run(1.5)
    assert deadlines.run(3.0) is None
    assert ["first", "second"] == seen


class Holder:
    """Holds a lock, deep down."""

    def __init__(self) -> None:
        self.parts = {"inner": (0, threading.Lock())}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, threading.Lock()], "result[1]: _thread.lock"),
        ({"a": Holder()}, "result['a'].parts['inner'][1]: _thread.lock"),
        (ValueError("x", threading.Lock()), "result.args[1]: _thread.lock"),
    ],
)
def test_the_way_to_a_culprit_is_written_as_code(value: Any, path: str) -> None:
    """So that it can be looked at."""
    assert path == find_culprit(value, "result")[0]


def test_thread_caps_are_shares_and_leave_the_users_word(monkeypatch: Any) -> None:
    """At least one thread each."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    caps = thread_caps(8, 3)

    assert "2" == caps["MKL_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in caps
    assert "1" == thread_caps(1, 4)["MKL_NUM_THREADS"]


@pytest.mark.parametrize(
    "wrong", [{"max_workers": 0}, {"worker_max_tasks": -1}, {"grace": -1}, {"max_workers": "2"}]
)
def test_a_pool_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError):
        ProcessExecutor(**wrong)
