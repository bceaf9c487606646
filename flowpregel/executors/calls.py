"""The caller's end of a call made in this process: a future to wait for."""

from __future__ import annotations

import concurrent.futures
import sys
from _thread import get_ident
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures._base import FINISHED
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from flowpregel._core.blame import blamed
from flowpregel._core.effects import Call, Emitted
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Interrupted,
    Node,
    Outcome,
    Raised,
    Returned,
    Write,
)
from flowpregel.context import RunClient, current
from flowpregel.errors import GraphInterrupt, TaskCancelled
from flowpregel.executors.capture import captured, runs_elsewhere
from flowpregel.executors.light import LightFuture, ResultT

if TYPE_CHECKING:
    import asyncio

    from flowpregel.executors.base import Job, Mailbox


_MANY = 256
"""Calls after which a body lets the run take them in: some milliseconds."""


class OpenCalls(set["CallFuture[Any]"]):
    """The calls of one attempt of a body: those that have not succeeded."""

    count = 0
    """How many calls it has made."""
    home: asyncio.Task[Any] | None = None
    """The body itself, if it is a coroutine."""


class CallFuture(LightFuture[ResultT]):
    """The result of a call, to be waited for by an OS thread or awaited by a coroutine.

    Args:
        turn: Lets the run go on until the future is done; given where the
            caller occupies the OS thread that drives the run.
        open_calls: Where its caller keeps the calls that may still concern it.
    """

    def __init__(
        self,
        turn: Callable[[CallFuture[Any]], None] | None = None,
        open_calls: OpenCalls | None = None,
    ) -> None:
        self._turn = turn
        self._open_calls = open_calls
        if open_calls is not None:
            open_calls.add(self)
            open_calls.count += 1

    settled_by = ("_turn", "_open_calls", "looked_at")
    looked_at = False
    """Whether somebody has asked how the call ended."""
    _aside = False
    """Whether a coroutine awaits it that the body has started: what became of that, who knows?"""
    _told_after: int | None = None
    """How many calls the body had made when such a coroutine was told how it ended."""

    def result(self, timeout: float | None = None) -> ResultT:
        """Return what the call returned, or raise what it raised.

        Args:
            timeout: Seconds to wait at most; None is for ever.
        """
        if self._state == FINISHED and self._exception is None:
            self.looked_at = True
            value: ResultT = self._result
            return value
        self._look(".result()")
        return asking(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None."""
        self._look(".exception()")
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, Any, ResultT]:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        made = self._open_calls
        self._aside = (
            not self.looked_at
            and made is not None
            and made.home is not None
            and asyncio.current_task() is not made.home
        )
        self.looked_at = True
        if not self.done():
            waiter = asyncio.get_running_loop().create_future()
            self.add_done_callback(_Waker(waiter))
            yield from waiter
        elif self._aside and self._exception is not None:
            # Coroutines that were started with this one make their calls before it goes on.
            yield
        if self._aside and made is not None:
            self._told_after = made.count
        return self.result()

    def succeed(self, value: ResultT) -> None:
        """Take the result, which nobody but the holders of the future needs any more."""
        if self._open_calls is not None:
            self._open_calls.discard(self)
        LightFuture.succeed(self, value)

    @property
    def failure(self) -> Exception | None:
        """What the call failed with, if it has."""
        if not self.done() or self.cancelled():
            return None
        error = concurrent.futures.Future.exception(self)
        return error if isinstance(error, Exception) else None

    @property
    def may_be_unseen(self) -> bool:
        """Whether its failure may have gone by the body, though somebody awaited it.

        Of what `asyncio.gather` has awaited, a body sees the first failure alone. One
        that made a call after it was told of this one may have seen it.
        """
        made = self._open_calls
        return self._aside and made is not None and self._told_after in (None, made.count)

    def _look(self, how: str) -> None:
        """Note that somebody asks; where waiting would stop the whole run, say so."""
        self.looked_at = True
        if self.done():
            return
        if self._turn is not None:
            self._turn(self)
        elif _on_event_loop():
            raise RuntimeError(
                f"{how} of a task that is not done would stop the event loop that the task's "
                "result arrives on: use await"
            )


class _Waker:
    """Wakes the coroutine that awaits a future, on its own event loop.

    Unlike `asyncio.wrap_future`, which wakes the loop through a socket for each
    future, it knows when it is called on that loop already.
    """

    __slots__ = ("_thread", "_waiter")

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter
        self._thread = get_ident()

    def __call__(self, _: object) -> None:
        if get_ident() == self._thread:
            self._wake()
        elif not (loop := self._waiter.get_loop()).is_closed():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


def _on_event_loop() -> bool:
    """Return whether this OS thread runs an event loop, which waiting would stop."""
    loops = sys.modules.get("asyncio")
    if loops is None:
        return False
    try:
        loops.get_running_loop()
    except RuntimeError:
        return False
    return True


def returned_by(writes: Sequence[Write]) -> Any:
    """Return what the call returned that made *writes*."""
    for channel, value in writes:
        if channel == RETURN:
            return value
    return None


def resolve_future(call: Call, outcome: Outcome) -> None:
    """Give the future of *call* what became of it."""
    future: CallFuture[Any] = call.reply
    try:
        # Not one of the cases below: most end so, and a pattern takes three times as long.
        if isinstance(outcome, Returned):
            future.succeed(returned_by(outcome.writes))
            return
        match outcome:
            case Raised(error):
                future.set_exception(error)
            case Interrupted(interrupts):
                future.set_exception(GraphInterrupt(interrupts))
            case _:
                future.set_exception(TaskCancelled("the call was withdrawn"))
    except concurrent.futures.InvalidStateError:
        # Its body was stopped, and told so.
        return


class LocalRunClient(RunClient):
    """The ends of a task in this process.

    Args:
        job: What the task is.
        mailbox: Where its events go.
        turn: What `CallFuture` takes.
        before_first: Called before the task makes its first call.
        give_way: Called whenever it has made very many more.
    """

    __slots__ = ("_before_first", "_give_way", "_job", "_mailbox", "_turn", "made")

    def __init__(
        self,
        job: Job,
        mailbox: Mailbox,
        turn: Callable[[CallFuture[Any]], None] | None = None,
        before_first: Callable[[], None] | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self._job = job
        self._mailbox = mailbox
        self._turn = turn
        self._before_first = before_first
        self._give_way = give_way
        self.made = OpenCalls()
        """Its calls. One that succeeded is not kept, so that its result goes when its
        caller drops it."""

    def emit(self, payload: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        self._mailbox.post(Emitted(self._job.info.task_id, payload))

    def call(self, node: Node, arguments: Arguments, fingerprint: str | None, describe: str) -> Any:
        """Make a call, and return its future."""
        made, info = self.made, self._job.info
        if not made.count and self._before_first is not None:
            self._before_first()
        if runs_elsewhere(node, info.run.executor):
            may_wait = self._turn is None and not _on_event_loop()
            arguments = captured(arguments, may_wait=may_wait)
        # Not CallFuture[Any](...), which makes an alias and keeps it on each of them.
        future: CallFuture[Any] = CallFuture(self._turn, made)
        variables = copy_context()
        made_call = Call(
            info.task_id, info.attempt, node, arguments, fingerprint, describe, future, variables
        )
        self._mailbox.post(made_call)
        if not made.count % _MANY and self._give_way is not None:
            self._give_way()
        return future

    def beat(self) -> None:
        """Show nothing: where nothing can be timed out, nobody listens."""


def stop_calls(made: Collection[CallFuture[Any]], reason: str) -> None:
    """Wake a body that waits for calls, with the news that it is to end."""
    for future in list(made):
        if not future.done():
            try:
                future.set_exception(TaskCancelled(reason))
            except concurrent.futures.InvalidStateError:
                continue


def asking(result: Callable[[float | None], ResultT], timeout: float | None) -> ResultT:
    """Return the *result* of a call; if it asks instead, so does the task that waits for it."""
    try:
        return result(timeout)
    except GraphInterrupt as question:
        scope = current.get()
        if scope is not None:
            scope.question = question
        raise


def caught_of(outcome: Outcome, made: OpenCalls) -> Collection[str] | None:
    """Return which of these calls' failures their body has seen; None: it made no call.

    A call that has not ended for it yet is among those that it has not seen.
    """
    if not made.count:
        return None
    is_of_a_call = isinstance(outcome, Raised) and bool(blamed(outcome.error))
    caught: set[str] = set()
    for future in list(made):
        unseen = not future.looked_at or (is_of_a_call and future.may_be_unseen)
        if not unseen and (failure := future.failure) is not None:
            caught |= blamed(failure)
    return caught
