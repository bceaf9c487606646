"""Ctrl-C where it is safe.

Python raises `KeyboardInterrupt` between any two instructions of the main thread: also between
a lock's taking and the note that it was taken. What must not be broken off runs inside `held`:
there the signal is kept, and its handler called when that ends, at `deliver`, or while
`interruptible` calls the user's code. Who presses Ctrl-C a second time is not kept waiting.

SIGTERM ends a program that has no handler of its own for it. Inside `ending` it does so when
the runs have ended, which are told.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class _Hold:
    """The signal's handler while it is held back."""

    handler: Callable[[int, Any], Any]
    """The handler whose place it takes: the program's."""
    is_open: bool = False
    """Whether the program's handler is called at once: its own code runs."""
    wake: Callable[[], None] | None = None
    """Ends what the main thread waits for."""
    kept: tuple[int, Any] | None = None
    """The signal that came meanwhile: `deliver` has something to do."""

    def __call__(self, number: int, frame: Any) -> None:
        """Keep the signal, unless there is one already."""
        if self.is_open or self.kept is not None:
            self.handler(number, frame)
            return
        self.kept = number, frame
        if self.wake is not None:
            self.wake()

    def deliver(self) -> None:
        """Call the program's handler if a signal was kept."""
        kept, self.kept = self.kept, None
        if kept is not None:
            self.handler(*kept)


hold_of_main: _Hold | None = None
"""Of the main thread, the only one that runs handlers."""


def _own() -> _Hold | None:
    """Return the hold, on the main thread."""
    hold = hold_of_main
    is_main = hold is not None and threading.current_thread() is threading.main_thread()
    return hold if is_main else None


@contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back until this ends. On other OS threads, which it never meets: nothing.

    Raises:
        KeyboardInterrupt: At the end, if it was pressed meanwhile; or whatever the program's
            own handler raises.
    """
    global hold_of_main
    if (hold := _own()) is not None:
        was, hold.is_open = hold.is_open, False
        try:
            yield
        finally:
            hold.is_open = was
            if was and hold.kept is not None:
                hold.deliver()
        return
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    own = _Hold(handler)
    signal.signal(signal.SIGINT, own)
    hold_of_main = own  # now: before, Ctrl-C could have kept the handler from being set
    try:
        yield
    finally:
        hold_of_main = None
        if signal.getsignal(signal.SIGINT) is own:  # else the user's code has set its own
            signal.signal(signal.SIGINT, handler)
        if own.kept is not None:
            own.deliver()


def interruptible(
    call: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Return ``call(*args, **kwargs)``, which Ctrl-C may break off at any instant."""
    if (hold := _own()) is None or hold.is_open:
        return call(*args, **kwargs)
    if hold.kept is not None:
        hold.deliver()
    hold.is_open = True
    try:
        return call(*args, **kwargs)
    finally:
        hold.is_open = False


def deliver() -> None:
    """Raise the `KeyboardInterrupt` that was held back, if there is one."""
    if (hold := _own()) is not None:
        hold.deliver()


@contextmanager
def waking(wake: Callable[[], None]) -> Iterator[None]:
    """Have *wake* called, in a signal's handler, if Ctrl-C is pressed inside or was before."""
    if (hold := _own()) is None:
        yield
        return
    hold.wake = wake
    if hold.kept is not None:
        wake()
    try:
        yield
    finally:
        hold.wake = None


# -------------------------------------------------------------------- SIGTERM

_ends: list[Callable[[str], bool]] = []
"""What is called with the reason, and returns whether it waits for the end of anything."""
_was_told = False
"""Whether the program is to end when they have all been left."""
os.register_at_fork(after_in_child=_ends.clear)  # those runs are the other process's


def _on_sigterm(number: int, frame: Any) -> None:
    """Tell the runs that there are; if none has begun, or they know, end the program."""
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
    """Have *end* called when the program gets SIGTERM, which ends it only when this is left.

    Args:
        end: Called in the signal's handler; returns whether there is an end to wait for.
        dies: Whether the program ends then.
    """
    global _was_told
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_sigterm):
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
