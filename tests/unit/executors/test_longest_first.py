"""Long tasks leave the queue of a pool first, and no short task waits forever."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

import pytest

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task, TaskOrigin
from flowpregel.context import Job, RunInfo
from flowpregel.executors.processes.coordinator.assign import (
    BATCH_SECONDS,
    OLDEST_EVERY,
    InFlight,
    Needs,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
    assign,
)
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from tests.unit.executors.quick_pools import Events, PoolMaker, job_of

# The test's own process has other OS threads, of which none matters in a fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Pile:
    """A queue, and tasks for it that are numbered in the order of their arrival.

    Args:
        seconds: The known durations of tasks, by name.
    """

    def __init__(self, **seconds: float) -> None:
        self.queue = TaskQueue()
        self.codes: dict[str, NodeCode] = {}
        for name, known in seconds.items():
            self.codes[name] = NodeCode(b"", b"", known, has_begun=True)
        self.count = 0

    def add(
        self,
        *names: str,
        run: str = "run",
        depth: int = 0,
        needs: Needs | None = None,
        priority: int = 0,
    ) -> None:
        """Add a task for each of *names*."""
        for name in names:
            self.count += 1
            origin = TaskOrigin(depth=depth)
            planned = Task("t", Node(name=name), Kind.CALL, None, "", origin=origin)
            info = RunInfo(run_id=run)
            job = Job(planned, StepContext("", "", 0, 1), info, ("t", 1))
            code = self.codes.setdefault(name, NodeCode(b"", b""))
            nobody: Any = None
            task = InFlight(
                self.count, job, nobody, code, needs=needs, priority=priority
            )
            self.queue.add(task)

    def take(self, count: int = 1) -> str:
        """Take tasks, one after another, and return their names, one letter each."""
        return "".join(name_of(*self.queue.take(1)) for _ in range(count))

    def order(self) -> list[int]:
        """Return the numbers of all tasks in the order of the queue."""
        return [task.id for task in self.queue]


def name_of(task: InFlight) -> str:
    """Return the name of a task."""
    return task.job.task.node.name


# ------------------------------------------------ which task comes first


def test_the_task_whose_calls_took_longest_comes_first() -> None:
    """Whenever its calls were made; calls of the same task keep their order."""
    pile = Pile(a=1.0, b=30.0, c=5.0)
    pile.add(*"aacbab")

    assert [4, 6, 3, 1, 2, 5] == pile.order()


def test_tasks_of_unknown_durations_come_in_order_of_arrival() -> None:
    """Nothing else is known about them."""
    pile = Pile()
    pile.add(*"aaabbcab")

    assert [1, 2, 3, 4, 5, 6, 7, 8] == pile.order()


def test_tasks_of_unknown_durations_keep_their_turns() -> None:
    """The others change places around them."""
    pile = Pile(a=1.0, b=2.0, u=float("inf"))
    pile.add(*"auaubb")

    assert [5, 2, 6, 4, 1, 3] == pile.order()


def test_the_first_call_of_a_task_shows_how_long_its_calls_take() -> None:
    """It comes before calls whose durations are known; the second keeps its turn."""
    pile = Pile(a=1.0)
    pile.add(*"aaaxx")

    assert "xaaax" == "".join(map(name_of, pile.queue))
    assert "x" == pile.take()
    assert "aaax" == "".join(map(name_of, pile.queue))


def test_the_order_of_short_tasks_is_that_of_arrival() -> None:
    """It makes no difference to the end, and batches need not be torn apart."""
    pile = Pile(a=BATCH_SECONDS / 100, b=BATCH_SECONDS / 2, c=1.0)
    pile.add(*"abbac")

    assert [5, 1, 2, 3, 4] == pile.order()


def test_a_duration_that_becomes_known_counts_for_waiting_calls() -> None:
    """The pool measures each call that ends."""
    pile = Pile(a=1.0)
    pile.add(*"aaaxxx")
    pile.take()

    pile.codes["x"].measured(7.0)

    assert "xxaaa" == "".join(map(name_of, pile.queue))


def test_a_task_that_makes_calls_keeps_its_turn() -> None:
    """Its duration is that of its calls, which the pool counts themselves."""
    pile = Pile(a=1.0, caller=9.0)
    pile.add("a", "caller", "a", "caller")

    pile.codes["caller"].seconds = float("inf")

    assert [1, 2, 3, 4] == pile.order()


# ------------------------------------------------ what stays fair


def test_a_short_task_has_its_turn_however_many_long_ones_arrive() -> None:
    """Every fourth turn of a run goes to its oldest task."""
    pile = Pile(a=1.0, b=30.0)
    pile.add(*"ab")

    taken = ""
    for _ in range(OLDEST_EVERY):
        pile.add("b")
        taken += pile.take()

    assert 1 == taken.count("a")


def test_every_run_has_turns_in_order_of_arrival() -> None:
    """Runs that alternate do not take these turns from each other."""
    pile = Pile(a=1.0, b=30.0)
    for run in ("one", "two", "three", "four"):
        pile.add("a", run=run)

    taken = ""
    for _ in range(4 * OLDEST_EVERY):
        for run in ("one", "two", "three", "four"):
            pile.add("b", run=run)
        taken += pile.take()

    assert 4 == taken.count("a")


def test_a_pass_that_takes_several_tasks_is_one_turn_of_their_run() -> None:
    """Four workers that become idle together do not skip the turns of the oldest."""
    pile = Pile(a=1.0, b=30.0)
    pile.add(*"a" * 4, *"b" * 20)

    turns = ["".join(map(name_of, pile.queue.take(4))) for _ in range(4)]

    assert ["bbbb", "bbbb", "bbbb", "aaaa"] == turns


def test_tasks_with_other_needs_keep_their_turns() -> None:
    """A large task is not passed by tasks that take what it waits for."""
    pile = Pile(a=1.0, b=30.0, c=90.0)
    large = Needs({"cpus": 4.0})
    pile.add("a", "a")
    pile.add("c", needs=large)
    pile.add("b", "b", "a")

    assert [4, 5, 3, 1, 2, 6] == pile.order()


def test_priority_depth_and_the_turns_of_runs_come_before_durations() -> None:
    """A long task is the first only among its equals."""
    pile = Pile(a=1.0, b=30.0)
    pile.add("b", priority=-1)
    pile.add("b", "a", run="one")
    pile.add("a", run="one", depth=1)
    pile.add("a", run="two")

    assert [4, 5, 2, 3, 1] == pile.order()


def test_tasks_with_names_of_their_own_cost_no_more_than_a_few_names() -> None:
    """A decision costs by what changes, not by what waits."""
    few, many = Pile(), Pile()
    few.add(*(f"task {number % 50}" for number in range(300)))
    many.add(*(f"task {number}" for number in range(300)))

    assert few.order() == many.order() == [*range(1, 301)]
    assert calls_of_a_pass(few.queue) >= calls_of_a_pass(many.queue)
    assert 300 == len(many.queue.take(1_000))
    assert 0 == many.queue.count


def calls_of_a_pass(queue: TaskQueue) -> int:
    """Return how many functions are called to find a task for an idle worker."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    workers = [WorkerLoad(WorkerState.IDLE), WorkerLoad(WorkerState.BUSY, 1.0)]
    assign(queue, workers, PoolLimits(2))  # fills the caches of `isinstance`
    gc.collect()
    gc.disable()  # finalizers of other tests would count
    sys.setprofile(note)
    try:
        assign(queue, workers, PoolLimits(2))
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


# ------------------------------------------------ what it is good for


def makespan(names: str, seconds: Mapping[str, float], *, learns: bool) -> float:
    """Return the seconds until four workers have run tasks, one letter each.

    Args:
        names: The tasks in the order in which they are called.
        seconds: Their durations by name, which nothing knows before.
        learns: False if the pool measures no duration.
    """
    pile = Pile()
    pile.add(*names)
    ends: list[tuple[float, int, InFlight]] = []
    now = 0.0
    while pile.queue.count or ends:
        while pile.queue.count and len(ends) < 4:
            (task,) = pile.queue.take(1)
            heappush(ends, (now + seconds[name_of(task)], task.id, task))
        now, _, task = heappop(ends)
        if learns:
            task.code.measured(seconds[name_of(task)])
    return now


@pytest.mark.parametrize(
    ("names", "before", "after"),
    [
        # Called last, the long ones begin as soon as the first of them was measured.
        ("s" * 200 + "l" * 5, 170.0, 125.0),
        # Called in turns with short ones, they come before those.
        (("s" * 50 + "l") * 5, 174.0, 138.0),
        # Called first, they leave nothing to gain.
        ("l" * 5 + "s" * 400, 175.0, 175.0),
    ],
)
def test_a_run_of_mixed_durations_ends_earlier(
    names: str, before: float, after: float
) -> None:
    """Tasks of 1 and of 60 seconds, on four workers, and nothing is known before."""
    seconds = {"s": 1.0, "l": 60.0}

    assert (before, after) == (
        makespan(names, seconds, learns=False),
        makespan(names, seconds, learns=True),
    )


def small() -> None:
    """Stand for a task that takes a second."""


def large() -> None:
    """Stand for a task that takes a minute."""


def test_a_pool_sends_the_longest_first(pool_of: PoolMaker) -> None:
    """By the durations that its workers measured."""
    pool, events = pool_of(1), Events()
    pool.start([job_of(small), job_of(large)], events)
    worker = pool.worker().ready()
    worker.run(seconds=1.0)
    worker.run(seconds=60.0)
    first = job_of(small)
    pool.start([first], events)
    running = worker.order()
    pool.start([job_of(small), job_of(small), job_of(large)], events)
    pool.settle()

    worker.end_task(running, seconds=1.0)

    assert "large" == worker.run(seconds=60.0).name
    assert ["small", "small"] == [worker.run(seconds=1.0).name for _ in range(2)]
