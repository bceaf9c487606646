"""The caller's end of a call made in this process: a future to wait for."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from flowpregel._core.effects import Call, Called, Emitted
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Interrupted,
    Node,
    Outcome,
    Raised,
    Returned,
)
from flowpregel.context import Ends
from flowpregel.errors import GraphInterrupt, TaskCancelled

if TYPE_CHECKING:
    from flowpregel.executors.base import Job, Mailbox


class CallFuture(concurrent.futures.Future[Any]):
    """The result of a call, to be waited for by an OS thread or awaited by a coroutine.

    Args:
        turn: Lets the run go on until the future is done; given where the
            caller occupies the OS thread that drives the run.
    """

    def __init__(self, turn: Callable[[CallFuture], None] | None = None) -> None:
        super().__init__()
        self._turn = turn
        self.looked_at = False
        """Whether somebody has asked how the call ended."""

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call returned, or raise what it raised.

        Args:
            timeout: Seconds to wait at most; None is for ever.
        """
        self.looked_at = True
        if self._turn is not None and not self.done():
            self._turn(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None."""
        self.looked_at = True
        if self._turn is not None and not self.done():
            self._turn(self)
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, Any, Any]:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        self.looked_at = True
        return asyncio.wrap_future(self).__await__()


def resolve_future(call: Call, outcome: Outcome) -> None:
    """Give the future of *call* what became of it."""
    future: CallFuture = call.reply
    if future.done():
        return
    match outcome:
        case Returned(writes):
            value = next((value for channel, value in writes if channel == RETURN), None)
            future.set_result(value)
        case Raised(error):
            future.set_exception(error)
        case Interrupted(interrupts):
            future.set_exception(GraphInterrupt(interrupts))
        case _:
            future.set_exception(TaskCancelled("the call was withdrawn"))


def ends_of(
    job: Job, mailbox: Mailbox, turn: Callable[[CallFuture], None] | None = None
) -> tuple[Ends, list[CallFuture]]:
    """Return what connects a task in this process to its run, and the list of its calls."""
    task_id, attempt = job.key
    made: list[CallFuture] = []

    def emit(payload: Any) -> None:
        mailbox.post(Emitted(task_id, payload))

    def call(node: Node, arguments: Arguments, fingerprint: str | None, describe: str) -> Any:
        future = CallFuture(turn)
        made.append(future)
        mailbox.post(Called(Call(task_id, attempt, node, arguments, fingerprint, describe, future)))
        return future

    return Ends(emit, call, _no_beat), made


def _no_beat() -> None:
    """Show nothing: where nothing can be timed out, nobody listens."""


def stop_calls(made: list[CallFuture], reason: str) -> None:
    """Wake a body that waits for calls, with the news that it is to end."""
    for future in made:
        if not future.done():
            try:
                future.set_exception(TaskCancelled(reason))
            except concurrent.futures.InvalidStateError:
                continue


def unseen_failure(made: list[CallFuture]) -> BaseException | None:
    """Return the failure of a call that the body never looked at."""
    for future in made:
        if future.done() and not future.looked_at and not future.cancelled():
            error = concurrent.futures.Future.exception(future)
            if isinstance(error, Exception):
                return error
    return None
