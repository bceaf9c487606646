"""Signals where they are safe.

Python calls a program's signal handlers between any two instructions of the main
thread: also between a lock's taking and the note that it was taken. A handler may raise
there, as the usual ones do: `KeyboardInterrupt` for Ctrl-C, `sys.exit` for SIGTERM, a
timeout for SIGALRM. What must not be broken off runs inside `held`::

    the program                 held: library code               the program
    -----------                 ------------------               -----------
    its handlers are called     `_Hold` stands in their place:   its handlers are called
    at once                     a signal is kept
                                  |-- `deliver`: where we wait
                                  |-- `interruptible`: user code --> at once
                                  '-- the end of `held`

At each of the three the handlers of the signals that were kept are called, so what they
raise meets no half-done work. No signal is lost, and a wait is ended (`waking`).
Two do not wait for a safe place: a second Ctrl-C, and a signal that has been kept for
`PATIENCE` seconds. A reducer that never ends can be broken off.

Only handlers that were set with `signal.signal` are held back, of whatever signal;
those that the user's code sets while a run goes on are found when that code returns.
Signals that are ignored or have their default action, and handlers in C
(faulthandler's), are left alone. asyncio's handlers write to the wake-up descriptor,
which needs nothing of ours. A coroutine of ours cannot hold the main thread while it
waits, for other coroutines run then: see `held_on_loop`.

SIGTERM ends a program that has no handler of its own for it. Inside `ending` it tells
the runs to end, and the program ends after them.
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
"""Seconds after which a signal waits for a safe place no longer."""
_MARK: Final = "_flowpregel_from_handler"
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))
# The functions of `signal` turn numbers into enums: that takes ten times as long.
_handler_of: Final[Callable[[int], Any]] = _signal.getsignal
_set_handler: Final[Callable[[int, Any], Any]] = _signal.signal


class _Owner(Enum):
    """The code that runs on the main thread."""

    PROGRAM = "program"
    """The program's, outside of the library; if a run goes on on its event loop, of the
    loop.
    """
    LIBRARY = "library"
    """The library's: signals are kept."""
    USER = "user"
    """The user's, which the library calls: it may be broken off."""


class _Hold:
    """Stands in the place of the program's handlers while they are held back; one a
    process.
    """

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        """The program's handlers by signal. They stay after the end: code that saves a
        handler while signals are held, and restores it later, restores this one, which
        calls the program's.
        """
        self.owner = _Owner.PROGRAM
        self.loops: list[tuple[Any, Callable[[], None]]] = []
        """Event loops of this OS thread on which a run goes on, and what wakes each
        run.
        """
        self.wake: Callable[[], None] | None = None
        """Ends what the main thread waits for."""
        self.kept: deque[tuple[int, Any, float]] = deque()
        """The signals that are held back, their frames, and the times at which they
        came (monotonic seconds), for `deliver`.
        """
        self._is_reminding = False
        self._outside: list[Any] = []
        """The handlers of all signals that were found last."""
        self._inside: list[Any] = []
        """The same, with this one in its places."""
        self._found: list[tuple[int, Handler]] = []
        """The handlers whose places it takes, by signal."""

    def __call__(self, number: int, frame: Any) -> None:
        """Keep a signal, or call its handler at once."""
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
            with suppress(RuntimeError):  # the system gives no more OS threads
                # Not `threading`: the main thread may be holding its locks.
                _thread.start_new_thread(self._remind, (_thread.get_ident(),))

    def _keeps(self, number: int) -> bool:
        """Return whether signal *number*, which has come, waits for a safe place."""
        if self.owner is _Owner.USER:
            return False
        if self.owner is _Owner.PROGRAM and not any(
            loop.is_running() for loop, _ in self.loops
        ):
            return False
        if number == signal.SIGINT and any(kept == number for kept, _, _ in self.kept):
            return False
        return not self.kept or time.monotonic() - self.kept[0][2] < PATIENCE

    def _run(self, number: int, frame: Any) -> None:
        try:
            self.handlers[number](number, frame)
        except BaseException as error:
            with suppress(AttributeError):  # a class of the program's with slots
                setattr(error, _MARK, True)
            raise

    def _remind(self, main_thread: int) -> None:
        """Send the oldest signal once more if it was kept for too long; on an OS
        thread.
        """
        time.sleep(PATIENCE)
        self._is_reminding = False
        with suppress(IndexError):
            number, _, since = self.kept[0]
            if time.monotonic() - since >= PATIENCE:
                signal.pthread_kill(main_thread, number)

    def deliver(self) -> None:
        """Call the program's handlers of the signals that were kept; what they raise is
        raised.
        """
        was, self.owner = self.owner, _Owner.USER
        try:
            while self.kept:
                number, frame, _ = self.kept.popleft()
                self._run(number, frame)
        finally:
            self.owner = was
            if self.kept:
                # a handler has raised: the others are called, as Python does
                self.deliver()
            elif hold_of_main is not None:
                self.take_places()  # it may have set others

    def take_places(self) -> None:
        """Stand in the place of each handler of the program's that is there now."""
        handlers = [*map(_handler_of, _NUMBERS)]
        if handlers == self._inside:
            return
        if handlers != self._outside:
            never_raise = self, _on_sigterm
            replaced: list[tuple[int, Handler]] = []
            inside: list[Any] = []
            for number, handler in zip(_NUMBERS, handlers, strict=True):
                if callable(handler) and handler not in never_raise:
                    replaced.append((number, handler))
                    inside.append(self)
                else:
                    inside.append(handler)
            # At once: a handler that comes in between may take the places itself.
            self._found, self._inside, self._outside = replaced, inside, handlers
        for number, handler in self._found:
            self.handlers[number] = handler
            _set_handler(number, self)

    def give_back(self) -> None:
        """Put the program's handlers back, but for those that it has replaced
        itself.
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
"""Comes after the last item."""
_hold: Final = _Hold()
hold_of_main: _Hold | None = None
"""The hold of the main thread, which alone runs handlers, while it holds them back."""


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _own() -> _Hold | None:
    """Return the hold, on the main thread."""
    return hold_of_main if hold_of_main is not None and _is_main() else None


class held:
    """Holds signals back until it ends. On other OS threads, which they never meet:
    nothing.

    Raises:
        BaseException: At the end, whatever the program's handlers raise for the signals
            that were held back: `KeyboardInterrupt` for Ctrl-C.
    """

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        global hold_of_main
        self._was: _Owner | None = None
        if not _is_main():
            return
        self._was, _hold.owner = _hold.owner, _Owner.LIBRARY
        if self._was is _Owner.PROGRAM and not _hold.loops:
            hold_of_main = _hold
            try:
                _hold.take_places()
            except BaseException:  # raised by a handler that was not replaced yet
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
        """Return *function*, made to hold signals back while it is called."""

        @wraps(function)
        def holding(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            with held():
                return function(*args, **kwargs)

        return holding


class held_on_loop:
    """Holds signals back between two steps of a run on the main thread's event loop.

    They are kept whatever coroutine is running: in the event loop's own code a handler
    must not raise either. Each wakes the run, which calls `deliver`.

    Args:
        loop: The running event loop.
        wake: Wakes the run, in a signal's handler.
    """

    __slots__ = ("_item", "_was")

    def __init__(self, loop: Any, wake: Callable[[], None]) -> None:
        self._item = loop, wake

    def __enter__(self) -> None:
        global hold_of_main
        self._was: _Owner | None = None
        if not _is_main():
            return
        self._was, hold_of_main = _hold.owner, _hold
        _hold.loops.append(self._item)
        try:
            _hold.take_places()
        except BaseException:
            self.__exit__()
            raise
        # The program is a task's code, which has started an event loop of its own.
        _hold.owner = _Owner.PROGRAM

    def __exit__(self, *_: object) -> None:
        if self._was is None:
            return
        _hold.loops.remove(self._item)
        if not _is_main():
            # a generator that was left is closed anywhere: the next one gives them back
            return
        _hold.owner = self._was
        if self._was is _Owner.PROGRAM and not _hold.loops:
            _hold.give_back()
        elif self._was is _Owner.USER and _hold.kept:
            _hold.deliver()


def held_steps(items: Iterator[Value]) -> Iterator[Value]:
    """Yield *items*, and hold signals back while each is made."""
    while True:
        with held():
            item: Any = next(items, _END)
        if item is _END:
            return
        yield item


def interruptible(
    call: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Return ``call(*args, **kwargs)``, which a signal may break off at any instant."""
    if (hold := _own()) is None or hold.owner is _Owner.USER:
        return call(*args, **kwargs)
    if hold.kept:
        hold.deliver()
    was, hold.owner = hold.owner, _Owner.USER
    try:
        return call(*args, **kwargs)
    finally:
        hold.owner = was
        hold.take_places()  # of handlers that it has set


def deliver() -> None:
    """Call the handlers of the signals that were held back, if there are any."""
    if (hold := _own()) is not None and hold.kept:
        hold.deliver()


def is_from_handler(error: BaseException | None) -> bool:
    """Return whether a handler of the program's raised *error* while a run went on.

    It is meant for the whole program, as Ctrl-C is, and no failure of what it broke
    off.
    """
    return getattr(error, _MARK, False)


@contextmanager
def waking(wake: Callable[[], None]) -> Iterator[None]:
    """Have *wake* called, in a signal's handler, if a signal comes inside or came
    before.
    """
    if (hold := _own()) is None:
        yield
        return
    hold.wake = wake
    if hold.kept:
        wake()
    try:
        yield
    finally:
        hold.wake = None


# -------------------------------------------------------------------- SIGTERM

_ends: list[Callable[[str], bool]] = []
"""The functions to call with the reason; each returns True if it waits for an end."""
_was_told = False
"""True once the program was told to end when no run is left."""
os.register_at_fork(after_in_child=_ends.clear)  # those runs are the other process's


def _on_sigterm(number: int, frame: Any) -> None:
    """Tell the runs that there are; if none has begun, or they know, end the
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
def ending(end: Callable[[str], bool], *, dies: bool = True) -> Iterator[None]:
    """Have *end* called when the program gets SIGTERM, which ends it only when this is
    left.

    Args:
        end: Called in the signal's handler; returns whether there is an end to wait
            for.
        dies: Whether the program ends then.
    """
    global _was_told
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (
        signal.SIG_DFL,
        _on_sigterm,
    ):
        yield
        return
    try:
        _ends.append(end)
        signal.signal(signal.SIGTERM, _on_sigterm)
        yield
    finally:
        _ends.remove(end)
        # A generator may be closed on another OS thread, where no handler can be set.
        if not _ends and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            was_told, _was_told = _was_told, False
            if was_told and dies:
                _end_program()
