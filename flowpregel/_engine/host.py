"""Performs the effects of one outermost run, and of the runs nested in it."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flowpregel._core.effects import Commit, Event, Load, Look, Share, Stopped, Wait, Wakeup
from flowpregel._core.progress import Result, Steps
from flowpregel._engine import clock
from flowpregel._engine.elsewhere import elsewhere
from flowpregel._engine.executors import Executors
from flowpregel._engine.mailbox import ThreadMailbox, loop_mailbox
from flowpregel._engine.placing import RunContext, TaskStarter
from flowpregel._engine.pump import Ask, Pump, Request
from flowpregel.checkpoint.base import Lease
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.inline import InlineExecutor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What a host is to run, and with what."""

    steps: Steps
    around: RunContext
    cache: Any = None
    max_concurrency: int | None = None
    resources: ExitStack
    """What is released when the run ends: its lease, its `Context` channels."""
    lease: Lease | None = None
    """The lease among them: its saver may be asked to stop the run."""


class Host:
    """Runs a plan; its driver calls it for everything the pump asks.

    Args:
        plan: What to run.
        loop: The running event loop; None for a sync run.
    """

    def __init__(self, plan: Plan, loop: Any = None) -> None:
        self.result: Result | None = None
        self._plan = plan
        self._inline = InlineExecutor(self._turn)
        self.inline_work = self._inline.waiting
        """Tasks that wait for this OS thread."""
        self._mailbox: Any = ThreadMailbox() if loop is None else loop_mailbox(loop)
        self._executors = Executors(self._inline, loop, plan.max_concurrency)
        self._placing = TaskStarter(self._mailbox, self._executors, plan.max_concurrency)
        self._pump = Pump(self._placing)
        self.outbox = self._pump.outbox
        self._requests: Generator[Request, Any, Result] | None = None
        self._request: Request | None = None
        self._failure: BaseException | None = None
        """What the run ended with, if that was an error."""
        if plan.lease is not None:
            plan.lease.stop = lambda reason: self._mailbox.post(Stopped(reason))

    # ------------------------------------------------------------ for drivers

    def begin(self) -> Request | None:
        """Start the run and return its first request."""
        self._requests = self._pump.run(self._plan.steps, self._plan.around)
        return self._send(None)

    def perform(self, request: Request) -> Request | None:
        """Do what *request* asks, and return the next one; None: the run has ended."""
        try:
            reply = self._wait(request) if isinstance(request, Wait) else self._reply_to(request)
        except Exception as error:
            if isinstance(request, Wait):
                raise
            return self._throw(error)
        return self._send(reply)

    async def await_events(self, request: Wait) -> Request | None:
        """Wait for events on the event loop."""
        return self._send(_wakeup(await self._mailbox.take(_timeout(request))))

    async def perform_elsewhere(self, request: Ask) -> Request | None:
        """Do what *request* asks while the loop goes on, for it would block it."""
        try:
            reply: Any = None
            if isinstance(request.effect, Commit):
                assert request.keeper is not None
                await request.keeper.commit_on_loop(request.effect.batch)
            else:
                reply = await elsewhere(self._reply_to, request)
        except Exception as error:  # noqa: BLE001 - it is raised inside the run
            return self._throw(error)
        return self._send(reply)

    def blocks(self, request: Ask) -> bool:
        """Return whether *request* would block an event loop."""
        keeper = request.keeper
        return keeper is None or keeper.blocks

    def finish(self) -> None:
        """Stop a run that was left early: cancel its tasks, keep what finished."""
        request = self._stop()
        while request is not None:
            try:
                request = self.perform(request)
            except BaseException as error:  # noqa: BLE001 - the run ends; its reason is known
                self._note_end(error)
                return

    async def afinish(self) -> None:
        """`finish`, on the event loop."""
        request = self._stop()
        while request is not None:
            try:
                if isinstance(request, Wait) and not self.inline_work:
                    request = await self.await_events(request)
                else:
                    request = self.perform(request)
            except BaseException as error:  # noqa: BLE001 - the run ends; its reason is known
                self._note_end(error)
                return

    def close(self) -> None:
        """Commit what waits, release everything, and end the run's OS threads.

        Raises:
            Exception: What a commit in the background raised.
        """
        if self._failure is not None:
            # Ctrl-C or a full stack while the run itself was at work: its bodies wait for ever.
            self._placing.stop_all()
        self._executors.close(wait=not isinstance(self._failure, TimeoutError))
        try:
            self._plan.around.keepers.close()
        finally:
            self._plan.resources.close()

    # ------------------------------------------------------------ requests

    def _reply_to(self, request: Ask) -> Any:
        effect, keeper = request.effect, request.keeper
        match effect:
            case Commit(batch):
                assert keeper is not None
                return keeper.commit(batch)
            case Load():
                return None if keeper is None else keeper.load(effect)
            case Look(keys):
                return {} if self._plan.cache is None else self._plan.cache.get(keys)
            case Share(entries):
                if self._plan.cache is not None:
                    self._plan.cache.set(entries)
        return None

    def _wait(self, request: Wait) -> Wakeup:
        if request.deadline == 0 or not self.inline_work:
            return _wakeup(self._mailbox.take(_timeout(request)))
        ended = self._inline.work()
        events: list[Event] = self._mailbox.drain()
        events += ended
        return _wakeup(events)

    def _turn(self, future: CallFuture[Any]) -> None:
        """Let the run go on while a task on this OS thread waits for *future*.

        The pump stands at a `Wait` whose reply is being made, by running that
        task; it is sent other replies meanwhile, until it stands at a `Wait` again.

        Raises:
            BaseException: The run has failed, out of stack perhaps: nobody will answer.
        """
        while not future.done():
            # Raised perhaps below on this OS thread's stack.
            if self._failure is not None:
                raise self._failure
            request = self._send(_wakeup(self._inner_events()))
            while request is not None and not isinstance(request, Wait):
                request = self.perform(request)

    def _inner_events(self) -> list[Event]:
        events: list[Event] = self._mailbox.drain()
        if events or not self.inline_work:
            return events or self._mailbox.take(None)
        return self._inline.work()

    # ------------------------------------------------------------ the pump

    def _send(self, reply: Any) -> Request | None:
        if self._failure is not None:
            raise self._failure
        assert self._requests is not None
        try:
            self._request = self._requests.send(reply)
        except StopIteration as stop:
            self.result = stop.value
            self._request = None
        except BaseException as error:
            self._note_end(error)
            raise
        return self._request

    def _throw(self, error: BaseException) -> Request | None:
        assert self._requests is not None
        try:
            self._request = self._requests.throw(error)
        except StopIteration as stop:
            self.result = stop.value
            self._request = None
        except BaseException as raised:
            self._note_end(raised)
            raise
        return self._request

    def _note_end(self, error: BaseException) -> None:
        self._failure = error
        self._request = None

    def _stop(self) -> Request | None:
        """Tell a run that stands at a request to end, and return that request."""
        if self._request is not None and self._pump.stopping is None:
            self._inline.withdraw()
            self._pump.stop("the run was stopped")
            if isinstance(self._request, Wait):
                # It was told, which no event says: it must not wait for one.
                self._request = Wait(0)
        return self._request


def _timeout(request: Wait) -> float | None:
    if request.deadline is None:
        return None
    return max(0.0, (request.deadline - time.monotonic_ns()) / 1e9)


def _wakeup(events: list[Event]) -> Wakeup:
    return Wakeup(events, clock.now(), time.monotonic_ns(), random.random())


__all__ = ["Host", "Plan"]
