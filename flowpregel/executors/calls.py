"""The future of a call, for which the caller waits."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, TypeVar, cast

from flowpregel import _clock
from flowpregel._core import records
from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.ids import CallKey
from flowpregel._core.previews import ResultOrigins, note_result, sources_among
from flowpregel._core.records import Arguments, Node, Outcome, Raised
from flowpregel.context import current, nothing
from flowpregel.errors import (
    ExecutorUnavailableError,
    GraphInterrupt,
    ParentCommand,
    TaskCancelled,
)

if TYPE_CHECKING:
    import asyncio

ResultT = TypeVar("ResultT")


class FutureInArgument(TypeError):
    """The error for an argument that contains a call's future in a place where the
    future is not replaced by the call's result.

    The code that catches this error knows the whole call, and reports where the future
    is.
    """


class Unresolved:
    """A placeholder for the result of a call, which raises an error if it is used like
    the result.
    """

    __slots__ = ()

    task_name: str
    """The name of the called task, or an empty string."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "this is the future of a call, not its result: write future.result() (in "
            "async code: await future)"
        )

    @staticmethod
    def __flowpregel_digest__(_: object) -> NoReturn:
        """Raise an error, because a future that is part of an argument has no content
        yet.
        """
        raise FutureInArgument(
            "there is a future inside an argument: pass on what its result() returns, "
            "or what await returns in async code"
        )

    # These methods are hidden from type checkers, which then report the use of a future
    # as if it were a result.
    if not TYPE_CHECKING:
        # A class that defines `__eq__` has no `__hash__` unless it defines that too.
        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the future of a call has no {name!r}: for that of the result, write "
                f"future.result().{name} (in async code: (await future).{name})"
            )

        def __eq__(self, other: object) -> bool:
            """Return whether *other* is the same future.

            Raises:
                TypeError: *other* is not a future.
            """
            if not isinstance(other, Unresolved):
                self._refuse()
            return self is other

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = (
            __rmod__
        ) = _refuse
        __pow__ = __rpow__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = (
            _refuse
        )
        __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __format__ = _refuse
        __iter__ = __len__ = __contains__ = __getitem__ = __setitem__ = __index__ = (
            _refuse
        )


class OpenCalls(set["CallFuture[Any]"]):
    """The futures of the calls that one attempt of a task has made and that have not
    succeeded.
    """

    count = 0
    """The number of calls that the attempt has made."""
    before_first: Callable[[], None] = staticmethod(nothing)
    """A function that is called just before the attempt makes its first call."""
    pid = 0
    """The pid of the process in which the attempt runs, or 0 for no check of the
    process.
    """
    task = ""
    """The name of the task."""
    home: asyncio.Task[Any] | None = None
    """The asyncio task that runs the attempt, if the attempt runs a coroutine."""
    cancel: Callable[[CallFuture[Any]], None] = staticmethod(nothing)
    """A function that cancels a call that the attempt no longer needs."""

    origins: ResultOrigins | None = None
    """The results of recorded calls that the attempt has read, each with the name of
    the called task, or None if there are none. From them it is known which argument of
    a later call comes from which call.
    """

    def check_process(self) -> None:
        """Raise an error in a process that was forked from the attempt's process.

        Raises:
            ExecutorUnavailableError: This process is a fork, whose calls would get no
                answer.
        """
        if self.pid and os.getpid() != self.pid:
            raise ExecutorUnavailableError(
                f"process {os.getpid()} was forked from process {self.pid} inside "
                f"{self.task!r}, and is not part of the run: make the calls, and wait "
                f"for them, in process {self.pid}; end the fork with os._exit(), or "
                "start a process of its own instead (subprocess, or multiprocessing "
                "with 'spawn')"
            )


class CallFuture(Unresolved, concurrent.futures.Future[ResultT]):
    """The future of a call. An OS thread can wait for it, and a coroutine can await it.

    Args:
        turn: A function that continues the run until the future is done, for a caller
            that occupies the OS thread that drives the run. Otherwise None.
        open_calls: The set of the caller's calls that have not succeeded. This future
            is added to it.

    Example:
        >>> from flowpregel.func import entrypoint, task
        >>> @task(executor="inline")
        ... def invert(number: float) -> float:
        ...     return 1 / number
        >>> @entrypoint()
        ... def flow(numbers: list[float]) -> list[str]:
        ...     futures = [invert(number) for number in numbers]
        ...     return [repr(each.exception() or each.result()) for each in futures]
        >>> flow.run([4, 0])
        ['0.25', "ZeroDivisionError('division by zero')"]
    """

    task_name: str = ""
    """The name of the called task, if the call is recorded."""
    items: ItemOutcomes | None = None
    """The outcomes of the items, if the call is of a chunk of items and some of them
    have failed.
    """
    read_errors: Collection[int] = ()
    """The positions of the failed items whose outcome a caller has requested."""
    of_items: Any = None
    """The results of the items of a chunk, kept when the first of them was read, so
    that the others can be read without the future's lock.
    """

    _is_exposed = False
    """True if code outside the library may have the result for a reason that
    `looked_at` does not record: a task got it as an argument.
    """
    _needs_loop: ClassVar[bool] = True
    """True if the result of a call from an event loop arrives on that same loop. Then
    the caller must not block the loop while it waits.
    """

    def __init__(
        self,
        turn: Callable[[CallFuture[Any]], None] | None = None,
        open_calls: OpenCalls | None = None,
    ) -> None:
        super().__init__()
        self._turn = turn
        self._open_calls = open_calls
        self.looked_at: bool = False
        """True if the code that made the call, or other user code, has requested the
        outcome of the call.
        """
        self.returns_errors = False
        """True if `result` returns the exception of a failed call instead of raising
        it.
        """
        self._is_awaited = self._was_cancelled = False
        """Two flags. `_is_awaited` is True if a caller has waited for the call without
        a timeout. `_was_cancelled` is True if the call is recorded as cancelled.
        """
        self._is_awaited_by_other = False
        """True if the future is awaited by a coroutine that the caller's body (the
        function that made the call) started, not by the body itself.
        """
        self._calls_before_outcome: int | None = None
        """The number of calls that the caller's body had made when the outcome reached
        the coroutine that awaited it, if the body had started that coroutine; else
        None.
        """
        if open_calls is not None:
            if not open_calls.count:
                open_calls.before_first()
            open_calls.add(self)
            open_calls.count += 1

    def result(self, timeout: float | None = None) -> ResultT:
        """Return what the call returned, or raise what it raised.

        Args:
            timeout: The number of seconds to wait, or None for no limit.
        """
        timeout = self._look(".result()", timeout)
        try:
            result = super().result(timeout)
        except Exception as error:
            if not self._returns_its_error():
                raise
            return cast("ResultT", error)
        except GraphInterrupt as question:
            # If the called task asks a question, the task that waits for it is
            # interrupted by the same question.
            scope = current.get()
            if scope is not None:
                scope.question = question
            raise
        calls = self._open_calls
        if self.task_name and calls is not None:
            calls.origins = note_result(calls.origins, result, self.task_name)
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None.

        Args:
            timeout: The number of seconds to wait, or None for no limit.
        """
        timeout = self._look(".exception()", timeout)
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Stop the call as a timeout would, or return False if it has already ended.

        After that, `result` raises `concurrent.futures.CancelledError`, and ``await``
        raises `asyncio.CancelledError`. The cancellation is recorded, so that the call
        ends in the same way when the caller is resumed and runs again.
        """
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        self.set_running_or_notify_cancel()
        if self._open_calls is not None:
            self._open_calls.cancel(self)
        return True

    def value(self, timeout: float | None = None) -> ResultT:
        """Return the result, or raise the call's error, without setting `looked_at`.

        Args:
            timeout: The number of seconds to wait, or None for no limit.

        Example:
            >>> from flowpregel import entrypoint, task
            >>> @task(executor="inline")
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> @entrypoint()
            ... def twice(number: int) -> tuple[int, bool]:
            ...     future = double(number)
            ...     return future.value(), future.looked_at
            >>> twice.invoke(4)
            (8, False)
        """
        self._is_exposed = True
        return self._unexposed_value(timeout)

    def _unexposed_value(self, timeout: float | None = None) -> ResultT:
        """Return the same as `value`, but do not note that the caller has the result.
        This is for library code, which does not change the result.
        """
        try:
            return super().result(timeout)
        except Exception as error:
            if not self._returns_its_error():
                raise
            return cast("ResultT", error)

    def _returns_its_error(self) -> bool:
        """Return whether the call has failed, and its error is returned as a result."""
        return self.returns_errors and self.done()

    def sibling(self, *, is_call: bool = True) -> Self:
        """Return a new future for the body (the function) that made this call.

        Args:
            is_call: True to add the future to the body's open calls.

        Example:
            >>> from flowpregel.func import TaskFuture
            >>> TaskFuture().sibling().done()
            False
        """
        return type(self)(self._turn, self._open_calls if is_call else None)

    def settle(self, outcome: Outcome) -> None:
        """Set the result or the error of this future from the *outcome* of the call.

        Args:
            outcome: The outcome, as the run gets it from the executor.

        Example:
            >>> from flowpregel._core.records import Raised
            >>> from flowpregel.func import TaskFuture
            >>> future = TaskFuture()
            >>> future.settle(Raised(ValueError("no data")))
            >>> future.exception()
            ValueError('no data')
        """
        try:
            match outcome:
                case records.Returned(writes):
                    if self._open_calls is not None:
                        # The future is removed from the set of open calls. So the
                        # result lives only as long as the user's code has the future.
                        self._open_calls.discard(self)
                    value: Any = dict(writes).get(records.RETURN)
                    self.set_result(value)
                case Raised(TaskCancelled()):
                    # The caller cancelled this call when it ran before. The future
                    # stays pending until the replayed caller cancels it again.
                    self._was_cancelled = True
                    if self._is_awaited or self._turn is not None:
                        self.cancel()
                case Raised(error, items):
                    self.items = items
                    self.set_exception(error)
                case records.Interrupted(interrupts):
                    self.set_exception(GraphInterrupt(interrupts))
                case records.Escaped(command):
                    # The called graph has sent the command to its parent graph, which
                    # is the graph of the caller. So the command gets ``graph=None``,
                    # the value for the caller's own graph.
                    self.set_exception(ParentCommand(replace(command, graph=None)))
                case records.Withdrawn():
                    self.set_exception(TaskCancelled("the call was withdrawn"))
        except concurrent.futures.InvalidStateError:
            pass  # The caller was stopped, so this future is already done.

    def __await__(self) -> Generator[Any, Any, ResultT]:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        calls = self._open_calls
        home = None if calls is None else calls.home
        self._is_awaited_by_other = (
            not self.looked_at
            and home is not None
            and asyncio.current_task() is not home
        )
        self.looked_at = True
        if not self.done():
            yield from _done_on(asyncio.get_running_loop(), self)
        elif self._is_awaited_by_other and self.failure is not None:
            # Control passes to the event loop once before the failure is raised. So
            # coroutines that were started together with this one can still make their
            # calls first.
            yield
        if self._is_awaited_by_other and calls is not None:
            self._calls_before_outcome = calls.count
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()

    @property
    def is_unread(self) -> bool:
        """True if the result has arrived as bytes, and has not been unpickled.

        This happens only in a worker.
        """
        return False

    @property
    def failure(self) -> Exception | None:
        """The error of the call, if it has failed."""
        if not self.done() or self.cancelled():
            return None
        error = super().exception()
        return error if isinstance(error, Exception) else None

    @property
    def may_be_unseen(self) -> bool:
        """True if the failure of the call may not have reached the body (the function
        that made the call), although a coroutine that the body started has awaited the
        future.

        If several calls that `asyncio.gather` awaits fail, only the first failure
        reaches the body. If the body has made another call since this failure arrived,
        the failure may have reached the body, and the value is False.
        """
        calls = self._open_calls
        return (
            self._is_awaited_by_other
            and calls is not None
            and self._calls_before_outcome in (None, calls.count)
        )

    def _look(self, how: str, timeout: float | None) -> float | None:
        """Note that a caller requests the outcome, and check that it can wait for it
        here.

        Args:
            how: The expression by which the caller requests the outcome, for error
                messages.
            timeout: The number of seconds to wait, or None for no limit.

        Returns:
            *timeout*, or 0 if this method has waited already.

        Raises:
            RuntimeError: Waiting would block the event loop of the run.
            ExecutorUnavailableError: This process is a fork of the attempt's process.
        """
        self.looked_at = True
        self._is_awaited |= timeout is None
        if self._was_cancelled and self._is_awaited:
            self.cancel()
        calls = self._open_calls
        if calls is not None and calls.pid != os.getpid() and not self.done():
            calls.check_process()
        if self._turn is not None and not self.done():
            self._turn(self)
        if self._needs_loop and on_event_loop() and not self.done():
            raise RuntimeError(
                f"{how} of a task that is not done would block the event loop on "
                "which the task's result arrives: use await"
            )
        if timeout is not None and _clock.present.skips:
            self._wait_skipping(timeout)
            return 0
        return timeout

    def _wait_skipping(self, timeout: float) -> None:
        """Wait until the future is done, or for *timeout* seconds of a test clock,
        which skips the time in which a program only waits.
        """
        is_over = threading.Event()
        until = _clock.monotonic() + timeout
        wait = _clock.TimedWait(is_over.set, until)
        self.add_done_callback(lambda _: is_over.set())
        with _clock.waiting(wait):
            is_over.wait(timeout)

    def __reduce__(self) -> Any:
        # The future cannot be pickled, because an unpickled copy would never be done.
        raise TypeError(
            "this is the future of a call, not its result: pass on what its result() "
            "returns, or what await returns in async code"
        )


RETURN_RESULTS: Final = (
    "return what the calls return, as in `return future.result()` or `return "
    "[future.result() for future in futures]` (in async code: `return await future`, "
    "`return await asyncio.gather(*futures)`)"
)


def futures_in(value: Any) -> list[Any]:
    """Return the futures in *value*: *value* itself if it is a future, or those among
    the items of a list, tuple or dict.
    """
    if isinstance(value, Unresolved):
        return [value]
    if type(value) not in (list, tuple, dict):
        return []
    within: Collection[Any] = value.values() if type(value) is dict else value
    # There may be a million items, so each of their types is checked only once.
    if not any(issubclass(kind, Unresolved) for kind in set(map(type, within))):
        return []
    return [item for item in within if isinstance(item, Unresolved)]


def with_results(value: Any) -> Any:
    """Return *value* with each future replaced by the future's result.

    All futures must be done.
    """
    if type(value) is dict:
        return {key: _result_or_value(item) for key, item in value.items()}
    if type(value) in (list, tuple) and futures_in(value):
        return type(value)(map(_result_or_value, value))
    return _result_or_value(value)


def _result_or_value(value: Any) -> Any:
    if isinstance(value, CallFuture):
        return value._unexposed_value()  # noqa: SLF001 - of this module
    future: Any = value
    return future.value() if isinstance(value, Unresolved) else value


def is_unexposed(future: CallFuture[Any]) -> bool:
    """Return whether only the library's own code has the result of *future*."""
    return not (future.looked_at or future._is_exposed)  # noqa: SLF001 - of this module


def note_exposed(arguments: Arguments) -> None:
    """Note that a task gets the results of the futures among *arguments* as the same
    objects, not as copies, and may change them.
    """
    for argument in (*arguments.args, *arguments.kwargs.values()):
        for future in futures_in(argument):
            if isinstance(future, CallFuture):
                future._is_exposed = True  # noqa: SLF001 - of this module


def with_sources_of(
    key: CallKey,
    node: Node,
    values: Arguments,
    calls: OpenCalls | None,
) -> CallKey:
    """Return *key* with the sources of the call's arguments: for each argument that is
    the future or the result of another call of the same body, the name of the
    parameter, and the name of the task that was called for it.

    Args:
        key: The key of the call.
        node: The node of the called task.
        values: The arguments. Futures among them are not replaced by their results yet.
        calls: The open calls of the body that makes the call.
    """
    origins = None if calls is None else calls.origins
    has_futures = not key.is_placed
    if not origins and not has_futures:
        return key
    parameters = chain(node.parameters, repeat("*args"))
    positional = zip(parameters, values.args, strict=False)
    arguments = [*positional, *values.kwargs.items()]
    futures: dict[int, str] = {}
    for _, value in arguments:
        for future in futures_in(value):
            futures[id(future)] = future.task_name
    sources = sources_among(arguments, origins or {}, futures)
    return key._replace(sources=sources) if sources else key


def refuse_futures(value: Any) -> None:
    """Raise an error if *value*, which a task or workflow returns, is or contains a
    future.

    Raises:
        TypeError: *value* is or contains a future.
    """
    if futures_in(value):
        raise TypeError(f"futures of calls were returned: {RETURN_RESULTS}")


def _done_on(
    loop: asyncio.AbstractEventLoop, future: CallFuture[Any]
) -> asyncio.Future[None]:
    """Return a future of *loop* that is done when *future* is.

    Unlike a future of `asyncio.wrap_future`, the returned future can be cancelled
    without cancelling the call.
    """
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake(_: object) -> None:
        # The RuntimeError means that the loop is closed, because its run ended before
        # the call. In this case, no coroutine waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish)

    future.add_done_callback(wake)
    return done


def on_event_loop() -> bool:
    """Return whether an event loop runs on this OS thread, so that the code must not
    block.
    """
    # asyncio is looked up in `sys.modules`, because a program that has not imported it
    # runs no event loop. Another OS thread may just be importing it, so the function
    # may be missing.
    running_loop = getattr(sys.modules.get("asyncio"), "get_running_loop", None)
    try:
        return running_loop is not None and running_loop() is not None
    except RuntimeError:
        return False


def observed_failures(outcome: Outcome, calls: OpenCalls) -> Collection[str]:
    """Return the ids of a body's failed calls whose error the body has received.

    A call whose outcome arrived but was not unpickled yet is left out.
    """
    is_of_a_call = isinstance(outcome, Raised) and bool(
        records.failed_calls(outcome.error)
    )
    caught: set[str] = set()
    for future in list(calls):
        if future.is_unread:
            continue
        unseen = not future.looked_at or (is_of_a_call and future.may_be_unseen)
        if not unseen and (failure := future.failure) is not None:
            caught |= records.failed_calls(failure)
    return caught
