"""Random programs on the pure table of resources: nothing is exceeded, and nothing
hangs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task, TaskOrigin
from flowpregel.context import Job, RunInfo
from flowpregel.errors import ResourcesError
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    Execution,
    InFlight,
    PoolLimits,
    TaskQueue,
    WorkerLoad,
)
from flowpregel.executors.processes.coordinator.resources import ResourceLedger
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import PLAIN, PoolSettings, WorkerKind
from flowpregel.policies import Resources

AMOUNTS = {"cpus": 4.0, "memory": 10.0, "gpus": 2.0, "a": 1.0, "b": 2.0}
SIZE = 3


@dataclass
class Plan:
    """A task that a program has, and those that it calls, one group after the other."""

    takes: Resources | None
    groups: list[list[Plan]]
    is_short: bool = False
    """Whether it is known to take next to no time."""


RESOURCES = st.none() | st.builds(
    Resources,
    cpus=st.sampled_from([None, 0.5, 1, 2, 4]),
    memory=st.sampled_from([0, 0, 3, 6, 10]),
    gpus=st.sampled_from([0, 0, 0, 1, 2]),
    limit=st.sampled_from([(), (), ("a",), ("b",), ("a", "b")]),
    rate=st.sampled_from([None, None, None, "1/s"]),
    priority=st.sampled_from([None, None, -1, 2]),
)
LEAVES = st.builds(Plan, RESOURCES, st.just([]), st.booleans())
PLANS = st.recursive(
    LEAVES,
    lambda below: st.builds(
        Plan,
        RESOURCES,
        st.lists(st.lists(below, min_size=1, max_size=3), max_size=2),
        st.booleans(),
    ),
    max_leaves=8,
)


@dataclass(eq=False)
class Worker:
    """A worker without a process."""

    kind: WorkerKind
    is_ready: bool = False
    tasks: list[InFlight] = field(default_factory=list)
    """What it has, in the order in which it runs that."""
    pid: int = -1

    @property
    def task(self) -> InFlight | None:
        """The task that it runs."""
        return self.tasks[0] if self.tasks else None

    def load(self) -> WorkerLoad:
        """Return what it is doing."""
        task, state = (
            self.task,
            WorkerState.IDLE if self.is_ready else WorkerState.STARTING,
        )
        if task is None:
            return WorkerLoad(state, kind=self.kind)
        state = WorkerState.WAITING if task.execution.calls else WorkerState.BUSY
        held, seconds = (
            (task.needs or ONE_CPU).amounts,
            sum(each.seconds for each in self.tasks),
        )
        return WorkerLoad(state, seconds, self.kind, held, task.needs)


@dataclass
class Machine:
    """Runs plans as a pool would, event by event; *choose* says which is next."""

    choose: Any
    now: float = 0.0
    queue: TaskQueue = field(default_factory=TaskQueue)
    workers: list[Worker] = field(default_factory=list)
    tasks: dict[tuple[str, int], InFlight] = field(default_factory=dict)
    left: dict[InFlight, list[list[Plan]]] = field(default_factory=dict)
    """What each task that has not ended still calls."""
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    ended: int = 0
    refused: list[ResourcesError] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    timers: list[tuple[float, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = PoolSettings(size=SIZE, amounts=AMOUNTS, gpus=("0", "1"))
        loop: Any = self
        self.book = ResourceLedger(settings, loop, self.refuse)
        self.book.clock = lambda: self.now

    def call(self, command: Any) -> None:
        """Execute a command of the book in a moment."""
        self.commands.append(command)

    def call_at(self, when: float, action: Any) -> None:
        """Keep a timer of the book."""
        self.timers.append((when, action))

    def admit(self, plan: Plan, run: str, parent: InFlight | None = None) -> None:
        """Give a task to the pool."""
        number = next(self.numbers)
        node = Node(name=f"n{number}", resources=plan.takes, home="same")
        above = None if parent is None else parent.job.task
        depth = 0 if above is None else above.depth + 1
        origin = TaskOrigin(depth=depth)
        task = Task(str(number), node, Kind.CALL, None, "", parent=above, origin=origin)
        job = Job(task, StepContext("", "", 0, 1), RunInfo(run_id=run), (task.id, 1))
        nobody: Any = None
        code = NodeCode(b"", b"", 1e-6) if plan.is_short else NodeCode(b"", b"")
        given = InFlight(number, job, nobody, code)
        self.tasks[job.key], self.left[given] = given, [*plan.groups]
        if parent is not None:
            parent.execution.calls.add(number)
        self.book.note(given, self.tasks)
        self.queue.add(given)

    def refuse(self, task: InFlight, outcome: Any) -> None:
        """Let the caller of *task* go on."""
        self.refused.append(outcome.error)
        self.queue.remove([task])
        self.end(task)

    def end(self, task: InFlight) -> None:
        """Forget a task, and answer its caller."""
        if task.needs is not None:
            self.book.end(task)
        del self.tasks[task.job.key], self.left[task]
        parent = task.job.task.parent
        if parent is not None:
            self.tasks[parent.id, 1].execution.calls.discard(task.id)

    def dispatch(self) -> bool:
        """Do what the table says; return whether it said anything."""
        while self.commands:
            self.commands.pop(0)()
        loads = [each.load() for each in self.workers]
        plan = self.book.assign(self.queue, loads, PoolLimits(SIZE), self.tasks)
        kinds, sends = plan.starts, plan.sends
        self.queue.remove(task for _, batch in sends for task in batch)
        for index, tasks in sends:
            worker: Any = self.workers[index]
            alike = {task.needs for task in (*worker.tasks, *tasks)}
            assert 1 == len(alike), "what a worker has at once takes the same"
            worker.tasks += tasks
            assert len(worker.tasks) == 1 or not any(
                needs.is_alone for needs in alike if needs is not None
            )
            for task in tasks:
                task.execution = Execution(worker)
                self.book.start(task)
        self.workers += [Worker(kind) for kind in kinds]
        self.check(is_new=bool(sends))
        if self.timers and not (self.busy() or sends or kinds or self.commands):
            self.now, action = self.timers.pop()
            action()
            return True
        return bool(sends or kinds or self.commands)

    def check(self, *, is_new: bool) -> None:
        """See that nothing is exceeded."""
        running = [each for each in self.workers if each.task is not None]
        for name, there in AMOUNTS.items():
            needs = [
                each.task.needs for each in running if each.task and each.task.needs
            ]
            sure = [
                each for each in needs if not (name == "memory" and each.is_measured)
            ]
            held = sum(each.amounts.get(name, 0) for each in sure)
            assert name == "cpus" or held <= there, f"{held} of {name}"
        gpus = [
            gpu for each in running if self.of(each, "gpus") for gpu in each.kind.gpus
        ]
        assert len(gpus) == len({*gpus}), "a GPU is one task's"
        for each in running:
            assert self.of(each, "gpus") == len(each.kind.gpus) or each.kind == PLAIN
        if is_new:
            busy = self.busy()
            assert len(busy) <= SIZE
            assert sum(self.of(each, "cpus") for each in busy) <= AMOUNTS["cpus"]

    def of(self, worker: Worker, name: str) -> float:
        """Return how much of a resource the task of *worker* takes."""
        return worker.load().held.get(name, 0)

    def busy(self) -> list[Worker]:
        """Return the workers whose task does not wait."""
        return [each for each in self.workers if each.load().state is WorkerState.BUSY]

    def step(self) -> bool:
        """Let something happen; return whether anything could."""
        starting = [each for each in self.workers if not each.is_ready]
        events = [*starting, *self.busy()]
        if not events:
            return False
        worker = events[self.choose(len(events))]
        task = worker.task
        if task is None:
            worker.is_ready = True
        elif self.left[task]:
            for child in self.left[task].pop(0):
                self.admit(child, task.job.run.run_id or "", task)
            # As the pool recalls what is behind a task that waits.
            worker.tasks, behind = worker.tasks[:1], worker.tasks[1:]
            for each in behind:
                each.execution.release()
                self.queue.add(each)
        else:
            del worker.tasks[0]
            self.end(task)
            task.execution.release()
            self.ended += 1
        return True

    def run(self) -> None:
        """Go on until nothing is left."""
        while self.tasks:
            told = self.dispatch()
            assert self.step() or told, f"nothing goes on: {[*self.queue]}"


def _size(plans: list[Plan]) -> int:
    return sum(1 + sum(_size(group) for group in plan.groups) for plan in plans)


@given(
    st.lists(st.lists(PLANS, min_size=1, max_size=4), min_size=1, max_size=3), st.data()
)
def test_nothing_is_exceeded_and_everything_ends(
    runs: list[list[Plan]], data: Any
) -> None:
    """Whatever calls whatever: a task ends, or it is refused with an error that says
    why.
    """
    machine = Machine(lambda count: data.draw(st.integers(0, count - 1)))
    for number, plans in enumerate(runs):
        for plan in plans:
            machine.admit(plan, f"run-{number}")

    machine.run()

    assert 0 == machine.queue.count
    assert 0 == machine.book.count
    for error in machine.refused:
        assert error.requested > error.available or error.holders
    if not machine.refused:
        assert machine.ended == sum(map(_size, runs))


@given(st.data())
def test_small_tasks_never_starve_a_large_one(data: Any) -> None:
    """However many of them there always are: those before it, and those that run, come
    first.
    """
    machine = Machine(lambda count: data.draw(st.integers(0, count - 1)))
    small = Plan(Resources(cpus=1, memory=1), [])
    for _ in range(4):
        machine.admit(small, "small")
    machine.admit(Plan(Resources(cpus=4, memory=9), []), "large")
    large = machine.tasks["5", 1]

    for _ in range(30):
        machine.dispatch()
        if large.execution.worker is not None:
            return
        machine.step()
        machine.admit(small, "small")

    raise AssertionError("it does not get its turn")


def test_a_guess_at_its_memory_keeps_no_task_from_running() -> None:
    """Though its callers hold what it is thought to need."""
    machine = Machine(lambda _: 0)
    callers = Plan(Resources(memory=10), [[Plan(Resources(cpus=1), [])]])
    machine.admit(callers, "run")
    machine.dispatch()
    machine.step()
    machine.dispatch()
    machine.step()
    (child,) = machine.queue
    assert child.needs is not None
    child.execution = Execution(SimpleNamespace(pid=-1))
    machine.book.measure(child, 7)
    child.execution.release()

    machine.run()

    assert 7 == child.needs.amounts["memory"]
    assert 2 == machine.ended
