"""The engine, which performs the effects of an outermost run and the runs nested in it.

::

    driver <-- Wait, IORequest -- Engine <-- effects -- run
           --- performed ------->        --- replies -->   \\-- nested runs

The engine moves each run from effect to effect. It performs effects that need no
waiting itself: it starts tasks, hands callers their results, and puts emitted items
into the outbox. All runs share its inbox. For an effect that takes time it returns a
request to the driver, which performs it on this OS thread or beside the event loop.

Theory of operation. A driver repeats two calls: `next_request`, and `perform` or
`perform_on_loop`. So at most one request is open, and a run is in one of these states:

===========  ==========================================================================
state        meaning and the event that ends it
===========  ==========================================================================
ready        its steps can continue; `next_request` advances the ready runs in turn
in request   the driver performs its effect; the run is then the first of the ready runs
waiting      it yielded a `Wait`; an event for a task of the run, the deadline, or a
             request to stop makes it ready
ended        its contexts are exited, and its end goes to its parent or to the driver
===========  ==========================================================================

The driver waits only if no run is ready. That wait is a request too: it ends with the
first event, or at the earliest deadline of the waiting runs and the running tasks.

**Where errors go.** The error of an effect is raised inside the run that yielded the
effect. The error of a nested run is the outcome of a task in the run around it. The
error of the outermost run is raised by `next_request`, in this call and in each later
one.

**Inline tasks** run on the driver's OS thread, while a `Wait` is performed and no event
has arrived. If such a task waits for a call, `_run_until_done` runs this loop inside
the task, until the call has ended.

**How a run stops.** Any OS thread may post a `Stopped` to the inbox; it is passed to
all runs, and each run cancels its tasks at its next wake-up. A request with ``kill``
stops the running tasks at once. Any other request leaves them a grace period, after
which a timer posts a request with ``kill``. A second later a last request makes the run
end without the tasks that cannot be stopped, such as tasks on OS threads.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, TypeAlias

from flowpregel import _clock, _interrupts
from flowpregel._core import effects
from flowpregel._core.commands import Command
from flowpregel._core.effects import (
    WAIT_FOR_EVENT,
    Event,
    Steps,
    Stopped,
    Wait,
    Wakeup,
)
from flowpregel._core.records import Kind
from flowpregel._core.run import Result
from flowpregel._engine.contexts import LeaveContexts, take_contexts
from flowpregel._engine.inbox import LATE_READING_LIMIT, LoopInbox, RunInbox, now
from flowpregel._engine.nested import (
    ActiveRun,
    GraphTask,
    NestedRuns,
    RunContext,
    nested_outcome,
)
from flowpregel._engine.shared_results import SharedResults
from flowpregel._engine.tasks import RunExecutors, TaskStarter
from flowpregel._loggers import run_log
from flowpregel.cache.base import BaseCache
from flowpregel.channels.context import Context
from flowpregel.checkpoint.base import Lease
from flowpregel.errors import ParentCommand
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.local import InlineExecutor, check_stack

_AWAITED = (LeaveContexts, effects.Prepare)
"""The effects (requests that a run yields) that a run on an event loop always awaits.
Whether others are awaited depends on the saver.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPlan:
    """The plan of a run: the generator of the run's effects, and the resources that an
    engine needs for it.
    """

    steps: Steps
    run_context: RunContext
    open_cache: Callable[[ExitStack], BaseCache | None]
    """A function that opens and returns the cache of shared results. If the cache must
    be closed, the function adds it to the resources that it gets.
    """
    max_concurrency: int | None = None
    resources: ExitStack
    """The resources to release when the run ends."""
    lease: Lease | None = None
    """The lease of the run (its exclusive right to write to the thread), through which
    the saver may ask the run to stop.
    """
    stop_after: float | None = None
    """Seconds after which the run is asked to stop, with a grace period for its tasks,
    or None.
    """
    stop_grace: float = 0.0
    """Seconds that running tasks have to end after the run was asked to stop."""


@dataclass(slots=True)
class IORequest:
    """A request to perform an effect of one of the runs, which may take time."""

    run: ActiveRun
    effect: effects.Effect | LeaveContexts


EngineRequest: TypeAlias = Wait | IORequest
"""A request of the engine to its driver."""


class Engine:
    """An engine, which runs a plan for a driver, one request after another.

    Args:
        plan: The plan to run.
        loop: The running event loop, or None for a sync run.
    """

    def __init__(self, plan: RunPlan, loop: Any = None) -> None:
        self.outbox: deque[tuple[tuple[str, ...], str, Any]] = deque()
        """The (namespace, mode, payload) of items that the user's stream has not
        received yet.
        """
        self.result: Result | None = None
        self._plan = plan
        self._stop_grace = plan.stop_grace
        self._is_async = loop is not None
        self._inbox = RunInbox() if loop is None else LoopInbox(loop)
        self._inline = InlineExecutor(self._run_until_done)
        limit = plan.max_concurrency
        self._executors = RunExecutors(self._inline, loop, limit)
        self._root = ActiveRun(plan.steps, plan.run_context)
        self._ready = deque([self._root])
        """The runs that can continue: the reply to their last effect has arrived."""
        self._waiting: dict[ActiveRun, None] = {}
        """The runs that wait for events."""
        self._nested = NestedRuns(self._ready)
        self._tasks = TaskStarter(
            self._inbox, self._executors, self._nested, limit, self.fail
        )
        self._inbox.is_busy = self._tasks.is_busy
        self._performers: dict[type, Callable[[ActiveRun, Any], IORequest | None]] = {
            effects.Submit: self._tasks.submit,
            effects.Resolve: self._tasks.resolve,
            effects.Cancel: self._tasks.cancel,
            effects.Emit: self._emit,
            effects.Commit: self._commit,
            effects.Prepare: self._prepare,
        }
        """The functions that perform effects at once, by the type of the effect. A
        function returns None, or a request if the effect may take time. Effects of all
        other types take time.
        """
        self._is_asked_to_stop = False
        """True once a request to stop has been posted to the inbox."""
        self._request: EngineRequest | None = None
        """The last request that the driver got."""
        self._failure: BaseException | None = None
        """The error with which the run ended, or None."""
        if plan.lease is not None:
            plan.lease.stop = self.ask_to_stop
            plan.lease.live = self._tasks.live
        if plan.stop_after is not None:
            reason = f"it has run for stop_after={plan.stop_after:g} seconds"
            self._post_later(plan.stop_after, Stopped(reason, kill=False))

    def ask_to_stop(
        self, reason: str, *, kill: bool = True, grace: float | None = None
    ) -> None:
        """Ask the run to stop, at once if *kill*, or otherwise with a grace period for
        the running tasks (see `Stopped`). Any OS thread may call this.

        Args:
            reason: The reason for the request, for the message of the run's error.
            kill: True to stop the running tasks at once.
            grace: The grace period in seconds, which may be infinite. None for that of
                the run's options.
        """
        if grace is not None:
            self._stop_grace = grace
        self._post(Stopped(reason, kill))

    def _post(self, stopped: Stopped) -> None:
        if not stopped.kill:
            self._plan.run_context.ending.append(stopped.reason)
        self._is_asked_to_stop = True
        self._inbox.post(stopped)

    def wake(self) -> None:
        """End the current wait of the run. A signal handler may call this."""
        self._inbox.post()

    def _post_later(self, seconds: float, stopped: Stopped) -> None:
        timer = threading.Timer(seconds, self._post, [stopped])
        timer.daemon = True
        timer.start()
        self._plan.resources.callback(timer.cancel)

    # ------------------------------------------------------------ methods for drivers

    def next_request(self) -> EngineRequest | None:
        """Continue the runs until a request must be performed, and return the request.
        Return None if the outermost run has ended.

        Raises:
            BaseException: The error of the outermost run.
        """
        if self._failure is not None:
            raise self._failure
        self._request = None
        try:
            while self._ready and self._request is None:
                self._request = self._advance(self._ready.popleft())
        except BaseException as error:
            self._failure = error
            raise
        if self._request is None and self.result is None:
            if self._tasks.stopping is not None:
                # Runs that began to wait after the request to stop arrived have not
                # received it yet, so they get it now.
                self._stop_all(self._tasks.stopping)
            self._request = self._next_wait()
        return self._request

    def _next_wait(self) -> Wait:
        """Return a wait that ends at the first deadline of a waiting run or a task."""
        deadline = self._tasks.deadline
        for run in self._waiting:
            if run.deadline is None:
                continue
            if deadline is None or run.deadline < deadline:
                deadline = run.deadline
        return WAIT_FOR_EVENT if deadline is None else Wait(deadline)

    def perform(self, request: EngineRequest) -> None:
        """Perform *request* on this OS thread."""
        self._tasks.flush()
        if isinstance(request, Wait):
            # If an inline task is ready, do not wait for an event or for the deadline:
            # this OS thread itself must run the task.
            has_inline = bool(self._inline.waiting)
            deadline = 0 if has_inline else request.deadline
            events = self._inbox.take(deadline)
            if has_inline and not events and request.deadline != 0:
                # While there are no events, this OS thread runs the tasks that wait for
                # it.
                self._inline.work()
                events = self._inbox.take(0)
            self._deliver(events)
            if _interrupts.hold_of_main and _interrupts.hold_of_main.kept:
                _interrupts.raise_pending_interrupts()
            return
        run = request.run
        effect = request.effect
        try:
            if isinstance(effect, effects.Commit):
                assert run.run_context.committer is not None
                run.run_context.committer.commit(effect.batch)
            else:
                run.receive(effect, self._reply_to(request))
        except Exception as error:  # noqa: BLE001 - it is raised inside the run
            run.failure = error
        self._ready.appendleft(run)

    async def perform_on_loop(self, request: EngineRequest) -> None:
        """Perform *request* without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        self._tasks.flush()
        if isinstance(request, Wait):
            self._deliver(await self._next_on_loop(request))
            _interrupts.raise_pending_interrupts()
            return
        run = request.run
        effect = request.effect
        committer = run.run_context.committer
        is_quick = committer is not None and not committer.blocks
        if is_quick and not isinstance(effect, LeaveContexts):
            self.perform(request)
            return
        try:
            if isinstance(effect, effects.Commit):
                assert committer is not None
                await committer.commit_on_loop(effect.batch)
            else:
                # If this coroutine is cancelled, the other OS thread still runs. So
                # that OS thread must not change the engine: it only returns the reply.
                reply = await asyncio.to_thread(self._reply_to, request)
                run.receive(effect, reply)
        except Exception as error:  # noqa: BLE001 - it is raised inside the run
            run.failure = error
        self._ready.appendleft(run)

    async def _next_on_loop(self, request: Wait) -> list[Event]:
        """Run the inline tasks of this OS thread, and then wait for events."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        inbox = self._inbox
        assert isinstance(inbox, LoopInbox)
        if not self._inline.waiting:
            return await inbox.take_on_loop(request.deadline)
        # Control passes to the event loop once, so that bodies on the loop receive
        # their results before further tasks begin.
        await asyncio.sleep(0)
        events = await inbox.take_on_loop(0)
        if not events and self._inline.waiting and request.deadline != 0:
            self._inline.work()
            events = await inbox.take_on_loop(0)
        return events

    def stop(self) -> EngineRequest | None:
        """Stop a run whose stream was not read to the end, and return the current
        request of the run.
        """
        stopping = self._tasks.stopping
        is_killed = stopping is not None and stopping.kill
        if self._request is None or is_killed:
            return self._request
        self._inline.withdraw()
        self._tasks.withdraw()
        self._stop_all(Stopped("the run was stopped"))
        if isinstance(self._request, Wait):
            self._request = Wait(0)
        return self._request

    def fail(self, error: BaseException) -> None:
        """End the run with *error*, because even its stop has failed."""
        self._failure = error
        self._request = None

    def close(self) -> None:
        """Commit waiting batches, release the resources of the run, and end its OS
        threads.

        Raises:
            Exception: The error of a commit in the background.
        """
        failure = self._failure
        self._inbox.close()
        self._tasks.close(failure)
        for nested in self._nested.active.values():
            nested.steps.close()
        try:
            contexts = self._contexts_of(self._root)
            if contexts:
                LeaveContexts(contexts, failure).perform(self._executors)
        except Exception:  # noqa: BLE001 - the run has ended, and stays as it ended
            run_log.exception("a Context channel could not be left")
        try:
            self._plan.run_context.committers.close()
        finally:
            self._plan.resources.close()

    async def close_on_loop(self) -> None:
        """Close as `close` does, for a run on an event loop."""
        try:
            await self._plan.run_context.committers.close_on_loop()
        finally:
            self.close()

    @staticmethod
    def is_awaited(request: EngineRequest) -> bool:
        """Return whether *request* must be awaited, because it cannot be performed on
        the event loop's OS thread.
        """
        if isinstance(request, Wait) or isinstance(request.effect, _AWAITED):
            return True
        committer = request.run.run_context.committer
        return committer is not None and committer.saver.needs_loop

    # ------------------------------------------------------------ performing requests

    def _reply_to(self, request: IORequest) -> Any:
        """Perform *request*, which is not a commit, and return the reply. Any OS thread
        may call this.
        """
        match request.effect:
            case effects.Load() | effects.LoadAttempts() as load:
                committer = request.run.run_context.committer
                return None if committer is None else committer.load(load)
            case effects.CacheLookup(keys):
                return self._shared_results.look(keys)
            case effects.CacheStore(entries):
                self._shared_results.share(entries)
            case LeaveContexts() as leave:
                leave.perform(self._executors)
            case effects.Prepare(plan):
                return plan()
        return None

    @cached_property
    def _shared_results(self) -> SharedResults:
        """The run's access to results that runs share, opened for the first task that
        needs one.
        """
        resources = self._plan.resources
        shared = SharedResults(self._plan.open_cache(resources))
        resources.callback(shared.close)
        return shared

    @_interrupts.defer_interrupts()
    def _run_until_done(self, future: CallFuture[Any]) -> None:
        """Continue the run while a task on this OS thread waits for *future*.

        The task runs inside `perform`, for a `Wait`. When this method returns, no other
        request is open. On an event loop it returns early if only the loop can finish
        the call.

        Raises:
            RecursionError: The stack is nearly full.
            BaseException: The run has failed, so the call will get no answer.
        """
        check_stack()
        while not future.done() or isinstance(self._request, IORequest):
            self._tasks.flush()
            request = self._request
            is_idle = not (self._inline.waiting or self._inbox.has_events)
            if self._is_async and request == WAIT_FOR_EVENT and is_idle:
                return
            if request is not None:
                self.perform(request)
            self.next_request()

    def _deliver(self, events: list[Event]) -> None:
        """Give each run its events, and make runs ready that have events or are due."""
        stopped = self._take_stop(events) if self._is_asked_to_stop else None
        # Only events of tasks are left, because `_take_stop` has removed each
        # `Stopped`. Type checkers cannot see that, so the items have the type `Any`.
        task_events: list[Any] = events
        self._tasks.deliver(task_events, self._root)
        if stopped is not None:
            self._begin_to_stop(stopped)
        at = _clock.present.monotonic_ns()
        for run in list(self._waiting):
            is_due = run.deadline is not None and run.deadline <= at
            if run.inbox or is_due:
                run.reply = Wakeup(run.inbox, now(), at, random.random())
                run.inbox = []
                del self._waiting[run]
                self._ready.append(run)

    # ------------------------------------------------------------ stopping

    @staticmethod
    def _take_stop(events: list[Event]) -> Stopped | None:
        """Remove the requests to stop from *events*, and return the request that takes
        effect: the last request that kills, or else the first request. Return None if
        there is no request.
        """
        requests = [event for event in events if isinstance(event, Stopped)]
        if not requests:
            return None
        events[:] = [event for event in events if not isinstance(event, Stopped)]
        killing = [request for request in requests if request.kill]
        return killing[-1] if killing else requests[0]

    def _begin_to_stop(self, stopped: Stopped) -> None:
        """Stop all runs. If *stopped* does not kill, kill them after a grace period."""
        grace = self._stop_grace
        if self._tasks.stopping is None and not stopped.kill and grace < inf:
            self._post_later(grace, Stopped(stopped.reason))
            # A task on an OS thread cannot be stopped. So a second later, the run stops
            # waiting for it.
            self._post_later(grace + 1, Stopped(stopped.reason, leave=True))
        self._stop_all(stopped)

    def _stop_all(self, stopped: Stopped) -> None:
        """Stop every run. Each run cancels its tasks at its next wake-up."""
        if self._tasks.stopping is None or stopped.kill:
            self._tasks.stopping = stopped
        if stopped.kill and isinstance(self._inbox, LoopInbox):
            self._inbox.reading_limit = LATE_READING_LIMIT
        for run in self._waiting:
            run.stop(stopped)

    # ------------------------------------------------------------ advancing runs

    def _advance(self, run: ActiveRun) -> IORequest | None:
        """Continue one run to the next effect for which it must wait, or to its end."""
        while run.end is None:
            reply = run.reply
            failure = run.failure
            run.reply = None
            run.failure = None
            try:
                if failure is None:
                    effect = run.steps.send(reply)
                else:
                    effect = run.steps.throw(failure)
            except BaseException as error:  # noqa: BLE001 - it is the run's result
                run.end = error
                break
            if isinstance(effect, Wait):
                run.deadline = 0 if run.inbox else effect.deadline
                self._waiting[run] = None
                return None
            perform = self._performers.get(type(effect), IORequest)
            request = perform(run, effect)
            if request is not None:
                return request
        return self._end(run, run.end)

    @staticmethod
    def _commit(run: ActiveRun, effect: effects.Commit) -> IORequest | None:
        """Commit a batch if the commit takes no time, or else return a request to
        commit it.

        If the commit fails, the run gets the error.
        """
        committer = run.run_context.committer
        assert committer is not None
        if committer.blocks:
            return IORequest(run, effect)
        try:
            committer.commit(effect.batch)
        except Exception as error:  # noqa: BLE001 - it is raised inside the run
            run.failure = error
        return None

    def _prepare(self, run: ActiveRun, effect: effects.Prepare) -> IORequest | None:
        """Plan a nested run, or return a request to plan it without blocking the event
        loop.
        """
        if self._is_async and effect.needs_loop:
            return IORequest(run, effect)
        try:
            run.receive(effect, effect.plan())
        except Exception as error:  # noqa: BLE001 - it is raised inside the run
            run.failure = error
        return None

    def _emit(self, run: ActiveRun, effect: effects.Emit) -> None:
        """Put an item for the user's stream into the outbox."""
        namespace = effect.namespace
        if namespace is None:
            namespace = tuple(filter(None, run.run_context.namespace.split("|")))
        self.outbox.append((namespace, effect.mode, effect.payload))

    # ------------------------------------------------------------ ends of runs

    def _end(self, run: ActiveRun, end: Result | BaseException) -> IORequest | None:
        """Exit the contexts of a run, and then report the end of the run to its parent,
        or to the driver.
        """
        if isinstance(end, StopIteration):
            # A StopIteration is not an error: it contains what the generator of the run
            # has returned.
            end = end.value
        if run.failure is not None:
            # The contexts could not be exited, so the run ends with that error.
            end = run.failure
        run.end = end
        if run.failure is None:
            contexts = self._contexts_of(run)
            if contexts:
                return IORequest(run, LeaveContexts(contexts, end))
        if run.graph_task is not None:
            self._nested.pass_turn(run)
            self._end_task(run.graph_task, end)
            return None
        if isinstance(end, BaseException):
            raise end
        self.result = end
        return None

    def _end_task(self, graph_task: GraphTask, end: Result | BaseException) -> None:
        """End a task whose nested run has ended. If the task is not a call, and the run
        has returned a value or a `Command`, run the writers of the task's node first.
        """
        task = graph_task.task
        if task.kind is not Kind.CALL:
            match end:
                case Result(values, paused=False):
                    self._tasks.write(graph_task, values)
                    return
                case ParentCommand(command=command) if command.graph == Command.PARENT:
                    self._tasks.write(graph_task, replace(command, graph=None))
                    return
        del self._nested.active[task.id]
        span = graph_task.watch.stop("graph")
        graph_task.run.post(task, nested_outcome(end), span)

    def _contexts_of(self, run: ActiveRun) -> list[Context[Any]]:
        """Return the `Context` channels that must be exited when *run* ends, and forget
        them.

        If the outermost run ends, the channels of all nested runs are included, because
        these runs end with it.
        """
        ending = [run, *self._nested.active.values()] if run is self._root else [run]
        return take_contexts(ending)
