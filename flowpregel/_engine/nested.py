"""The runs that an engine moves, their inboxes, and the report of running tasks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from flowpregel._core import records
from flowpregel._core.effects import Ended, Event, StepContext, Steps, Stopped
from flowpregel._core.ids import Span, without_ids
from flowpregel._core.program import Options
from flowpregel._core.records import Address, Outcome, Raised, Returned, Task
from flowpregel._core.run import Result
from flowpregel._engine.commits import Committer, Committers
from flowpregel._fault import fault
from flowpregel._interrupts import interruptible, waking
from flowpregel.checkpoint.output import CallOutput
from flowpregel.context import Job, RunInfo
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.executors.attempt import Stopwatch
from flowpregel.executors.base import Backlog, Executor, JobKey
from flowpregel.executors.unread import UnreadEvent

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext(RunInfo):
    """The facts about a run that its tasks and nested graphs need, with its
    committers.
    """

    committer: Committer | None = None
    committers: Committers = field(default_factory=Committers)
    """The committers of all savers that keep state of the run or of graphs nested in
    it.
    """
    namespace: str = ""
    modes: frozenset[str] = frozenset()
    """The stream modes of nested runs."""
    options: Options = field(default_factory=Options)
    """The options of the run itself, which nested runs inherit."""
    variables: Context = field(default_factory=copy_context)
    """The context variables of the run's caller, in which the nodes run."""
    replayed_before: str | None = None
    """The checkpoint from which the outermost run is replayed; graphs nested in it need
    it.
    """
    replayed: set[str] = field(default_factory=set)
    """The nested graphs that have started from before that checkpoint, by namespace
    without ids of tasks.
    """
    is_finished: bool = False
    """True if the run had already ended, and only its stored result is returned."""

    def take_back(self, namespace: str) -> str | None:
        """Return the checkpoint before which the graph at *namespace* must start, or
        None if any will do.

        A graph that runs a second time in the same replay resumes from its own state.
        """
        graph = without_ids(namespace)
        if self.replayed_before is None or graph in self.replayed:
            return None
        self.replayed.add(graph)
        return self.replayed_before

    def keep_output(self, job: Job, text: str) -> None:
        """Store the output of a task of the run with the saver of the run."""
        if self.committer is None or self.thread_id is None:
            return
        task, step, data = job.task, job.place, text.encode(errors="replace")
        address = Address(self.thread_id, step.namespace, step.checkpoint_id)
        name = task.call or task.name
        output = CallOutput(
            step.checkpoint_id, task.id, name, now(), data, b"", len(data)
        )
        self.committer.saver.keep_output(address, output)


@dataclass(eq=False, slots=True)
class ActiveRun:
    """A run that has not ended: the outermost, or one nested in another."""

    steps: Steps
    run_context: RunContext
    parent: ActiveRun | None = None
    task: Task | None = None
    """The task of the parent that this run carries out."""
    setting: StepContext | None = None
    """The superstep of the parent that the task belongs to."""
    depth: int = 0
    """The number of runs that this run is nested in."""
    deadline: int | None = None
    reply: Any = None
    """The reply to the last effect."""
    failure: BaseException | None = None
    """The error of the last effect."""
    inbox: list[Event] = field(default_factory=list)
    stopped: Stopped | None = None
    """The request to stop that the run has received, if any."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """The live channels of the run, known once it has submitted a task."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    end: Result | BaseException | None = None
    """The result or the error of the run, once it has ended."""

    def post(self, task: Task, outcome: Outcome, span: Span | None = None) -> None:
        """Add the event that a task of the run ended, or never began."""
        self.inbox.append(Ended(task.id, task.attempt.number, outcome, span))
        fault("task.ended", task.id)

    def stop(self, stopped: Stopped) -> None:
        """Ask the run to stop, unless it already has the same or a stronger request."""
        before = self.stopped
        if before is None or (stopped.kill, stopped.leave) > (
            before.kill,
            before.leave,
        ):
            self.stopped = stopped
            self.inbox.append(stopped)


def nested_outcome(end: Result | BaseException) -> Outcome:
    """Return the outcome of a task without writers, whose nested run has this *end*."""
    match end:
        case Result(paused=True):
            return records.Interrupted(end.interrupts, questions=end.questions)
        case Result(values):
            return Returned(((records.RETURN, values),))
        case TaskCancelled():
            return records.Withdrawn()
        case ParentCommand():
            return records.Escaped(end.command)
    return Raised(end)


# inboxes -------------------------------------------------------------------

MOST_AT_ONCE: Final = 512
"""The most events that one wake-up takes.

The bound lets the run start the tasks that the first events request, and commit the
results in them, before it takes more events.
"""

LONGEST_WAIT: Final = 0.5
"""The most seconds of a single wait.

A signal that arrives an instant before Python begins to wait does not end that wait,
and its handler is called after it.
"""

LATE_READING_LIMIT: Final = 1.0
"""Seconds for which a cancelled run on an event loop still reads a value.

Reading may run any user code, and may never end.
"""

_lock = threading.Lock()
_last = 0


def now() -> int:
    """Return wall-clock nanoseconds, greater than any returned before in this process.

    Versions and checkpoint ids are made from this time, so two must never be equal.
    """
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1_000)
        return _last


@dataclass(eq=False)
class RunInbox:
    """The mailbox of a run whose own OS thread waits for events."""

    _posted: SimpleQueue[Sequence[Event | UnreadEvent]] = field(
        default_factory=SimpleQueue
    )
    """A signal handler may post too, at any point of this OS thread's code."""
    _events: deque[Event | UnreadEvent] = field(default_factory=deque)
    """The events that were taken out of *_posted*."""
    backlog: Backlog = field(default_factory=Backlog)

    @property
    def has_events(self) -> bool:
        """True if `take` would return at once."""
        return bool(self._events) or not self._posted.empty()

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, from any OS thread."""
        self._posted.put(events)

    def take(self, deadline: int | None) -> list[Event]:
        """Return the first `MOST_AT_ONCE` events; wait for one until *deadline*, if
        there is none.

        The list may be empty even before the deadline.

        Args:
            deadline: Monotonic nanoseconds. 0 means do not wait; None means no
                deadline.

        Raises:
            BaseException: A signal's handler raised it while the value of a worker was
                read: `KeyboardInterrupt` for Ctrl-C.
        """
        if not self._events and self._posted.empty():
            if self.backlog.size:
                self.backlog.clear()
            if deadline != 0:
                seconds = LONGEST_WAIT
                if deadline is not None:
                    remaining = (deadline - time.monotonic_ns()) / 1e9
                    seconds = max(0.0, min(remaining, LONGEST_WAIT))
                with waking(lambda: self._posted.put(())), suppress(Empty):
                    self._events.extend(self._posted.get(timeout=seconds))
        while len(self._events) < MOST_AT_ONCE and not self._posted.empty():
            self._events.extend(self._posted.get_nowait())
        events: list[Event] = []
        for _ in range(min(len(self._events), MOST_AT_ONCE)):
            event: Event | UnreadEvent | None = self._events.popleft()
            if isinstance(event, UnreadEvent):
                event = event.read() if event.is_plain else self._read(event, events)
            if event is not None:
                events.append(event)
        return events

    def _read(self, unread: UnreadEvent, before: Sequence[Event]) -> Event | None:
        """Read an event on this OS thread. If the reading is interrupted, no other
        event is lost.
        """
        try:
            return interruptible(unread.read_in_time)
        except BaseException:
            self._put_back([*before, unread.give_up()])
            raise

    def _put_back(self, events: Sequence[Event | UnreadEvent | None]) -> None:
        self._events.extendleft(
            event for event in reversed(events) if event is not None
        )


class LoopInbox(RunInbox):
    """The mailbox of a run on an event loop.

    Args:
        loop: The loop, which is running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        super().__init__()
        self._loop = loop
        self._is_awake = asyncio.Event()
        self.reading_limit: float | None = None
        """Seconds after which the reading of a value is abandoned; None means never."""

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, from any OS thread."""
        super().post(*events)
        # A closed loop has no waiting run: a step timeout has left this task behind.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._is_awake.set)

    async def take_on_loop(self, deadline: int | None) -> list[Event]:
        """Take events as `take` does, without blocking the loop while it waits or reads
        the values of workers.
        """
        if not self.has_events and deadline != 0:
            await self._wait(deadline)
        while not self._posted.empty():
            self._events.extend(self._posted.get_nowait())
        if any(
            isinstance(event, UnreadEvent) and not event.is_plain
            for event in self._events
        ):
            return await self._take_aside()
        return self.take(0)

    async def _wait(self, deadline: int | None) -> None:
        """Wait for an event, until *deadline*."""
        if self.backlog.size:
            self.backlog.clear()
        is_over, timer = False, None

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._is_awake.set()

        if deadline is not None:
            # An event loop's clock is the monotonic one. `asyncio.timeout` takes its
            # end for a cancellation where the task was cancelled before, in early
            # versions of Python 3.11.
            timer = self._loop.call_at(deadline / 1e9, end)
        try:
            while not (self.has_events or is_over):
                self._is_awake.clear()
                await self._is_awake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _take_aside(self) -> list[Event]:
        """Return the first events, read on an OS thread of their own.

        If this is cancelled or takes too long, the value that is being read is
        abandoned, and nothing else is lost.
        """
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        unread = [
            self._events.popleft() for _ in range(min(len(self._events), MOST_AT_ONCE))
        ]
        events: list[Event | None] = []
        done = self._loop.create_future()
        threading.Thread(
            target=_read_all,
            args=(unread, events, done),
            name="flowpregel-reading",
            daemon=True,
        ).start()
        is_read = False
        try:
            await asyncio.wait([done], timeout=self.reading_limit)
            is_read = done.done()
        finally:
            if not is_read:
                done.cancel()  # the other OS thread reads no further value
                self._give_up_reading(unread, [*events])  # the thread may still append
        if not is_read:
            return []
        return [event for event in events if event is not None]

    def _give_up_reading(
        self, unread: Sequence[Event | UnreadEvent], read: Sequence[Event | None]
    ) -> None:
        """Restore the events that were *read* and those that were not, except the first
        unread one, which is abandoned.
        """
        rest: list[Event | UnreadEvent | None] = [*unread[len(read) :]]
        if rest and isinstance(rest[0], UnreadEvent):
            rest[0] = rest[0].give_up()
        self._put_back([*read, *rest])


def _read_all(
    unread: Sequence[Event | UnreadEvent],
    events: list[Event | None],
    done: asyncio.Future[None],
) -> None:
    """Read *unread* into *events*, unless *done* is cancelled; then set *done*."""
    for event in unread:
        if done.cancelled():
            return
        if isinstance(event, UnreadEvent):
            events.append(event.read_in_time())
        else:
            events.append(event)
    # The loop may have been closed.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_set_done, done)


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


# the live state of a run ---------------------------------------------------

MOST_TASKS: Final = 500
"""The most running tasks that the live state lists."""


def live_state(
    jobs: Collection[Job], graphs: Collection[Task], executors: Collection[Executor]
) -> dict[str, Any]:
    """Return the running and waiting tasks, in a form fit for JSON.

    Args:
        jobs: The jobs that have not ended, waiting or running.
        graphs: The tasks that are nested runs.
        executors: The executors that may run jobs.
    """
    running: dict[JobKey, tuple[int, int]] = {}
    workers = []
    for executor in executors:
        started = executor.running()
        running.update(started)
        tasks = {pid: task_id for (task_id, _), (pid, _) in started.items()}
        workers += [
            {"pid": pid, "task": tasks.get(pid, "")} for pid in executor.worker_pids()
        ]
    begun = [(job.task, *running[job.key]) for job in jobs if job.key in running]
    begun += [(task, 0, 0) for task in graphs]
    visible = [entry for entry in begun if not entry[0].node.hidden]
    # The list may be cut, so the tasks that do the work come first.
    visible.sort(key=lambda entry: entry[0].node.role != "leaf")
    return {
        "running": [_running_task(*entry) for entry in visible[:MOST_TASKS]],
        "count": len(visible),
        "waiting": dict(
            Counter(job.task.name for job in jobs if job.key not in running)
        ),
        "workers": workers,
    }


def _running_task(task: Task, pid: int, began: int) -> dict[str, Any]:
    """Return the entry of a task that runs in process *pid* since *began* (nanoseconds;
    0: not known).
    """
    planned, report = task.attempt.first_started or 0, task.attempt.report
    return {
        "id": task.id,
        "name": task.name,
        # Not `task.call`, which may run code of the arguments' classes if there is no
        # record.
        "text": "" if task.record is None else task.record.text,
        "role": task.node.role,
        "caller": "" if task.parent is None else task.parent.id,
        "path": task.path,
        "attempt": task.attempt.number,
        "planned": planned,
        "began": began or planned,
        "pid": pid,
        "done": report and report.done,
        "total": report and report.total,
        "message": report and report.message and str(report.message),
    }
