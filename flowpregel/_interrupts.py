"""Delayed signal handlers: the program's handlers run only where a raise is safe.

Python calls a program's signal handlers between any two instructions of the main
thread, for example after a lock was acquired but before that fact was stored. Handlers
usually raise: `KeyboardInterrupt` for Ctrl-C, `sys.exit` for SIGTERM, a timeout for
SIGALRM. Code that must not be interrupted runs inside `defer_interrupts`::

    the program                 defer_interrupts: the library    the program
    -----------                 -----------------------------    -----------
    its handlers are called     `_Hold` stands in their place:   its handlers are called
    at once                     a signal is kept
                                  |-- `raise_pending_interrupts`: where we wait
                                  |-- `interruptible`: user code --> at once
                                  '-- the end of `defer_interrupts`

At these three points the handlers of the kept signals are called, so an exception that
a handler raises cannot interrupt half-done work. No signal is lost, and a signal ends a
wait of the library (`wakeup_on_signal`). Two signals do not wait for a safe point: a
second Ctrl-C, and a signal that has been kept for `PATIENCE` seconds. So even a reducer
that never returns can be interrupted.

Handlers that were set with `signal.signal` are held back, for any signal. Handlers that
the user's code sets during a run are noticed when that code returns. Not affected are
ignored signals, signals with their default action, and handlers in C (such as
faulthandler's). asyncio's handlers use the wake-up file descriptor, and work without
this module. A coroutine of the library cannot hold back signals for the whole main
thread while it waits, because other coroutines run then: see `held_on_loop`.

SIGTERM ends a program that has no handler for it. Inside `on_sigterm`, SIGTERM asks the
runs to end, and the program ends after them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has none
import _thread
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

Params = ParamSpec("Params")
Value = TypeVar("Value")
Handler: TypeAlias = Callable[[int, Any], Any]

PATIENCE: Final = 5.0
"""The maximum number of seconds for which a signal waits for a safe point."""
_MARK: Final = "_flowpregel_from_handler"
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))
# The functions of the module `signal` are not used, because they convert numbers to
# enums, which takes ten times as long.
_handler_of: Final[Callable[[int], Any]] = _signal.getsignal
_set_handler: Final[Callable[[int, Any], Any]] = _signal.signal


class _Owner(Enum):
    """The owner of the code that runs on the main thread at present."""

    PROGRAM = "program"
    """The program's code outside of the library, or the event loop's code if a run uses
    the program's event loop.
    """
    LIBRARY = "library"
    """The library's code, during which signals are kept."""
    USER = "user"
    """The user's code that the library calls, which signals may interrupt."""


class _Hold:
    """The signal handler that replaces the program's signal handlers while they are
    held back. There is one for each process.
    """

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        """The program's handlers by signal. They stay here after the end of
        `defer_interrupts`, because code may save the current handler inside the block
        and restore it later. It then restores this object, which must call the
        program's handler.
        """
        self.owner = _Owner.PROGRAM
        self.loops: list[tuple[Any, Callable[[], None]]] = []
        """The event loops of the main thread that execute a run, each with the function
        that wakes the run.
        """
        self.wake: Callable[[], None] | None = None
        """The function that ends a wait of the main thread."""
        self.kept: deque[tuple[int, Any, float]] = deque()
        """The signals that wait for the next safe point, with their stack frames and
        times of arrival (monotonic seconds).
        """
        self._is_reminding = False
        self._outside: list[Any] = []
        """The handler that each signal had before this object last replaced
        handlers.
        """
        self._inside: list[Any] = []
        """The handler that each signal has had since this object last replaced
        handlers: this object, or a handler that it did not replace.
        """
        self._found: list[tuple[int, Handler]] = []
        """The handlers that this object replaces, each with its signal."""

    def __call__(self, number: int, frame: Any) -> None:
        """Keep a signal for the next safe point, or call the program's handler at
        once.
        """
        if not self._keeps(number):
            self._run(number, frame)
            return
        self.kept.append((number, frame, time.monotonic()))
        if self.wake is not None:
            self.wake()
        for _, wake in self.loops:
            wake()
        if not self._is_reminding:
            self._is_reminding = True
            # A separate OS thread sends the signal again, in case no safe point comes.
            # If no OS thread can be started, the signal just waits for the next safe
            # point.
            with suppress(RuntimeError):
                # `threading` cannot be used here, because the main thread, which this
                # handler has interrupted, may hold the locks that `threading` needs.
                _thread.start_new_thread(self._remind, (_thread.get_ident(),))

    def _keeps(self, number: int) -> bool:
        """Return whether signal *number*, which has arrived, waits for a safe point."""
        if self.owner is _Owner.USER:
            return False
        if self.owner is _Owner.PROGRAM and not any(
            loop.is_running() for loop, _ in self.loops
        ):
            return False
        if number == signal.SIGINT and any(
            earlier == number for earlier, _, _ in self.kept
        ):
            return False
        return not self.kept or time.monotonic() - self.kept[0][2] < PATIENCE

    def _run(self, number: int, frame: Any) -> None:
        try:
            self.handlers[number](number, frame)
        except BaseException as error:
            # The attribute that is set marks the error as raised by a signal handler
            # (see `is_from_handler`). An error whose class has only slots takes no new
            # attribute, so it stays unmarked.
            with suppress(AttributeError):
                setattr(error, _MARK, True)
            raise

    def _remind(self, main_thread: int) -> None:
        """Send the oldest kept signal again if it has waited for `PATIENCE` seconds.

        This runs on a separate OS thread.
        """
        time.sleep(PATIENCE)
        self._is_reminding = False
        with suppress(IndexError):
            number, _, since = self.kept[0]
            if time.monotonic() - since >= PATIENCE:
                signal.pthread_kill(main_thread, number)

    def deliver(self) -> None:
        """Call the handlers of the kept signals, and let their exceptions propagate."""
        was, self.owner = self.owner, _Owner.USER
        try:
            while self.kept:
                number, frame, _ = self.kept.popleft()
                self._run(number, frame)
        finally:
            self.owner = was
            if self.kept:
                # A handler has raised an error. The handlers of the other kept signals
                # must still be called, as they would be without this object.
                self.deliver()
            elif hold_of_main is not None:
                # A handler may have set other handlers, which must be replaced too.
                self.take_places()

    def take_places(self) -> None:
        """Replace each of the program's present handlers by this object."""
        handlers = [*map(_handler_of, _NUMBERS)]
        if handlers == self._inside:
            return
        if handlers != self._outside:
            never_raise = self, _end_runs
            replaced: list[tuple[int, Handler]] = []
            inside: list[Any] = []
            for number, handler in zip(_NUMBERS, handlers, strict=True):
                if callable(handler) and handler not in never_raise:
                    replaced.append((number, handler))
                    inside.append(self)
                else:
                    inside.append(handler)
            # `_found`, `_inside` and `_outside` are set in one statement, because a
            # signal handler that runs between two statements may call this method too,
            # and would read them half-changed.
            self._found, self._inside, self._outside = replaced, inside, handlers
        for number, handler in self._found:
            self.handlers[number] = handler
            _set_handler(number, self)

    def give_back(self) -> None:
        """Restore the program's handlers, except where the program has set another
        handler since.
        """
        global hold_of_main
        try:
            for number, handler in self.handlers.items():
                if _handler_of(number) is self:
                    _set_handler(number, handler)
        finally:
            hold_of_main = None
            self.owner = _Owner.PROGRAM
            if self.kept:
                self.deliver()


_END: Final = object()
"""The marker for the end of an iterator."""
_hold: Final = _Hold()
hold_of_main: _Hold | None = None
"""The `_Hold` that holds back the signal handlers of this process at present, or None.
There is at most one, because Python calls signal handlers only on the main thread.
"""


_main_ident = threading.main_thread().ident
"""The identifier of the main thread."""


def _note_main() -> None:
    """Record that the OS thread which called `os.fork` is the main thread of the child
    process.
    """
    global _main_ident
    _main_ident = threading.get_ident()


os.register_at_fork(after_in_child=_note_main)


def _own() -> _Hold | None:
    """Return the `_Hold` if it holds back handlers and the caller runs on the main
    thread, otherwise None.
    """
    if hold_of_main is None or threading.get_ident() != _main_ident:
        return None
    return hold_of_main


class defer_interrupts:
    """Context manager and decorator that holds back signal handlers. It has no effect
    on OS threads other than the main thread, since Python calls no handlers there.

    Raises:
        BaseException: At the end, the exception that a handler of a kept signal raises,
            such as `KeyboardInterrupt` for Ctrl-C.

    Example:
        >>> from signal import SIGINT, raise_signal
        >>> try:
        ...     with defer_interrupts():
        ...         raise_signal(SIGINT)  # as Ctrl-C does
        ...         print("the commit is complete")
        ... except KeyboardInterrupt:
        ...     print("stopped")
        the commit is complete
        stopped
    """

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        global hold_of_main
        self._was: _Owner | None = None
        if threading.get_ident() != _main_ident:
            return
        self._was, _hold.owner = _hold.owner, _Owner.LIBRARY
        if self._was is _Owner.PROGRAM and not _hold.loops:
            hold_of_main = _hold
            try:
                _hold.take_places()
            except BaseException:
                # While the handlers were being replaced, one of the program's handlers
                # ran and raised this error. The replaced handlers are restored before
                # the error leaves.
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if self._was is _Owner.PROGRAM and not _hold.loops:
            _hold.give_back()
        elif self._was is not None:
            _hold.owner = self._was
            if self._was is _Owner.USER and _hold.kept:
                _hold.deliver()

    def __call__(self, function: Callable[Params, Value]) -> Callable[Params, Value]:
        """Return *function*, wrapped to hold back signal handlers during a call."""

        @wraps(function)
        def holding(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            if _hold.owner is _Owner.LIBRARY:
                # This OS thread is not the main thread, or already holds back signal
                # handlers, so nothing needs to be done.
                return function(*args, **kwargs)
            with defer_interrupts():
                return function(*args, **kwargs)

        return holding


class held_on_loop:
    """A context manager that holds back signal handlers while a run on the main
    thread's event loop computes its next item, including the waits for that item.

    Signals are kept even while other coroutines run on the loop, because a handler must
    not raise in the event loop's code either. Each signal wakes the run, which calls
    `raise_pending_interrupts`.

    Args:
        loop: The running event loop.
        wake: A function that wakes the run, called in a signal handler.
    """

    __slots__ = ("_item", "_was")

    def __init__(self, loop: Any, wake: Callable[[], None]) -> None:
        self._item = loop, wake

    def __enter__(self) -> None:
        global hold_of_main
        self._was: _Owner | None = None
        if threading.get_ident() != _main_ident:
            return
        self._was, hold_of_main = _hold.owner, _hold
        _hold.loops.append(self._item)
        try:
            _hold.take_places()
        except BaseException:
            self.__exit__()
            raise
        # Code that the event loop runs while the run waits is regarded as the
        # program's. So PROGRAM is the owner, even if the code of a task (the owner
        # USER) has started the loop.
        _hold.owner = _Owner.PROGRAM

    def __exit__(self, *_: object) -> None:
        if self._was is None:
            return
        _hold.loops.remove(self._item)
        if threading.get_ident() != _main_ident:
            # The generator of an abandoned run may be closed on any OS thread, but only
            # the main thread can restore the handlers. The next `defer_interrupts` or
            # `held_on_loop` on the main thread restores them.
            return
        _hold.owner = self._was
        if self._was is _Owner.PROGRAM and not _hold.loops:
            _hold.give_back()
        elif self._was is _Owner.USER and _hold.kept:
            _hold.deliver()


def held_steps(items: Iterator[Value]) -> Iterator[Value]:
    """Yield *items*, and hold back signal handlers while each item is computed."""
    while True:
        with defer_interrupts():
            item: Any = next(items, _END)
        if item is _END:
            return
        yield item


def interruptible(
    call: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Return ``call(*args, **kwargs)``, whose code a signal handler may interrupt at
    any time.
    """
    if (hold := _own()) is None or hold.owner is _Owner.USER:
        return call(*args, **kwargs)
    if hold.kept:
        hold.deliver()
    was, hold.owner = hold.owner, _Owner.USER
    try:
        return call(*args, **kwargs)
    finally:
        hold.owner = was
        # The call may have set other handlers, which must be replaced too.
        hold.take_places()


def raise_pending_interrupts() -> None:
    """Call the handlers of the signals that were held back, if there are any, and let
    their exceptions propagate.
    """
    if (hold := _own()) is not None and hold.kept:
        hold.deliver()


def is_from_handler(error: BaseException | None) -> bool:
    """Return whether one of the program's signal handlers raised *error* during a run.

    Such an error concerns the whole program, like Ctrl-C, and is not a failure of the
    interrupted code.
    """
    return getattr(error, _MARK, False)


def wakeup_on_signal(wait: Callable[[], Value], wake: Callable[[], None]) -> Value:
    """Return ``wait()``, and end the wait early with *wake* if a signal arrives or is
    already held back.

    If a signal arrives during the wait, *wake* is called in a signal handler.
    """
    if (hold := _own()) is None:
        return wait()
    hold.wake = wake
    try:
        if hold.kept:
            wake()
        return wait()
    finally:
        hold.wake = None


# -------------------------------------------------------------------- SIGTERM

_ends: list[Callable[[str], bool]] = []
"""The functions that ask a run to end, one for each run. Their argument is the reason.
They return True if the program must wait for the end of the run.
"""
_was_told = False
"""True once SIGTERM has asked the program to end after its runs."""
# In a forked child, the list of these functions is cleared: the runs belong to the
# parent process, so a SIGTERM to the child must not end them.
os.register_at_fork(after_in_child=_ends.clear)


def _end_runs(number: int, frame: Any) -> None:
    """Ask the runs to end. If no run has begun, or this is the second SIGTERM, end the
    program.
    """
    global _was_told
    was_told, _was_told = _was_told, True
    waits = [end("SIGTERM") for end in _ends]
    if was_told or not any(waits):
        _end_program()


def _end_program() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


@contextmanager
def on_sigterm(end: Callable[[str], bool], *, dies: bool = True) -> Iterator[None]:
    """Call *end* if the program gets SIGTERM inside the ``with`` block.

    The program then ends only after the block, unless *end* returns False or another
    SIGTERM arrives. This has no effect on OS threads other than the main thread, or if
    the program has a SIGTERM handler of its own.

    Args:
        end: A function that the signal handler calls. It returns whether the program
            must wait for the end of the block.
        dies: True if SIGTERM ends the program after the block. If False, the program
            continues after the block.
    """
    global _was_told
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (
        signal.SIG_DFL,
        _end_runs,
    ):
        yield
        return
    try:
        _ends.append(end)
        signal.signal(signal.SIGTERM, _end_runs)
        yield
    finally:
        _ends.remove(end)
        # The ``with`` block may end on another OS thread (if it is in a generator).
        # Then the handler stays, because only the main thread can set handlers.
        if not _ends and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            was_told, _was_told = _was_told, False
            if was_told and dies:
                _end_program()
