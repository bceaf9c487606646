"""What the tests of worker processes share: jobs, a mailbox, and looking at
processes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from flowpregel._core.commands import CallTarget, call_target_of
from flowpregel._core.effects import Call, Emitted, Ended, StepContext
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Kind,
    Node,
    Outcome,
    Raised,
    Returned,
    Task,
    TaskOrigin,
)
from flowpregel._engine.inbox import RunInbox
from flowpregel.context import Job, RunInfo, current
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.policies import TimeoutPolicy

_numbers = itertools.count()


def node_of(function: Callable[..., Any]) -> Node:
    """Return a node that calls *function*."""
    return Node(name=function.__name__, steps=(call_target_of(function),))


def job_of(
    function: Any,
    given: Any = None,
    *,
    timeout: Any = None,
    depth: int = 0,
    **of_run: Any,
) -> Job:
    """Return a job for a function or node; *depth* tasks wait for it, each for the
    next.
    """
    node = function if isinstance(function, Node) else node_of(function)
    origin = TaskOrigin(depth=depth)
    task = Task(f"task-{next(_numbers)}", node, Kind.CALL, given, "", origin=origin)
    task.timeout = TimeoutPolicy.coerce(timeout)
    return Job(task, StepContext("", "", 0, 25), RunInfo(**of_run), (task.id, 1))


class Run:
    """A run that starts jobs and answers the calls they make.

    Args:
        pool: Where the jobs run.
    """

    def __init__(self, pool: ProcessExecutor) -> None:
        self.pool = pool
        self.mailbox = RunInbox()
        self.chunks: list[Any] = []
        self.ended_at: dict[str, float] = {}
        self._calls: dict[str, Call] = {}
        self._depths: dict[str, int] = {}

    def start(self, function: Any, given: Any = None, **rest: Any) -> Job:
        """Start a job."""
        job = job_of(function, given, **rest)
        self._depths[job.task.id] = job.task.depth
        self.pool.start([job], self.mailbox)
        return job

    def outcomes(self, *jobs: Job, seconds: float = 120.0) -> list[Outcome]:
        """Wait until *jobs* have ended, and say how."""
        found: dict[str, Outcome] = {}
        wanted = [job.task.id for job in jobs]
        deadline = time.monotonic() + seconds
        while not set(wanted) <= found.keys():
            left = deadline - time.monotonic()
            assert left > 0, f"{set(wanted) - found.keys()} did not end"
            for event in self.mailbox.take(_in(left)):
                self._meet(event, found)
        return [found[task_id] for task_id in wanted]

    def some(self, seconds: float) -> dict[str, Outcome]:
        """Return how those jobs ended that did within *seconds*, by their ids."""
        found: dict[str, Outcome] = {}
        for event in self.mailbox.take(_in(seconds)):
            self._meet(event, found)
        return found

    def outcome(self, function: Any, given: Any = None, **rest: Any) -> Outcome:
        """Run one job to its end."""
        return self.outcomes(self.start(function, given, **rest))[0]

    def _meet(self, event: Any, found: dict[str, Outcome]) -> None:
        match event:
            case Emitted():
                self.chunks.append(event.payload)
            case Call() as call:
                depth = self._depths[call.task_id] + 1
                child = self.start(call.node, call.arguments, depth=depth)
                self._calls[child.task.id] = call
            case Ended():
                self.ended_at[event.task_id] = time.monotonic()
                self._depths.pop(event.task_id, None)
                call = self._calls.pop(event.task_id, None)
                if call is None:
                    found[event.task_id] = event.outcome
                else:
                    self.pool.resolve(call, event.outcome)


def _in(seconds: float) -> int:
    """Return when that many seconds are over, as a run's inbox takes it."""
    return time.monotonic_ns() + int(seconds * 1e9)


def value_of(outcome: Outcome) -> Any:
    """Return what a job returned."""
    assert isinstance(outcome, Returned), outcome
    return dict(outcome.writes)[RETURN]


def error_of(outcome: Outcome) -> Any:
    """Return what a job raised."""
    assert isinstance(outcome, Raised), outcome
    return outcome.error


def call_task(function: Callable[..., Any], *args: Any) -> Any:
    """Call a task from inside a task; return its future."""
    scope = current.get()
    assert scope is not None
    node = Node(
        name=function.__name__,
        steps=(CallTarget(function, None, (), function.__name__),),
    )
    return scope.run_client.call(node, Arguments(args, {}), None)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Look again and again until *condition* holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        os.sched_yield()


# Tasks that call tasks. They live here because a worker that needs them imports this
# module alone.


def descend(depth: int) -> int:
    """Call itself *depth* deep."""
    return 1 + int(call_task(descend, depth - 1).result()) if depth else 0


def parent(number: int) -> int:
    """Have a child return *number*."""
    return int(call_task(_child, number).result())


def _child(number: int) -> int:
    return number
